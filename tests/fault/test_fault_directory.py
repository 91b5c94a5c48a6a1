"""A directory by which any node may lead the job, and whose file server does not answer."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.fault.mounts import Disk
from tests.harness.cluster import Cluster, wait_until


def test_a_node_waits_for_a_directory_that_does_not_answer_at_its_start(tmp_path: Path) -> None:
    """It says so, and a signal ends the wait."""
    jobs = tmp_path / "jobs"
    by_directory = {"rdzv_backend": "file", "rdzv_endpoint": str(jobs)}
    with (
        Disk(tmp_path / "disk") as disk,
        disk.seen_at(jobs) as view,
        Cluster(tmp_path, nnodes="1", **by_directory) as cluster,
    ):
        view.hang()
        left = cluster.agent("left", prefix=view.prefix)
        impatient = cluster.agent("impatient", prefix=view.prefix, rdzv_conf="join_timeout=3")
        for agent in (left, impatient):
            agent.wait_event("meeting", f"waiting for the directory {jobs}, which does not answer")
        left.signal(signal.SIGTERM)
        left.wait_event("verdict")
        wait_until(lambda: impatient.lines, "its last line")
        (last,) = impatient.lines
        assert f"--rdzv-endpoint {jobs} does not answer: waited 3 s; see that its file" in last
        view.answer()  # Not even SIGKILL would end what looks at it.
        assert left.wait_exit() == 128 + signal.SIGTERM
        assert impatient.wait_exit() == 75
        other = cluster.agent("other", prefix=view.prefix)
        cluster.wait_workers(1)
        cluster.end_well(other)
