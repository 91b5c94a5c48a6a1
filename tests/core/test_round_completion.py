"""When a round completes (R1), without a clock or a socket."""

from __future__ import annotations

from tests.harness.rounds import job, kinds, running

from rallypoint.core.events import (
    ExpelNode,
    FormWorld,
    JoinTimedOut,
    RoundReleased,
    RoundSettled,
    TimerKind,
)
from rallypoint.core.model import Candidate
from rallypoint.core.round_state import MemberState, RoundPhase


def test_R1_a_round_completes_at_once_at_the_maximum() -> None:
    host = job(1, 3)
    host.come("a", "b")
    assert host.worlds == []
    effects = host.join("c")
    assert isinstance(effects[0], FormWorld)
    assert host.world == ["a", "b", "c"]
    assert host.state.phase is RoundPhase.ACTIVE
    assert TimerKind.LAST_CALL not in kinds(host)


def test_R1_a_fixed_size_never_waits_for_a_last_call() -> None:
    host = job(2, 2)
    host.join("a")
    assert kinds(host) == {TimerKind.JOIN}
    host.join("b")
    assert host.world == ["a", "b"]


def test_R1_above_the_minimum_the_last_call_must_end() -> None:
    host = job(2, 4, last_call_s=30.0)
    host.come("a", "b")
    host.pass_time(29.9)
    host.join("c")
    assert host.worlds == []
    host.pass_time(0.1)
    assert host.world == ["a", "b", "c"]


def test_R1_the_last_call_is_cancelled_below_the_minimum_and_starts_anew() -> None:
    host = job(2, 4, last_call_s=30.0)
    host.come("a", "b")
    host.pass_time(20.0)
    host.lose("b")
    assert host.state.phase is RoundPhase.FORMING
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
    host.come("c", "d")
    assert len(host.worlds) == 1
    host.lose("d")
    host.join("b")
    assert host.world == ["a", "b", "c"]


def test_R1_the_minimum_holds_a_returned_roster_until_somebody_comes() -> None:
    host = running(3, 8, "a b c")
    host.lose("b")
    assert host.state.phase is RoundPhase.FORMING
    host.join("d")
    assert host.world == ["a", "d", "c"]


def test_R1_a_roster_that_is_lost_altogether_gives_way_to_the_last_call() -> None:
    host = running(1, 8, "a b")
    host.slow = {"a", "b"}
    host.fail("a")
    host.join("c")
    host.lose("a")
    host.lose("b")
    assert host.state.phase is RoundPhase.LAST_CALL
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
    assert host.member_state("b") is MemberState.WAITING


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


def test_R1_a_round_has_a_multiple_of_the_workers_that_were_asked_for_and_the_rest_stand_by() -> (
    None
):
    host = job(1, 8, world_multiple_of=4)
    for name in "abcdefg":
        host.join(name, candidate=Candidate(2, "r", name, 1))
    host.pass_time(host.settings.last_call_s)
    assert host.world == ["a", "b", "c", "d", "e", "f"]
    assert host.member_state("g") is MemberState.STANDBY


def test_R1_a_node_with_a_broken_device_stands_by_where_workers_must_fit() -> None:
    host = job(3, 3, world_multiple_of=8)
    for name, workers in (("a", 8), ("b", 7), ("c", 8)):
        host.join(name, candidate=Candidate(workers, "r", name, 1))
    assert host.worlds == []
    host.join("d", candidate=Candidate(8, "r", "d", 1))
    assert host.world == ["a", "c", "d"]


def test_R1_a_round_of_which_the_workers_do_not_fit_waits_for_the_join_timeout() -> None:
    host = job(2, 4, world_multiple_of=4)
    host.come("a", "b", "c")
    assert kinds(host) == {TimerKind.JOIN}
    host.join("c", candidate=Candidate(2, "r", "c", 1))
    assert kinds(host) == {TimerKind.LAST_CALL}, "it has joined again with other workers"
    host.pass_time(host.settings.last_call_s)
    assert host.world == ["a", "b", "c"]


def test_R1_a_roster_that_does_not_fit_any_more_leaves_nodes_out() -> None:
    host = running(2, 4, "a b c d", world_multiple_of=2)
    host.lose("d")
    assert host.world == ["a", "b"]
    assert host.member_state("c") is MemberState.STANDBY
