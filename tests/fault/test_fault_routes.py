"""Nodes that reach the coordinator, and not each other (F9)."""

from __future__ import annotations

import time
from pathlib import Path

from tests.fault.hosts import HostCluster

NOWHERE = "192.0.2.7"
"""An address that no host has (RFC 5737)."""
SILENCE_S = 17.0
"""Longer than a node tries to enrol when the lease is short."""


def test_F9_a_newcomer_cut_from_rank_0_ends_no_round_and_joins_when_the_way_is_open(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "m", "a", "z", nnodes="2:3", lease=3) as cluster:
        m, a = cluster.agent("m", hosts=True), cluster.agent("a", hosts=False)
        assert [worker.node for worker in cluster.wait_workers(2, round=0)] == ["a", "m"]
        cluster.network.cut("z", "a")
        z = cluster.agent("z", hosts=False)
        told = z.wait_event("store_unreached").message
        assert "the current round continues without this node" in told
        assert f"node z at {cluster.network.address('z')} could not reach the round store" in told
        m.wait_event("node_held_back", "node z is held back for")
        assert "round_ended" not in [event.name for event in a.events]
        cluster.network.heal("z", "a")
        assert [worker.node for worker in cluster.wait_workers(3, round=1)] == ["a", "m", "z"]
        assert "round 0 ended: 1 more node joined" in a.said
        cluster.end_well(m, a, z)


def test_F9_a_node_alone_whose_address_nobody_reaches_runs_on_and_a_newcomer_hears_why(
    tmp_path: Path,
) -> None:
    """Alone it runs well: nobody else needs its store."""
    with HostCluster(tmp_path, "a", "b", nnodes="1:2") as cluster:
        [a] = cluster.running("a", local_addr=NOWHERE)
        b = cluster.agent("b", hosts=False)
        told = b.wait_event("store_unreached").message
        assert "the current round continues without this node" in told
        assert "--local-addr" in told
        a.wait_event("node_held_back", "node b is held back for")
        assert "round_ended" not in [event.name for event in a.events]
        cluster.end_well(a, b)
        assert [worker.node for worker in cluster.workers(0)] == ["a"]


def test_F9_a_rank_0_cut_from_everybody_but_the_coordinator_is_left_behind(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "s", "a", "b", "c", nnodes="2:3") as cluster:
        cluster.serve()
        cluster.network.cut("a", "b", "c")
        a, b, c = cluster.agents("a", "b", "c", hosts=None)
        assert [worker.node for worker in cluster.wait_workers(2, round=2)] == ["b", "c"]
        a.wait_event("expelled", "could not reach the round store")
        assert "was not reached by 2 of 2 other nodes (b, c): another node becomes rank 0" in b.said
        cluster.end_well(a, b, c)


def test_F9_two_nodes_cut_from_each_other_at_a_restart_try_both_and_one_goes_on(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "s", "a", "b", nnodes="1:2", max_restarts=1) as cluster:
        cluster.serve()
        a, b = cluster.running("a", "b", hosts=None)
        cluster.network.cut("a", "b")
        cluster.order("sys.exit(3)", round=0, node="b")
        b.wait_event("round_ended", "another node becomes rank 0", round=1)
        assert [worker.node for worker in cluster.wait_workers(1, round=3)] == ["b"]
        a.wait_event("expelled", "could not reach the round store")
        cluster.end_well(a, b)
        assert b.verdict["restarts"] == 1


def test_F9_a_silence_as_a_round_starts_is_waited_out_as_long_as_the_lease(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "s", "a", "b", nnodes=2, lease=40) as cluster:
        cluster.serve()
        cluster.network.cut("a", "b")
        a, b = cluster.agents("a", "b", hosts=None)
        a.wait_event("round_joined", round=0)
        time.sleep(SILENCE_S)
        cluster.network.heal("a", "b")
        cluster.wait_workers(2, round=0)
        cluster.end_well(a, b)


def test_F9_two_nodes_that_never_reach_each_other_end_with_the_reason(tmp_path: Path) -> None:
    conf = "join_timeout=16"
    with HostCluster(tmp_path, "s", "a", "b", nnodes=2, rdzv_conf=conf) as cluster:
        cluster.serve()
        cluster.network.cut("a", "b")
        agents = a, _ = cluster.agent("a"), cluster.agent("b")
        a.wait_event("expelled", "Open the port in the firewall between the two")
        assert [agent.wait_exit() for agent in agents] == [75, 75]
        assert "did not reach the round store: a" in a.verdict["reason"]
        assert cluster.workers() == []
