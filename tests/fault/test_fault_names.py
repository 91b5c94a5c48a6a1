"""An endpoint whose name moves to another address, as that of a pod does that is replaced."""

from __future__ import annotations

from pathlib import Path

from tests.fault.hosts import PORT, HostCluster

NOBODY = "10.5.1.77"


def test_a_node_that_waits_finds_the_host_when_a_stale_name_is_put_right(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes=2, rdzv_endpoint=f"pod:{PORT}") as cluster:
        cluster.network.call("pod", NOBODY)
        b = cluster.agent("b")
        b.wait_event("meeting", "waiting for the coordinator at pod")
        cluster.network.call("pod", cluster.network.address("a"))
        a = cluster.agent("a")
        cluster.wait_workers(2, round=0)
        cluster.end_well(a, b)
