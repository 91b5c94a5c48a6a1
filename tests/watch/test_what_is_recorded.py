"""What people see of a job that is led by a register has its verdict once that is recorded: a
leader that is deposed before has told nobody of an end that never was."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace
from tests.harness.job_machine import CANDIDATE, RULES, failed, running
from tests.watch.test_what_wishes_hear import Place, Wire, in_loop

from rallypoint.coordinator.connection import ServerConnection
from rallypoint.coordinator.watching import JobWatch
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.job_state import PersonWants
from rallypoint.core.sessions import Sessions
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.history_file import Line
from rallypoint.core.watch.job_view import JobView
from rallypoint.core.watch.questions import Subject

NO_RESTARTS = replace(RULES, max_restarts=0)


def decided(place: Place) -> None:
    """A worker fails while the register is away, and no restart is left."""
    place.register.is_away = True
    stamp = jobs.stamp(place.sessions.job)
    place.says(place.nodes[0], 3, m.Failed(stamp, (failed(),)))
    for node in place.nodes:
        place.says(node, 4, m.Join(2, CANDIDATE))
    assert place.sessions.verdict is not None


def asks(place: Place, question: m.Ask, number: int = 8) -> Wire:
    person = Wire(number)
    place.job.asked(cast(ServerConnection, person), question)
    return person


def answers(person: Wire) -> list[m.Answer]:
    return [message for message in person.sent if isinstance(message, m.Answer)]


def views(person: Wire) -> list[JobView]:
    return [msgspec.json.decode(one.piece, type=JobView) for one in answers(person)]


def events(person: Wire) -> list[str]:
    return [msgspec.json.decode(one.piece, type=HistoryEntry).event for one in answers(person)]


def test_L3_a_status_has_the_verdict_when_it_is_recorded() -> None:
    def test(place: Place) -> None:
        lines: list[Line] = []
        place.job.watch.write_to(lines.append, took_over=False)
        decided(place)
        person = asks(place, m.Ask(Subject.STATUS, follow=True))
        (early,) = views(person)
        assert early.verdict is None
        assert (early.state, early.waits_for) == ("ending", "its end to be recorded")
        verdict = place.sessions.verdict
        assert verdict is not None
        assert verdict.text not in answers(person)[0].piece.decode() + repr(lines)
        place.register.tell()
        late = views(person)[1]
        assert late.verdict is not None
        assert (late.state, late.waits_for) == ("failed", "")
        assert late.past[-1].cause is not None
        assert answers(person)[1].is_last
        assert verdict.text in repr(lines)

    in_loop(test, NO_RESTARTS)


def test_L3_the_time_until_the_end_is_recorded_is_no_work() -> None:
    async def test() -> None:
        host, clock = running(), [0.0]
        watch = JobWatch(Sessions(host.job, 1), lambda: clock[0], lambda number: None)
        watch.noted()
        clock[0] = 10.0
        host.step(PersonWants(Subject.CANCEL))
        watch.noted()
        clock[0] = 1000.0
        watch.noted()
        watch.record(host.records[-1])
        assert watch.view.goodput.wall_s == 10.0

    asyncio.run(test())


def test_L3_who_follows_events_while_the_end_is_recorded_hears_it() -> None:
    def test(place: Place) -> None:
        decided(place)
        person = asks(place, m.Ask(Subject.EVENTS, follow=True))
        assert "verdict" not in events(person)
        assert not any(one.is_last for one in answers(person))
        place.register.tell()
        assert events(person)[-1] == "verdict"
        assert answers(person)[-1].is_last

    in_loop(test, NO_RESTARTS)


@pytest.mark.parametrize("subject", [Subject.RESTART, Subject.CHECKPOINT, Subject.CANCEL])
def test_L3_a_wish_while_the_end_is_recorded_hears_it(subject: Subject) -> None:
    def test(place: Place) -> None:
        decided(place)
        person = place.wants(subject)
        assert person.sent == []
        place.register.is_away = False
        place.register.tell()
        (said,) = person.said
        assert said.text.startswith("the job failed: rank 0")

    in_loop(test, NO_RESTARTS)


def test_L3_nobody_hears_of_the_end_by_asking_for_stacks() -> None:
    def test(place: Place) -> None:
        decided(place)
        (early,) = answers(asks(place, m.Ask(Subject.STACKS)))
        assert early.refusal == "the job is ending"
        place.register.tell()
        (late,) = answers(asks(place, m.Ask(Subject.STACKS), 9))
        assert late.refusal.startswith("the job has ended: rank 0")

    in_loop(test, NO_RESTARTS)
