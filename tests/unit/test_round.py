"""The round machine, behaviour by behaviour (R1 to R7, F4), without a clock or a socket."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.core.events import (
    ExpelNode,
    FormWorld,
    JobClosed,
    JoinTimedOut,
    NodeDraining,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSucceeded,
    RefuseNode,
    RoundFailed,
    RoundReleased,
    RoundSettled,
    StopRound,
    Timer,
    TimerEnded,
    TimerKind,
    TooManyLosses,
    WorkersFinishing,
    WorldSucceeded,
)
from rallypoint.core.model import Candidate, EndKind, NodeRef, Place, SharedSettings
from rallypoint.core.ranks import Seat, order, worker_ranks
from rallypoint.core.round_state import Phase, Standing
from rallypoint.core.round_timers import timers_wanted
from rallypoint.testing.virtual_time import RoundHost


def job(min_nodes: int, max_nodes: int, **others: object) -> RoundHost:
    settings = SharedSettings("job", min_nodes, max_nodes)
    return RoundHost(replace(settings, **others))


def running(min_nodes: int, max_nodes: int, nodes: str, **others: object) -> RoundHost:
    """A job whose first world consists of `nodes`."""
    host = job(min_nodes, max_nodes, **others)
    for node in nodes.split():
        host.join(node)
    host.pass_time(host.settings.last_call_s)
    assert host.world == nodes.split()
    return host


def kinds(host: RoundHost) -> set[TimerKind]:
    return {timer.kind for timer in timers_wanted(host.state)}


# ---- R1: completion


def test_R1_a_round_completes_at_once_at_the_maximum() -> None:
    host = job(1, 3)
    host.join("a")
    host.join("b")
    assert host.worlds == []
    effects = host.join("c")
    assert isinstance(effects[0], FormWorld)
    assert host.world == ["a", "b", "c"]
    assert host.state.phase is Phase.ACTIVE
    assert TimerKind.LAST_CALL not in kinds(host)


def test_R1_a_fixed_size_never_waits_for_a_last_call() -> None:
    host = job(2, 2)
    host.join("a")
    assert kinds(host) == {TimerKind.JOIN}
    host.join("b")
    assert host.world == ["a", "b"]


def test_R1_above_the_minimum_the_last_call_must_end() -> None:
    host = job(2, 4, last_call_s=30.0)
    host.join("a")
    host.join("b")
    host.pass_time(29.9)
    host.join("c")
    assert host.worlds == []
    host.pass_time(0.1)
    assert host.world == ["a", "b", "c"]


def test_R1_the_last_call_is_cancelled_below_the_minimum_and_starts_anew() -> None:
    host = job(2, 4, last_call_s=30.0)
    host.join("a")
    host.join("b")
    host.pass_time(20.0)
    host.lose("b")
    assert host.state.phase is Phase.FORMING
    assert kinds(host) == {TimerKind.JOIN}
    host.pass_time(20.0)
    assert host.worlds == []
    host.join("c")
    host.pass_time(29.0)
    assert host.worlds == []
    host.pass_time(1.0)
    assert host.world == ["a", "c"]


def test_R1_a_returned_roster_completes_at_once_below_the_maximum() -> None:
    host = running(1, 8, "a b c")
    host.fail("b")
    assert host.world == ["a", "b", "c"]
    assert host.state.round == 1
    assert host.timers.now_s == host.settings.last_call_s


def test_R1_the_roster_is_the_participants_and_all_who_wait() -> None:
    host = running(1, 8, "a b")
    host.join("c")
    host.slow = {"a", "b"}
    host.fail("a")
    assert {m.ref.node_id for m in host.state.members.values() if m.in_roster} == {"a", "b", "c"}
    host.join("a")
    assert len(host.worlds) == 1
    host.join("b")
    assert host.world == ["a", "b", "c"]


def test_R1_a_draining_node_is_not_of_the_roster() -> None:
    host = running(1, 8, "a b c")
    host.drain("b")
    assert host.world == ["a", "c"]


def test_R1_losses_shrink_the_roster() -> None:
    host = running(1, 8, "a b c")
    host.slow = {"b", "c"}
    host.fail("a")
    host.join("c")
    assert len(host.worlds) == 1
    host.lose("b")
    assert host.world == ["a", "c"]


def test_R1_the_drain_of_a_stopping_node_shrinks_the_roster() -> None:
    host = running(1, 8, "a b")
    host.slow = {"b"}
    host.fail("a")
    host.drain("b")
    assert host.world == ["a"]


def test_R1_arrivals_join_but_never_extend_the_roster() -> None:
    host = running(1, 8, "a b")
    host.slow = {"b"}
    host.fail("a")
    host.join("c")
    host.join("d")
    assert len(host.worlds) == 1
    host.lose("d")
    host.join("b")
    assert host.world == ["a", "b", "c"]


def test_R1_the_minimum_holds_a_returned_roster_until_somebody_comes() -> None:
    host = running(3, 8, "a b c")
    host.lose("b")
    assert host.state.phase is Phase.FORMING
    host.join("d")
    assert host.world == ["a", "d", "c"]


def test_R1_a_roster_that_is_lost_altogether_gives_way_to_the_last_call() -> None:
    host = running(1, 8, "a b")
    host.slow = {"a", "b"}
    host.fail("a")
    host.join("c")
    host.lose("a")
    host.lose("b")
    assert host.state.phase is Phase.LAST_CALL
    host.pass_time(host.settings.last_call_s)
    assert host.world == ["c"]


def test_R1_a_stopping_member_holds_the_round_and_then_would_not_stop() -> None:
    host = job(1, 2)
    host.join("a", candidate=Candidate(1, "worker", "a", 1, stop_grace_s=3.0))
    host.join("b", candidate=Candidate(1, "worker", "b", 1, stop_grace_s=7.0))
    host.slow = {"b"}
    host.fail("a")
    host.pass_time(8.9)
    assert len(host.worlds) == 1
    host.pass_time(0.1)
    assert host.world == ["a"]
    expelled = [e for e in host.seen if isinstance(e, ExpelNode)]
    assert expelled == [
        ExpelNode(host.refs["b"], "would not stop within 9 s", final=False),
    ]
    host.join("b")
    assert host.standing("b") is Standing.WAITING


def test_R1_the_gate_holds_a_round_until_the_end_has_been_judged() -> None:
    host = running(1, 2, "a b")
    host.judge = False
    host.slow = {"b"}
    host.fail("a")
    assert RoundSettled(1) not in host.seen
    effects = host.join("b")
    assert effects == [RoundSettled(1)]
    assert len(host.worlds) == 1
    host.apply(RoundReleased(0))
    assert len(host.worlds) == 1
    host.apply(RoundReleased(1))
    assert len(host.worlds) == 2


def test_R1_an_open_gate_does_not_replace_the_roster() -> None:
    host = running(1, 3, "a b")
    host.slow = {"b"}
    host.fail("a")
    host.apply(RoundReleased(1))
    assert len(host.worlds) == 1
    host.join("b")
    assert host.world == ["a", "b"]


def test_R1_who_waits_for_the_gate_does_not_time_out() -> None:
    host = running(1, 2, "a b", join_timeout_s=5.0)
    host.judge = False
    host.fail("a")
    assert TimerKind.JOIN not in kinds(host)
    host.pass_time(60.0)
    assert not any(isinstance(e, JoinTimedOut) for e in host.seen)


# ---- R2: growth


def test_R2_late_nodes_wait_until_no_newcomer_has_come_for_a_while() -> None:
    host = running(1, 8, "a", min_growth_interval_s=0.0)
    host.join("b")
    assert host.standing("b") is Standing.WAITING
    host.pass_time(9.0)
    host.join("c")
    host.pass_time(9.9)
    assert len(host.worlds) == 1
    host.pass_time(0.1)
    assert host.world == ["a", "b", "c"]
    assert [stop.reason.kind for stop in host.stops] == [EndKind.GROWTH]


def test_R2_newcomers_that_keep_coming_wait_at_most_join_settle_max() -> None:
    host = running(1, 100, "a", min_growth_interval_s=0.0)
    for second in range(0, 65, 5):
        host.join(f"b{second}")
        host.pass_time(5.0)
        if host.stops:
            break
    assert host.timers.now_s == host.settings.last_call_s + 60.0
    assert len(host.world) == 13


def test_R2_a_newcomer_in_a_settled_but_young_round_is_waited_for() -> None:
    host = running(1, 8, "a")
    host.join("b")
    host.pass_time(59.0)
    host.join("c")
    host.pass_time(0.9)
    assert len(host.worlds) == 1
    host.pass_time(0.1)
    assert host.world == ["a", "b", "c"], "the first has waited for join_settle_max"

    host = running(1, 8, "a")
    host.pass_time(30.0)
    host.join("b")
    host.pass_time(25.0)
    host.join("c")
    host.pass_time(9.9)
    assert len(host.worlds) == 1
    host.pass_time(0.1)
    assert host.world == ["a", "b", "c"]


def test_R2_a_full_world_is_called_without_settling() -> None:
    host = running(1, 3, "a", min_growth_interval_s=0.0)
    host.join("b")
    assert len(host.worlds) == 1
    host.join("c")
    assert host.world == ["a", "b", "c"]


def test_R2_no_growth_before_the_round_is_old_enough() -> None:
    host = running(1, 2, "a", min_growth_interval_s=60.0)
    host.join("b")
    host.pass_time(59.9)
    assert len(host.worlds) == 1
    host.pass_time(0.1)
    assert host.world == ["a", "b"]


def test_R2_a_vacant_place_is_filled_at_once() -> None:
    host = running(1, 8, "a b c", min_growth_interval_s=60.0)
    host.lose("b")
    assert host.world == ["a", "c"]
    host.pass_time(60.0)
    host.join("d")
    assert host.world == ["a", "c", "d"]
    host.pass_time(60.0)
    host.join("e")
    assert host.standing("e") is Standing.WAITING, "no place is vacant any more"


def test_R2_hold_admits_nobody_and_waits_for_nothing() -> None:
    host = running(1, 3, "a", grow=False)
    host.join("b")
    host.join("c")
    assert kinds(host) == set()
    host.pass_time(86_400.0)
    assert len(host.worlds) == 1


def test_R2_hold_admits_nobody_even_when_nothing_else_is_waited_for() -> None:
    host = running(1, 2, "a", grow=False, min_growth_interval_s=0.0, join_settle_s=0.0)
    host.join("b")
    assert host.stops == []
    assert host.standing("b") is Standing.WAITING


def test_R2_a_round_that_ends_anyway_admits_everyone() -> None:
    host = running(1, 3, "a", grow=False)
    host.join("b")
    host.join("c")
    host.fail("a")
    assert host.world == ["a", "b", "c"]


@pytest.mark.parametrize("every_s", [0.01, 0.1, 0.2, 0.24])
def test_R2_five_hundred_trickling_nodes_cause_at_most_two_growth_restarts(every_s: float) -> None:
    host = job(1, 1000)
    for number in range(500):
        host.join(f"node{number}")
        host.pass_time(every_s)
    host.pass_time(3600.0)
    assert len(host.world) == 500
    assert all(stop.reason.kind is EndKind.GROWTH for stop in host.stops)
    assert len(host.stops) <= 2


def test_R2_above_the_maximum_nodes_stand_by_and_trigger_nothing() -> None:
    host = running(2, 2, "a b")
    before = timers_wanted(host.state)
    assert host.join("c") == []
    assert host.standing("c") is Standing.STANDBY
    assert timers_wanted(host.state) == before, "no timeout applies to it"
    host.pass_time(86_400.0)
    assert host.lose("c") == []
    assert host.stops == []


def test_R2_who_stands_by_is_promoted_at_once_when_a_participant_is_lost() -> None:
    host = running(2, 2, "a b")
    host.join("c")
    host.lose("a")
    assert host.world == ["b", "c"]
    assert host.timers.now_s == host.settings.last_call_s


def test_R2_who_stands_by_is_promoted_when_a_participant_drains() -> None:
    host = running(2, 2, "a b")
    host.join("c")
    host.drain("a")
    assert host.world == ["b", "c"]


def test_R2_survivors_go_before_those_who_stand_by() -> None:
    host = running(2, 2, "b c")
    host.join("a")
    host.fail("b")
    assert host.world == ["b", "c"]
    assert host.standing("a") is Standing.STANDBY


@pytest.mark.parametrize("goes", ["lost", "left", "draining"])
def test_R2_who_stands_by_takes_the_place_of_one_who_waited(goes: str) -> None:
    host = running(1, 2, "a")
    host.join("b")
    host.join("c")
    host.join("d")
    assert [host.standing(node) for node in "bcd"] == [
        Standing.WAITING,
        Standing.STANDBY,
        Standing.STANDBY,
    ]
    {"lost": host.lose, "left": host.leave, "draining": host.drain}[goes]("b")
    assert host.standing("c") is Standing.WAITING
    assert host.standing("d") is Standing.STANDBY
    host.pass_time(60.0)
    assert host.world == ["a", "c"]


# ---- R3: loss


def test_R3_survivors_are_told_who_and_why_and_re_form() -> None:
    host = running(1, 3, "a b c")
    effects = host.lose("b", "its lease expired")
    assert isinstance(effects[0], StopRound)
    assert effects[0].round == 0
    assert effects[0].reason.kind is EndKind.LOSS
    assert effects[0].reason.node_id == "b"
    assert effects[0].reason.text == "node b was lost: its lease expired"
    assert host.world == ["a", "c"]


def test_R3_a_drain_ends_the_round_and_is_no_loss() -> None:
    host = running(1, 3, "a b")
    host.drain("b")
    assert host.stops[0].reason.kind is EndKind.DRAIN
    host.lose("b")
    assert host.state.losses == []
    assert host.standing("b") is None
    assert len(host.stops) == 1


def test_R3_a_node_that_joins_again_unasked_has_lost_its_workers() -> None:
    host = running(2, 2, "a b")
    host.join("b")
    assert [stop.reason.kind for stop in host.stops] == [EndKind.LOSS]
    assert host.world == ["a", "b"]
    assert host.state.round == 1


def test_R3_below_the_minimum_the_job_waits_for_a_replacement() -> None:
    host = running(2, 2, "a b", join_timeout_s=100.0)
    host.lose("a")
    host.pass_time(99.0)
    assert not any(isinstance(e, JoinTimedOut) for e in host.seen)
    host.join("c")
    assert host.world == ["b", "c"]
    host.pass_time(86_400.0)
    assert not any(isinstance(e, JoinTimedOut) for e in host.seen)


def test_R3_the_timeout_names_who_was_missing() -> None:
    host = running(3, 3, "a b c", join_timeout_s=100.0)
    host.lose("b")
    host.lose("c")
    host.pass_time(100.0)
    assert host.seen[-1] == JoinTimedOut(1, ("a",), ("b", "c"))


def test_R3_a_first_round_times_out_too() -> None:
    host = job(2, 2, join_timeout_s=100.0)
    host.join("a")
    host.pass_time(100.0)
    assert host.seen == [JoinTimedOut(0, ("a",), ())]


def flap(host: RoundHost, node: str, times: int) -> None:
    """The node is lost so often, and takes part again each time."""
    for number in range(times):
        host.lose(node)
        host.join(node, incarnation=f"again{number}")
        if number < times - 1:
            host.pass_time(1.0)
            assert host.standing(node) is Standing.RUNNING


def test_R3_a_node_lost_three_times_triggers_nothing_for_a_while() -> None:
    host = running(1, 2, "a b", min_growth_interval_s=1.0, lease_s=15.0)
    flap(host, "b", 3)
    assert host.standing("b") is Standing.WAITING
    host.pass_time(119.9)
    assert host.standing("b") is Standing.WAITING
    host.pass_time(0.1)
    assert host.standing("b") is Standing.RUNNING


def test_R3_quarantine_doubles_with_each_further_loss_up_to_ten_minutes() -> None:
    lengths = []
    for losses in range(1, 8):
        host = running(1, 2, "a b", lease_s=15.0, max_node_losses_per_hour=99)
        for number in range(losses):
            host.lose("b")
            host.join("b", incarnation=str(number))
            host.fail("a")
            assert host.standing("b") is Standing.RUNNING, "a round that ends anyway admits it"
        wanted = timers_wanted(host.state)
        lengths.append(wanted.get(Timer(TimerKind.QUARANTINE, id="b")))
    assert lengths == [None, None, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_R3_losses_ten_minutes_ago_do_not_count_for_quarantine() -> None:
    host = running(1, 2, "a b", min_growth_interval_s=1.0)
    flap(host, "b", 2)
    host.pass_time(600.0)
    flap(host, "b", 1)
    host.pass_time(1.0)
    assert host.standing("b") is Standing.RUNNING


def test_R3_too_many_losses_within_an_hour() -> None:
    host = running(1, 20, "a b c d", max_node_losses_per_hour=2)
    host.lose("b")
    host.lose("c")
    assert not any(isinstance(e, TooManyLosses) for e in host.seen)
    assert TooManyLosses(3) in host.lose("d")


def test_R3_losses_are_forgotten_after_an_hour() -> None:
    host = running(1, 20, "a b c d", max_node_losses_per_hour=2)
    host.lose("b")
    host.lose("c")
    host.pass_time(3600.0)
    host.lose("d")
    assert not any(isinstance(e, TooManyLosses) for e in host.seen)


def test_R3_losing_a_node_that_ran_nothing_is_not_counted() -> None:
    host = running(1, 2, "a", max_node_losses_per_hour=0)
    host.join("b")
    host.join("c")
    host.lose("b")
    host.lose("c")
    host.leave("a")
    assert host.state.losses == []


# ---- R4: ranks and identity


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


def seat(node: str, *, life: str = "1", workers: int = 1, role: str = "worker") -> Seat:
    return Seat(NodeRef(node, life), Candidate(workers, role, node, 1))


def place(node: str, *, workers: int = 1, role: str = "worker") -> Place:
    return Place(node, "1", workers, role)


def test_R4_a_vacant_place_goes_to_the_same_id_then_shape_then_sort_order() -> None:
    before = [place("a"), place("b"), place("c", workers=2), place("d"), place("e")]
    coming = [
        seat("z"),
        seat("y", workers=2),
        seat("d", life="2"),
        seat("a"),
        seat("e"),
    ]
    assert [s.ref.node_id for s in order(before, coming)] == ["a", "z", "y", "d", "e"]
    coming[1] = seat("y", workers=4)
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
    assert host.state.places[1].incarnation == "b.2"


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
    assert host.standing("a") is Standing.RUNNING


def test_R4_a_late_join_of_a_departed_agent_is_void() -> None:
    host = job(1, 3)
    host.join("a")
    first = NodeJoined(host.refs["a"], 1, Candidate(1, "worker", "a", 1), host.settings)
    host.leave("a")
    assert host.apply(first) == []
    assert host.standing("a") is None


def test_R4_ranks_of_nodes_that_differ_in_workers_and_roles() -> None:
    world = [
        seat("a", workers=2, role="trainer"),
        seat("b", workers=1, role="reader"),
        seat("c", workers=4, role="trainer"),
        seat("d", workers=3, role="reader"),
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


# ---- R5: leave is not close


@pytest.mark.parametrize("how", ["lost", "left", "draining"])
def test_R5_no_departure_closes_a_job(how: str) -> None:
    host = running(1, 2, "a b")
    go = {"lost": host.lose, "left": host.leave, "draining": host.drain}[how]
    go("a")
    go("b")
    assert host.state.phase is not Phase.CLOSED
    host.join("c")
    host.join("d")
    assert sorted(host.world) == ["c", "d"]


def test_R5_close_wins_over_everything_and_leaves_no_timer() -> None:
    host = running(1, 3, "a b")
    host.join("c")
    host.lose("b")
    assert len(host.timers) > 0
    host.apply(JobClosed())
    assert timers_wanted(host.state) == {}
    assert len(host.timers) == 0
    seen = len(host.seen)
    host.apply(JobClosed())
    host.join("d")
    host.join("a")
    host.lose("a")
    host.apply(RoundReleased(host.state.round))
    host.pass_time(86_400.0)
    assert host.state.phase is Phase.CLOSED
    assert len(host.seen) == seen


# ---- R6: nothing grows without need


def test_R6_gone_nodes_leave_nothing_behind_but_a_bounded_memory() -> None:
    host = job(2, 4)
    for number in range(5000):
        host.join(f"n{number}")
        host.lose(f"n{number}")
    assert host.state.members == {}
    assert len(host.state.departed) == 4096
    assert timers_wanted(host.state) == {}


# ---- R7: settings must match


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("min_nodes", 2),
        ("max_nodes", 9),
        ("run_id", "other"),
        ("max_restarts", 3),
        ("lease_s", 5.0),
    ],
)
def test_R7_a_conflict_is_refused_and_shows_both_sides(setting: str, value: object) -> None:
    host = job(1, 4)
    host.join("a")
    theirs = replace(host.settings, **{setting: value})
    ours = getattr(host.settings, setting)
    assert host.join("b", settings=theirs) == [RefuseNode(host.refs["b"], setting, ours, value)]
    assert host.standing("b") is None


def test_R7_a_refused_duplicate_does_not_supersede() -> None:
    host = running(2, 2, "a b")
    host.join("b", incarnation="2", settings=replace(host.settings, lease_s=1.0))
    assert host.state.members["b"].ref.incarnation == "b.1"
    assert host.stops == []


def test_R7_workers_and_roles_may_differ() -> None:
    host = job(2, 2)
    host.join("a", candidate=Candidate(8, "trainer", "a", 1))
    host.join("b", candidate=Candidate(1, "reader", "b", 1))
    assert host.world == ["a", "b"]


# ---- F4: round numbers


def test_F4_a_round_number_is_never_used_twice() -> None:
    host = running(1, 3, "a b")
    host.fail("a")
    host.lose("b")
    host.join("c")
    host.pass_time(60.0)
    host.lose("a")
    host.lose("c")
    host.join("d")
    host.pass_time(60.0)
    numbers = [world.round for world in host.worlds]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 4


def test_F4_reports_of_another_round_are_void() -> None:
    host = running(1, 2, "a b")
    host.fail("a")
    assert host.state.round == 1
    assert host.apply(RoundFailed(0, "late", "a")) == []
    assert host.apply(RoundFailed(2, "early", "a")) == []
    assert host.apply(NodeSucceeded(host.refs["a"], 0)) == []
    assert host.apply(WorkersFinishing(0)) == []
    assert not host.state.finishing
    assert host.apply(TimerEnded(Timer(TimerKind.STOP, 0))) == []
    assert len(host.worlds) == 2


def test_F4_events_of_another_incarnation_are_void() -> None:
    host = running(1, 2, "a b")
    stranger = NodeRef("a", "other")
    assert host.apply(NodeLost(stranger, "late")) == []
    assert host.apply(NodeLeft(stranger)) == []
    assert host.apply(NodeDraining(stranger, "late")) == []
    assert host.apply(NodeSucceeded(stranger, 0)) == []
    assert host.standing("a") is Standing.RUNNING


# ---- A4: how a round ends well


def test_A4_a_world_succeeds_when_all_its_nodes_have() -> None:
    host = running(2, 2, "a b")
    assert host.succeed("a") == []
    assert host.succeed("a") == []
    assert host.succeed("b") == [WorldSucceeded(0)]
    assert host.succeed("b") == []


def test_A4_arrivals_trigger_nothing_once_a_round_is_finishing() -> None:
    host = running(1, 3, "a b", min_growth_interval_s=0.0)
    host.apply(WorkersFinishing(0))
    host.join("c")
    host.pass_time(86_400.0)
    assert host.stops == []
    host.fail("a")
    assert host.world == ["a", "b", "c"]
    assert not host.state.finishing


def test_A4_a_node_lost_after_its_success_counts_as_succeeded() -> None:
    host = running(2, 2, "a b")
    host.succeed("a")
    assert host.lose("a") == []
    assert host.state.losses == []
    assert host.succeed("b") == [WorldSucceeded(0)]


def test_A4_a_failure_elsewhere_runs_an_early_finisher_again() -> None:
    host = running(2, 2, "a b")
    host.succeed("a")
    host.fail("b")
    assert host.state.round == 1
    assert host.succeed("b") == []
    assert host.succeed("a") == [WorldSucceeded(1)]


def test_A4_success_while_draining_is_no_success() -> None:
    host = running(1, 2, "a b")
    host.drain("a")
    assert host.succeed("a") == []
    assert host.succeed("b") == [WorldSucceeded(1)]
