"""Nodes that are lost, and those that keep getting lost (R3)."""

from __future__ import annotations

import pytest
from tests.harness.rounds import RoundHost, job, running

from rallypoint.core.events import JoinTimedOut, StopDelayed, StopRound, TimerKind, TooManyLosses
from rallypoint.core.model import Candidate, EndKind
from rallypoint.core.round_state import MemberState, RoundPhase, timers_wanted


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
    assert host.state.fitness.recent_losses == []
    assert host.member_state("b") is None
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
            assert host.member_state(node) is MemberState.RUNNING


def quarantine_s(host: RoundHost, node: str) -> float | None:
    """The length of the quarantine that this node is in; None: it is in none."""
    wanted = timers_wanted(host.state).items()
    found = (s for t, s in wanted if t.kind is TimerKind.QUARANTINE and t.id == node)
    return next(found, None)


def test_R3_a_node_lost_three_times_is_held_back_and_then_waits_for_the_next_round() -> None:
    host = running(1, 2, "a b", min_growth_interval_s=1.0, lease_s=15.0)
    flap(host, "b", 3)
    assert host.member_state("b") is MemberState.STANDBY
    host.fail("a")
    assert host.world == ["a"], "a round that begins anyway does not admit it either"
    host.pass_time(119.9)
    assert host.member_state("b") is MemberState.STANDBY
    host.pass_time(3000.0)
    assert host.member_state("b") is MemberState.WAITING, "no round ends for it"
    host.fail("a")
    assert host.world == ["a", "b"]


def test_R3_quarantine_doubles_with_each_further_loss_up_to_an_hour() -> None:
    host = running(1, 2, "a b", lease_s=15.0, max_node_losses_per_hour=99)
    lengths = []
    for number in range(1, 10):
        host.lose("b")
        host.join("b", incarnation=str(number))
        lengths.append(quarantine_s(host, "b"))
        if lengths[-1] is not None:
            host.pass_time(lengths[-1])
        host.fail("a")
        assert host.member_state("b") is MemberState.RUNNING
    assert lengths == [None, None, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]


def test_R3_healthy_hours_make_the_next_quarantine_shorter() -> None:
    host = running(1, 2, "a b", lease_s=15.0, min_growth_interval_s=1.0)
    flap(host, "b", 3)
    host.pass_time(120.0)
    host.fail("a")
    assert host.world == ["a", "b"]
    host.pass_time(3599.0)
    host.lose("b")
    host.join("b", incarnation="later")
    assert quarantine_s(host, "b") == 240.0
    host.pass_time(240.0)
    host.fail("a")
    host.pass_time(2 * 3600.0)
    assert not host.state.fitness.machines, "two healthy hours take two steps back"
    host.lose("b")
    host.join("b", incarnation="last")
    assert quarantine_s(host, "b") is None


def test_R3_an_hour_of_waiting_lets_a_round_end_for_a_node_but_forgets_nothing() -> None:
    host = running(1, 2, "a b", lease_s=15.0, min_growth_interval_s=1.0)
    flap(host, "b", 3)
    host.pass_time(120.0 + 3600.0)
    assert host.world == ["a", "b"]
    host.lose("b")
    host.join("b", incarnation="later")
    assert quarantine_s(host, "b") == 240.0


def test_R3_two_agents_of_one_machine_are_held_back_together() -> None:
    host = job(1, 4, lease_s=15.0, min_growth_interval_s=1.0, join_settle_s=0.0)
    host.join("a")
    for name in ("x0", "x1", "b"):
        machine = "rack-7" if name != "b" else ""
        host.join(name, candidate=Candidate(1, "worker", name, 29500, machine=machine))
    assert host.world == ["a", "b", "x0", "x1"]
    for number, name in enumerate(("x0", "x1", "x0")):
        candidate = host.state.members[name].candidate
        host.lose(name)
        host.join(name, incarnation=f"again{number}", candidate=candidate)
        host.pass_time(1.0)
    assert host.world == ["a", "b"]
    assert host.member_state("x0") is host.member_state("x1") is MemberState.STANDBY


def test_R3_below_the_minimum_a_node_that_is_held_back_is_taken_after_the_last_call() -> None:
    host = running(2, 3, "a b c", lease_s=15.0, min_growth_interval_s=1.0, last_call_s=30.0)
    for number in range(3):
        host.lose("c")
        host.join("c", incarnation=str(number))
        host.pass_time(1.0)
    assert host.world == ["a", "b"]
    host.lose("b")
    host.pass_time(29.0)
    assert host.member_state("c") is MemberState.STANDBY
    host.pass_time(1.0)
    assert host.world == ["a", "c"]


def test_R3_the_losses_of_one_machine_count_once_an_hour() -> None:
    host = running(1, 3, "a b c", max_node_losses_per_hour=1, min_growth_interval_s=1.0)
    for number in range(2):
        host.lose("b")
        host.join("b", incarnation=str(number))
        host.pass_time(1.0)
    assert not any(isinstance(e, TooManyLosses) for e in host.seen)
    host.lose("c")
    assert any(isinstance(e, TooManyLosses) for e in host.seen)


def test_R3_each_loss_of_a_machine_counts_without_which_the_minimum_is_not_met() -> None:
    host = running(2, 2, "a b", max_node_losses_per_hour=2)
    for number in range(3):
        assert not any(isinstance(e, TooManyLosses) for e in host.seen)
        host.lose("b")
        host.join("b", incarnation=str(number))
        host.pass_time(130.0)
    assert any(isinstance(e, TooManyLosses) for e in host.seen)


def test_R3_a_node_in_quarantine_keeps_no_healthy_one_from_the_job() -> None:
    host = running(1, 2, "a b", min_growth_interval_s=1.0, lease_s=15.0)
    flap(host, "b", 3)
    host.join("c")
    assert host.member_state("b") is MemberState.STANDBY, "it makes way"
    host.pass_time(1.0)
    assert host.world == ["a", "c"]


def test_R3_of_those_who_stand_by_a_trusted_one_takes_the_place() -> None:
    host = running(1, 2, "a b", min_growth_interval_s=1.0, lease_s=15.0)
    flap(host, "b", 3)
    host.come("c", "d")
    host.leave("c")
    assert (host.member_state("b"), host.member_state("d")) == (
        MemberState.STANDBY,
        MemberState.WAITING,
    )


def test_R3_losses_ten_minutes_ago_do_not_count_for_quarantine() -> None:
    host = running(1, 2, "a b", min_growth_interval_s=1.0)
    flap(host, "b", 2)
    host.pass_time(600.0)
    flap(host, "b", 1)
    host.pass_time(1.0)
    assert host.member_state("b") is MemberState.RUNNING


def test_R3_too_many_losses_within_an_hour() -> None:
    host = running(1, 20, "a b c d", max_node_losses_per_hour=2)
    host.lose("b")
    host.lose("c")
    assert not any(isinstance(e, TooManyLosses) for e in host.seen)
    assert TooManyLosses(3) in host.lose("d")


def test_R3_a_rack_that_is_lost_at_once_counts_once() -> None:
    """Also those of it that are missed while the others stop, and while the round is formed."""
    nodes = " ".join(f"n{number}" for number in range(40))
    host = running(1, 40, nodes, max_node_losses_per_hour=1)
    host.slow |= {"n20", "n21"}
    for number in range(11):
        host.lose(f"n{number}")
    host.lose("n20")
    host.pass_time(7.0)
    assert "n21" not in host.world, "expelled: would not stop"
    assert host.state.lossy_rounds == [0]
    host.lose("n30")
    assert TooManyLosses(2) in host.seen


def test_R3_ten_rounds_may_lose_nodes_and_the_eleventh_ends_the_job() -> None:
    host = running(1, 20, " ".join(f"n{number}" for number in range(20)))
    for number in range(10):
        host.lose(f"n{number}")
    assert not any(isinstance(e, TooManyLosses) for e in host.seen)
    host.lose("n10")
    assert TooManyLosses(11) in host.seen


def test_R3_losses_are_forgotten_after_an_hour() -> None:
    host = running(1, 20, "a b c d", max_node_losses_per_hour=2)
    host.lose("b")
    host.lose("c")
    host.pass_time(3600.0)
    host.lose("d")
    assert not any(isinstance(e, TooManyLosses) for e in host.seen)


def test_R3_losing_a_node_that_ran_nothing_is_not_counted() -> None:
    host = running(1, 2, "a", max_node_losses_per_hour=0)
    host.come("b", "c")
    host.lose("b")
    host.lose("c")
    host.leave("a")
    assert host.state.fitness.recent_losses == []


@pytest.mark.parametrize(("nodes", "late", "waits"), [(40, 2, 7), (40, 3, 67), (60, 3, 7)])
def test_R1_F3_many_that_are_slow_to_stop_at_once_are_waited_for(
    nodes: int, late: int, waits: int
) -> None:
    """More than two, and more than 5 %, of those that were told to stop."""
    names = [f"n{number:02}" for number in range(nodes)]
    host = running(1, nodes, " ".join(names))
    host.slow = set(names[-late:])
    host.fail("n00")
    host.pass_time(waits - 0.1)
    assert host.state.phase is RoundPhase.FORMING
    host.pass_time(0.1)
    assert host.world == names[:-late]
    assert host.state.lossy_rounds == [0]
    told = [effect for effect in host.seen if isinstance(effect, StopDelayed)]
    assert told == ([StopDelayed(tuple(names[-late:]), nodes, 7.0)] if waits > 7 else []), "once"


def test_R1_F3_the_roster_is_kept_for_many_that_stop_late() -> None:
    host = running(1, 5, "a b c d e", stop_patience_s=20.0)
    host.slow = {"b", "c", "d", "e"}
    host.fail("a")
    host.pass_time(26.0)
    host.lose("e")
    for node in ("d", "c", "b"):
        assert host.state.phase is RoundPhase.FORMING
        host.join(node)
    assert host.world == ["a", "b", "c", "d"], "who fell silent is lost all the same"
    host.fail("a")
    assert host.stops[-1].round == 1
    host.pass_time(7.0)
    assert len([e for e in host.seen if isinstance(e, StopDelayed)]) == 2, "at each end anew"


def test_R1_without_patience_many_that_are_slow_to_stop_are_expelled() -> None:
    host = running(1, 5, "a b c d e", stop_patience_s=0.0)
    host.slow = {"b", "c", "d", "e"}
    host.fail("a")
    host.pass_time(7.0)
    assert host.world == ["a"]
