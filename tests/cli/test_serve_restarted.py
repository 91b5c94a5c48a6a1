"""`rallypoint serve --data-dir`, killed and started again: no worker notices."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.harness.alone import ALONE, can_be_alone
from tests.harness.cluster import Cluster, wait_until
from tests.harness.restarted_serve import STEPS, STOP, RestartedServe, steps_of

from rallypoint.core.liveness import DEAF_SHARE
from rallypoint.file_systems import local_file_system


def test_R5_a_coordinator_that_is_killed_and_started_again_goes_on_with_its_job(
    tmp_path: Path,
) -> None:
    """While it is formed, while it runs and when half of it has succeeded."""
    with Cluster(tmp_path, nnodes="2", lease=60) as cluster:
        cluster.make_token()
        serve = RestartedServe(cluster)
        cluster.order(STEPS)
        a = cluster.agent("a", hosts=False)
        a.wait_event("waiting", "1 more node")
        serve.restart()
        b = cluster.agent("b", hosts=False)
        workers = cluster.wait_workers(2, round=0)
        serve.restart(a, b)
        cluster.order(STOP)
        wait_until(lambda: steps_of(a) and steps_of(b), "the workers to stop")
        cluster.order("sys.exit(0)", node="a")
        a.wait_event("succeeded")
        serve.restart(a, b)
        cluster.order("sys.exit(0)", node="b")
        assert [a.wait_exit(), b.wait_exit()] == [0, 0]
        assert cluster.workers() == workers
        assert a.verdict["restarts"] == 0
        assert list(cluster.temp.iterdir()) == []
        serve.server.signal(signal.SIGTERM)
        assert serve.server.wait_exit() == 128 + signal.SIGTERM


def test_F2_a_heartbeat_that_comes_before_the_coordinator_leads_its_job_is_answered(
    tmp_path: Path,
) -> None:
    """The workers outlive the time after which an agent hangs up for want of an answer."""
    lease_s = 4.0
    with Cluster(tmp_path, nnodes="1", lease=lease_s) as cluster:
        cluster.make_token()
        RestartedServe(cluster)
        cluster.order(f"time.sleep({lease_s * DEAF_SHARE + 0.3}); sys.exit(0)")
        a = cluster.agent("a", hosts=False)
        assert a.wait_exit() == 0
        assert "session_suspended" not in [event.name for event in a.events]


def test_L6_a_coordinator_in_a_container_that_is_killed_and_started_again_leads_at_once(
    tmp_path: Path,
) -> None:
    """The new container sees no process of the old one."""
    if not can_be_alone():
        pytest.skip("PID namespaces need root, and a kernel that has them")
    if not local_file_system(str(tmp_path)):
        pytest.skip("temporary files lie on a file system that other machines see")
    with Cluster(tmp_path, nnodes="2", lease=60) as cluster:
        cluster.make_token()
        serve = RestartedServe(cluster, ALONE)
        a, b = cluster.agents("a", "b", hosts=False)
        workers = cluster.wait_workers(2, round=0)
        # While this is open, no other namespace gets its number.
        namespace = os.open(f"/proc/{serve.server.pid}/ns/pid_for_children", os.O_RDONLY)
        try:
            serve.restart(a, b)
        finally:
            os.close(namespace)
        assert "leads this job: waiting" not in serve.server.said
        cluster.end_well(a, b)
        assert cluster.workers() == workers
        serve.kill()
