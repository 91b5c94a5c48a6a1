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
