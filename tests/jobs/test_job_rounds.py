"""Rounds of real jobs: who takes part, when one completes, and how it grows (R1, R2)."""

from __future__ import annotations

import pytest
from tests.harness.cluster import Cluster, Option


def test_R1_W25_D9_a_roster_that_is_back_starts_at_once(cluster: Cluster) -> None:
    """Elastic, below the maximum, after a loss and after a crash: no second last call."""
    a, b, c = cluster.running("a", "b", "c", nnodes="1:3", max_restarts=1)
    c.kill()
    cluster.wait_workers(2, round=1)
    cluster.order("sys.exit(3)", round=1, node="b")
    workers = cluster.wait_workers(2, round=2)
    assert [worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers] == ["1", "1"]
    cluster.end_well(a, b)


def test_R2_W1a_a_fresh_agent_grows_the_job(cluster: Cluster) -> None:
    """With it the maximum is reached, so nobody else is waited for."""
    cluster.options |= {"join_settle": 60}
    a = cluster.agent("a", 2)
    first = cluster.wait_workers(2, round=0)
    assert {worker.env["WORLD_SIZE"] for worker in first} == {"2"}
    b = cluster.agent("b", 2)
    a.wait_event("round_ended", "1 more node joined", round=0)
    workers = cluster.wait_workers(4, round=1)
    assert [worker.node for worker in workers] == ["a", "a", "b", "b"]
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    assert not any(worker.is_alive for worker in first)
    cluster.end_well(a, b)


def test_R2_W1b_rank_0_is_a_survivor_though_a_newcomer_sorts_first(cluster: Cluster) -> None:
    b = cluster.agent("b", 2)
    cluster.wait_workers(2, round=0)
    a = cluster.agent("a", 2)
    workers = cluster.wait_workers(4, round=1)
    assert [worker.node for worker in workers] == ["b", "b", "a", "a"]
    assert len({worker.store for worker in workers}) == 1
    cluster.end_well(a, b)


@pytest.mark.parametrize("option", [{"on_join": "hold"}, {"min_growth_interval": 60}], ids=str)
def test_R2_a_late_node_waits_until_the_round_ends_anyway(
    cluster: Cluster, option: dict[str, Option]
) -> None:
    cluster.options |= {"max_restarts": 1, **option}
    [a] = cluster.running("a", hosts=None)
    b = cluster.agent("b")
    b.wait_event("waiting", "the next round")
    assert b.workers() == []
    cluster.order("sys.exit(3)", round=0)
    assert "exited with code 3" in a.wait_event("round_ended", round=0).message
    cluster.wait_workers(2, round=1)
    cluster.end_well(a, b)


@pytest.mark.parametrize("nnodes", ["4", "1:4"])
def test_R2_the_fifth_node_stands_by_and_is_promoted(cluster: Cluster, nnodes: str) -> None:
    cluster.options |= {"nnodes": nnodes}
    a, b, c, d = cluster.agents("a", "b", "c", "d")
    first = cluster.wait_workers(4, round=0)
    e = cluster.agent("e")
    e.wait_event("waiting", "a place (standing by)")
    c.kill()
    a.wait_event("round_ended", "node c was lost", round=0)
    workers = cluster.wait_workers(4, round=1)
    assert [worker.node for worker in first] == ["a", "b", "c", "d"]
    assert [worker.node for worker in workers] == ["a", "b", "e", "d"]
    f = cluster.agent("f")
    f.wait_event("waiting", "a place (standing by)")
    assert e.workers(0) == []
    cluster.end_well(a, b, d, e, f)
    assert a.verdict["round"] == 1
    assert f.workers() == []


def test_F4_rounds_only_rise_and_no_two_worlds_share_one(cluster: Cluster) -> None:
    """After a crash, a loss and a replacement; each node saw the same world."""
    cluster.options |= {"max_restarts": 1}
    a, b = cluster.running("a", "b")
    cluster.order("sys.exit(3)", round=0, node="b")
    cluster.wait_workers(2, round=1)
    b.kill()
    cluster.wait_workers(1, round=2)
    c = cluster.agent("c")
    cluster.wait_workers(2, round=3)
    cluster.end_well(a, c)
    seen = {agent.name: [worker.round for worker in agent.workers()] for agent in (a, b, c)}
    assert seen == {"a": [0, 1, 2, 3], "b": [0, 1], "c": [3]}
    for round_, size in enumerate((2, 2, 1, 2)):
        workers = cluster.workers(round_)
        assert [worker.rank for worker in workers] == list(range(size))
        assert {worker.env["WORLD_SIZE"] for worker in workers} == {str(size)}
