"""Ends of jobs while a node is cut from the coordinator (F1)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.fault.hosts import HostCluster

LEASE_S = 15
STILL_CUT_S = 2.0
"""Longer than the reconnect grace."""


@pytest.mark.parametrize("reset_grace", [None, 0.5])
def test_F1_a_host_waits_for_a_node_that_was_cut_off_to_tell_it_that_the_job_succeeded(
    tmp_path: Path, reset_grace: float | None
) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes=2, lease=LEASE_S) as cluster:
        cluster.options["reset_grace"] = reset_grace
        a, b = cluster.running("a", "b")
        cluster.order("sys.exit(0)", node="b")
        b.wait_event("succeeded")
        cluster.network.refuse("b", "a")
        cluster.network.reset("b", "a")
        b.wait_event("session_suspended")
        cluster.order("sys.exit(0)", node="a")
        a.wait_event("succeeded")
        time.sleep(STILL_CUT_S)
        cluster.network.heal("b", "a")
        assert (a.wait_exit(), b.wait_exit()) == (0, 0)
        assert b.verdict["outcome"] == "succeeded"


def test_F1_a_host_waits_for_a_node_that_fell_silent_as_the_job_succeeded(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes=2, lease=9) as cluster:
        a, b = cluster.running("a", "b")
        cluster.order("sys.exit(0)", node="b")
        b.wait_event("succeeded")
        cluster.network.cut("b")
        cluster.order("sys.exit(0)", node="a")
        b.wait_event("session_suspended")
        cluster.network.heal("b")
        assert (a.wait_exit(), b.wait_exit()) == (0, 0)
        assert b.verdict["outcome"] == "succeeded"
