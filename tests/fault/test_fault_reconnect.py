"""Nodes that are cut from the coordinator, and coordinators that move (F1, F2, F6)."""

from __future__ import annotations

from pathlib import Path

from tests.fault.hosts import HostCluster


def test_F2_a_node_cut_for_longer_than_its_lease_comes_back_as_a_newcomer(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes="1:2", lease=2, min_growth_interval=0) as cluster:
        a, b = cluster.agents("a", "b")
        stale = cluster.wait_workers(2, round=0)[1]
        cluster.network.cut("b")
        cluster.network.refuse("b", "a")  # no route: attempts fail at once, which is silence too
        fenced = b.wait_event("fenced", "waiting for the coordinator to answer")
        assert "killing the workers" in fenced.message
        a.wait_event("round_ended", "node b was lost: it sent no heartbeat for 2 s", round=0)
        cluster.wait_workers(1, round=1)
        cluster.network.heal("b")
        workers = cluster.wait_workers(2, round=2)
        assert [worker.node for worker in workers] == ["a", "b"]
        assert not stale.is_alive
        cluster.end_well(a, b)


def test_F2_the_last_line_says_whether_the_coordinator_was_silent_or_refused(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "a", "b", "c", nnodes="3", lease=2) as cluster:
        a = cluster.agent("a", hosts=True)
        b, c = cluster.agent("b"), cluster.agent("c", reconnect_timeout=3)
        cluster.wait_workers(3)
        cluster.network.cut("c")
        a.kill()
        assert (b.wait_exit(), c.wait_exit()) == (75, 75)
        assert (
            "its host refused connections, and no other coordinator answered" in b.verdict["reason"]
        )
        assert "the coordinator was lost: no answer for" in c.verdict["reason"]
