"""Whether the hosts of a launch suffice, and what its exit code is."""

from __future__ import annotations

import pytest

from rallypoint.cli.job_verdict import SummaryRead
from rallypoint.cli.launch.roster import HostPart, Roster


def said(outcome: str, code: int = 0) -> SummaryRead:
    return SummaryRead(outcome, code, "why", "node", 1)


def running(least: int, *names: str) -> Roster:
    roster = Roster(names, least)
    for name in names:
        roster.answered(name)
    roster.started()
    return roster


def test_hosts_suffice_when_enough_have_answered() -> None:
    roster = Roster(("a", "b", "c"), 2)
    roster.answered("a")
    roster.failed("b")
    assert not roster.suffices
    assert roster.those(HostPart.ASKED) == ["c"]
    roster.answered("c")
    assert roster.suffices
    roster.started()
    assert roster.those(HostPart.RUNS) == ["a", "c"]


@pytest.mark.parametrize(
    ("mistakes", "code"), [((True, True), 2), ((True, False), 75), ((False, False), 75)]
)
def test_only_mistakes_are_wrong_usage(mistakes: tuple[bool, bool], code: int) -> None:
    roster = Roster(("a", "b", "c"), 3)
    roster.answered("c")
    for name, is_mistake in zip("ab", mistakes, strict=True):
        roster.failed(name, is_mistake=is_mistake)
    assert roster.not_enough_code() == code


def test_the_job_goes_on_while_enough_are_left() -> None:
    roster = running(2, "a", "b", "c")
    roster.ended("b", None)
    assert not roster.too_few_are_left
    roster.ended("c", said("preempted", 143))
    assert roster.too_few_are_left
    roster.ended("a", said("preempted", 143))
    assert not roster.too_few_are_left, "nobody is left to be ended"


def test_agents_that_end_with_the_job_are_not_missed() -> None:
    roster = running(2, "a", "b")
    roster.ended("a", said("succeeded"))
    assert not roster.too_few_are_left


def test_a_host_that_was_lost_does_not_make_a_healed_job_fail() -> None:
    roster = running(1, "a", "b", "c")
    roster.ended("a", None)
    roster.ended("b", said("infrastructure", 75))
    roster.ended("c", said("succeeded"))
    assert roster.verdict() == ("c", said("succeeded"))
    assert roster.agrees("c", "succeeded")
    assert not roster.agrees("a", "succeeded")


def test_where_nobody_says_how_it_ended_there_is_no_verdict() -> None:
    roster = running(1, "a", "b")
    roster.ended("a", None)
    roster.failed("b")
    assert roster.verdict() is None
