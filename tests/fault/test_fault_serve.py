"""Nodes that come back to a coordinator of its own after their job has ended (R5)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.fault.hosts import HostCluster


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_R5_a_node_that_was_cut_off_hears_how_its_job_ended_and_starts_nothing(
    tmp_path: Path, end: str
) -> None:
    with HostCluster(tmp_path, *"sab", nnodes="1:2", reconnect_timeout=600) as cluster:
        cluster.serve()
        a, b = cluster.running("a", "b", hosts=None)
        cluster.network.cut("b")
        cluster.wait_workers(1, round=1)
        b.wait_event("fenced")
        if end == "failed":
            cluster.order("sys.exit(3)", round=1)
        else:
            a.signal(signal.SIGINT)
        code = {"failed": 1, "cancelled": 128 + signal.SIGINT}[end]
        assert a.wait_exit() == code
        cluster.network.heal("b")
        assert b.wait_exit() == code
        assert (b.verdict["outcome"], b.verdict["reason"]) == (end, a.verdict["reason"])
        assert [worker.round for worker in b.workers()] == [0]
