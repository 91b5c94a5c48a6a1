"""Who gets which rank, and whose a node id is (R4)."""

from __future__ import annotations

from tests.harness.rounds import job, running

from rallypoint.core.events import ExpelNode, NodeJoined
from rallypoint.core.model import Candidate, NodeRef, WorldEntry
from rallypoint.core.ranks import Participant, order, worker_ranks
from rallypoint.core.round_state import MemberState


def test_R4_the_first_world_is_in_natural_order_whatever_came_first() -> None:
    host = job(4, 4)
    for node in ("node10", "node2", "node1", "Node3"):
        host.join(node)
    assert host.world == ["Node3", "node1", "node2", "node10"]


def test_R4_topology_goes_before_the_name() -> None:
    host = job(3, 3)
    for node, rack in (("a", "rack10"), ("b", "rack9"), ("c", "rack9")):
        host.join(node, candidate=Candidate(1, "worker", node, 1, topology=rack))
    assert host.world == ["b", "c", "a"]


def test_R4_numbers_of_any_length_are_compared() -> None:
    host = job(2, 2)
    long, longer = "n" + "0" * 10 + "9" * 5000, "n1" + "0" * 5000
    host.join(longer)
    host.join(long)
    assert host.world == [long, longer]


def test_R4_survivors_keep_their_order_and_rank_0_is_one_of_them() -> None:
    host = running(1, 4, "b c d")
    host.join("a")
    host.lose("b")
    assert host.world == ["c", "a", "d"]


def test_R4_a_newcomer_that_sorts_first_appends() -> None:
    host = running(1, 4, "b c")
    host.join("a")
    host.fail("b")
    assert host.world == ["b", "c", "a"]


def test_R4_holes_close_up() -> None:
    host = running(1, 4, "a b c d")
    host.lose("b")
    assert host.world == ["a", "c", "d"]


def participant(
    node: str, *, life: str = "1", workers: int = 1, role: str = "worker"
) -> Participant:
    return Participant(NodeRef(node, life), Candidate(workers, role, node, 1))


def place(node: str, *, workers: int = 1, role: str = "worker") -> WorldEntry:
    return WorldEntry(node, "1", workers, role)


def test_R4_a_vacant_place_goes_to_the_same_id_then_shape_then_sort_order() -> None:
    before = [place("a"), place("b"), place("c", workers=2), place("d"), place("e")]
    coming = [
        participant("z"),
        participant("y", workers=2),
        participant("d", life="2"),
        participant("a"),
        participant("e"),
    ]
    assert [s.ref.node_id for s in order(before, coming)] == ["a", "z", "y", "d", "e"]
    coming[1] = participant("y", workers=4)
    assert [s.ref.node_id for s in order(before, coming)] == ["a", "z", "y", "d", "e"]


def test_R4_a_newcomer_of_rank_0s_id_does_not_become_rank_0() -> None:
    host = running(2, 2, "a b")
    host.lose("a")
    host.join("a", incarnation="2")
    assert host.world == ["b", "a"]


def test_R4_a_live_duplicate_supersedes_the_older_one() -> None:
    host = running(2, 2, "a b")
    older = host.refs["b"]
    effects = host.join("b", incarnation="2")
    assert effects[0] == ExpelNode(older, "another agent has joined as node b", final=True)
    assert host.world == ["a", "b"]
    assert host.state.members["b"].ref == host.refs["b"]
    assert host.state.world[1].incarnation == "b.2"


def test_R4_a_superseded_agent_can_not_take_the_name_back() -> None:
    host = running(2, 2, "a b")
    older = host.refs["b"]
    host.join("b", incarnation="2")
    late = NodeJoined(older, 99, Candidate(1, "worker", "b", 1), host.settings)
    expelled = [ExpelNode(older, "another agent has joined as node b", final=True)]
    assert host.apply(late) == expelled
    host.leave("b")
    assert host.apply(late) == expelled


def test_R4_an_agent_that_slept_does_not_supersede_its_replacement() -> None:
    host = running(2, 2, "a b")
    sleeper = host.refs["b"]
    host.lose("b", "its lease expired")
    host.join("b", incarnation="2")
    worlds = len(host.worlds)
    late = NodeJoined(sleeper, 2, Candidate(1, "worker", "b", 1), host.settings)
    assert host.apply(late) == [
        ExpelNode(sleeper, "another agent has joined as node b", final=True)
    ]
    assert len(host.worlds) == worlds
    assert host.state.members["b"].ref == host.refs["b"]


def test_R4_an_agent_told_that_it_was_replaced_stays_out_when_its_replacement_is_gone() -> None:
    host = running(2, 2, "a b")
    sleeper = host.refs["b"]
    host.lose("b", "its lease expired")
    host.join("b", incarnation="2")
    expelled = [ExpelNode(sleeper, "another agent has joined as node b", final=True)]
    candidate = Candidate(1, "worker", "b", 1)
    assert host.apply(NodeJoined(sleeper, 2, candidate, host.settings)) == expelled
    host.leave("b")
    assert host.apply(NodeJoined(sleeper, 3, candidate, host.settings)) == expelled
    assert "b" not in host.state.members


def test_R4_an_expelled_agent_may_come_back_when_nobody_replaced_it() -> None:
    host = running(2, 2, "a b")
    host.lose("b", "its lease expired")
    host.join("b")
    assert host.world == ["a", "b"]


def test_R4_the_round_does_not_complete_between_the_old_agent_and_the_new() -> None:
    host = running(1, 3, "a b c")
    host.slow = {"c"}
    host.fail("a")
    host.join("c", incarnation="2")
    assert host.world == ["a", "b", "c"]


def test_R4_a_join_that_arrives_twice_counts_once() -> None:
    host = running(2, 2, "a b")
    again = NodeJoined(host.refs["a"], 1, Candidate(1, "worker", "a", 1), host.settings)
    assert host.apply(again) == []
    assert host.member_state("a") is MemberState.RUNNING


def test_R4_a_late_join_of_a_departed_agent_is_void() -> None:
    host = job(1, 3)
    host.join("a")
    first = NodeJoined(host.refs["a"], 1, Candidate(1, "worker", "a", 1), host.settings)
    host.leave("a")
    assert host.apply(first) == []
    assert host.member_state("a") is None


def test_R4_ranks_of_nodes_that_differ_in_workers_and_roles() -> None:
    world = [
        participant("a", workers=2, role="trainer"),
        participant("b", workers=1, role="reader"),
        participant("c", workers=4, role="trainer"),
        participant("d", workers=3, role="reader"),
    ]
    ranks = worker_ranks(world)
    assert [r.base_rank for r in ranks] == [0, 2, 3, 7]
    assert [r.base_role_rank for r in ranks] == [0, 0, 2, 1]
    assert [r.role_world_size for r in ranks] == [6, 4, 6, 4]


def test_R4_static_ranks_are_kept_whatever_came_before() -> None:
    host = job(3, 3, static=True)
    for node, rank in (("a", 2), ("b", 0), ("c", 1)):
        host.join(node, candidate=Candidate(1, "worker", node, 1, node_rank=rank))
    assert host.world == ["b", "c", "a"]
    host.lose("b")
    host.join("b", incarnation="2", candidate=Candidate(1, "worker", "b", 1, node_rank=0))
    assert host.world == ["b", "c", "a"]
