"""Late nodes, and those above the maximum (R2): who is admitted, and when."""

from __future__ import annotations

import pytest
from tests.harness.rounds import job, kinds, running

from rallypoint.core.model import EndKind
from rallypoint.core.round_state import MemberState, timers_wanted
from rallypoint.core.settings import OnJoin


def test_R2_late_nodes_wait_until_no_newcomer_has_come_for_a_while() -> None:
    host = running(1, 8, "a", min_growth_interval_s=0.0)
    host.join("b")
    assert host.member_state("b") is MemberState.WAITING
    host.pass_time(9.0)
    host.join("c")
    host.forms_after(10.0)
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
    host.forms_after(1.0)
    assert host.world == ["a", "b", "c"], "the first has waited for join_settle_max"

    host = running(1, 8, "a")
    host.pass_time(30.0)
    host.join("b")
    host.pass_time(25.0)
    host.join("c")
    host.forms_after(10.0)
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
    host.forms_after(60.0)
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
    assert host.member_state("e") is MemberState.WAITING, "no place is vacant any more"


def test_R2_hold_admits_nobody_and_waits_for_nothing() -> None:
    host = running(1, 3, "a", on_join=OnJoin.HOLD)
    host.come("b", "c")
    assert kinds(host) == set()
    host.pass_time(86_400.0)
    assert len(host.worlds) == 1


def test_R2_hold_admits_nobody_even_when_nothing_else_is_waited_for() -> None:
    host = running(1, 2, "a", on_join=OnJoin.HOLD, min_growth_interval_s=0.0, join_settle_s=0.0)
    host.join("b")
    assert host.stops == []
    assert host.member_state("b") is MemberState.WAITING


def test_R2_a_round_that_ends_anyway_admits_everyone() -> None:
    host = running(1, 3, "a", on_join=OnJoin.HOLD)
    host.come("b", "c")
    host.fail("a")
    assert host.world == ["a", "b", "c"]


def test_R2_a_newcomer_is_admitted_when_the_workers_of_more_nodes_fit() -> None:
    host = running(2, 6, "a b", min_growth_interval_s=0.0, world_multiple_of=2)
    host.join("c")
    host.pass_time(86_400.0)
    assert host.world == ["a", "b"]
    assert host.stops == []
    host.join("d")
    host.pass_time(host.settings.join_settle_s)
    assert host.world == ["a", "b", "c", "d"]


def test_R2_a_node_that_stood_by_because_it_did_not_fit_comes_in_with_the_next() -> None:
    host = running(2, 6, "a b c d", min_growth_interval_s=0.0, world_multiple_of=2)
    host.lose("b")
    assert host.world == ["a", "c"]
    assert host.member_state("d") is MemberState.STANDBY
    host.join("e")
    assert host.world == ["a", "c", "d", "e"]


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
    assert host.member_state("c") is MemberState.STANDBY
    assert timers_wanted(host.state) == before, "no timeout applies to it"
    host.pass_time(86_400.0)
    assert host.lose("c") == []
    assert host.stops == []


@pytest.mark.parametrize("goes", ["lost", "draining"])
def test_R2_who_stands_by_is_promoted_at_once_when_a_participant_goes(goes: str) -> None:
    host = running(2, 2, "a b")
    host.join("c")
    {"lost": host.lose, "draining": host.drain}[goes]("a")
    assert host.world == ["b", "c"]
    assert host.timers.now_s == host.settings.last_call_s


def test_R2_survivors_go_before_those_who_stand_by() -> None:
    host = running(2, 2, "b c")
    host.join("a")
    host.fail("b")
    assert host.world == ["b", "c"]
    assert host.member_state("a") is MemberState.STANDBY


@pytest.mark.parametrize("goes", ["lost", "left", "draining"])
def test_R2_who_stands_by_takes_the_place_of_one_who_waited(goes: str) -> None:
    host = running(1, 2, "a")
    host.come("b", "c", "d")
    assert [host.member_state(node) for node in "bcd"] == [
        MemberState.WAITING,
        MemberState.STANDBY,
        MemberState.STANDBY,
    ]
    {"lost": host.lose, "left": host.leave, "draining": host.drain}[goes]("b")
    assert host.member_state("c") is MemberState.WAITING
    assert host.member_state("d") is MemberState.STANDBY
    host.pass_time(60.0)
    assert host.world == ["a", "c"]
