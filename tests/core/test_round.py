"""The round machine: its end, its settings, its numbers and its success (R5 to R7, F4, A4)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.rounds import job, running

from rallypoint.core.events import (
    JobClosed,
    NodeDraining,
    NodeLeft,
    NodeLost,
    NodeSucceeded,
    RefuseNode,
    RoundFailed,
    RoundReleased,
    Timer,
    TimerEnded,
    TimerKind,
    WorkersFinishing,
    WorldSucceeded,
)
from rallypoint.core.model import Candidate, NodeRef
from rallypoint.core.round_state import MemberState, RoundPhase, timers_wanted

# ---- R5: leave is not close


@pytest.mark.parametrize("how", ["lost", "left", "draining"])
def test_R5_no_departure_closes_a_job(how: str) -> None:
    host = running(1, 2, "a b")
    go = {"lost": host.lose, "left": host.leave, "draining": host.drain}[how]
    go("a")
    go("b")
    assert host.state.phase is not RoundPhase.CLOSED
    host.come("c", "d")
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
    host.come("d", "a")
    host.lose("a")
    host.apply(RoundReleased(host.state.round))
    host.pass_time(86_400.0)
    assert host.state.phase is RoundPhase.CLOSED
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
    told = host.join("b", settings=theirs)
    assert told == [RefuseNode(host.refs["b"], ((setting, ours, value),))]
    assert host.member_state("b") is None


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
    assert host.member_state("a") is MemberState.RUNNING


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


def test_A4_success_while_draining_is_no_success() -> None:
    host = running(1, 2, "a b")
    host.drain("a")
    assert host.succeed("a") == []
    assert host.succeed("b") == [WorldSucceeded(1)]
