"""What people see of a job that is led by a register has its verdict once that is recorded: a
leader that is deposed before has told nobody of an end that never was."""

from __future__ import annotations

import pytest
from tests.harness.job_machine import running
from tests.harness.running_job import NO_RESTARTS, events, running_job, views

from rallypoint.coordinator.watching import JobWatch
from rallypoint.core import messages as m
from rallypoint.core.job_state import PersonWants
from rallypoint.core.sessions import Sessions
from rallypoint.core.watch.history_file import HistoryLine
from rallypoint.core.watch.questions import Subject


async def test_L3_a_status_has_the_verdict_when_it_is_recorded() -> None:
    async with running_job(NO_RESTARTS) as place:
        lines: list[HistoryLine] = []
        place.job.watch.write_to(lines.append, took_over=False)
        place.fails_for_good()
        person = place.asks(m.Ask(Subject.STATUS, follow=True))
        (early,) = views(person)
        assert early.verdict is None
        assert (early.state, early.waits_for) == ("ending", "its end to be recorded")
        verdict = place.sessions.verdict
        assert verdict is not None
        assert verdict.text not in person.all(m.Answer)[0].piece.decode() + repr(lines)
        place.register.tell()
        late = views(person)[1]
        assert late.verdict is not None
        assert (late.state, late.waits_for) == ("failed", "")
        assert late.past[-1].cause is not None
        assert person.all(m.Answer)[1].is_last
        assert verdict.text in repr(lines)


async def test_L3_the_time_until_the_end_is_recorded_is_no_work() -> None:
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


async def test_L3_who_follows_events_while_the_end_is_recorded_hears_it() -> None:
    async with running_job(NO_RESTARTS) as place:
        place.fails_for_good()
        person = place.asks(m.Ask(Subject.EVENTS, follow=True))
        assert "verdict" not in events(person)
        assert not any(one.is_last for one in person.all(m.Answer))
        place.register.tell()
        assert events(person)[-1] == "verdict"
        assert person.all(m.Answer)[-1].is_last


@pytest.mark.parametrize("subject", [Subject.RESTART, Subject.CHECKPOINT, Subject.CANCEL])
async def test_L3_a_wish_while_the_end_is_recorded_hears_it(subject: Subject) -> None:
    async with running_job(NO_RESTARTS) as place:
        place.fails_for_good()
        person = place.wants(subject)
        assert person.sent == []
        place.register.is_away = False
        place.register.tell()
        (said,) = person.said
        assert said.text.startswith("the job failed: rank 0")


async def test_L3_nobody_hears_of_the_end_by_asking_for_stacks() -> None:
    async with running_job(NO_RESTARTS) as place:
        place.fails_for_good()
        (early,) = place.asks(m.Ask(Subject.STACKS)).all(m.Answer)
        assert early.refusal == "the job is ending"
        place.register.tell()
        (late,) = place.asks(m.Ask(Subject.STACKS), 9).all(m.Answer)
        assert late.refusal.startswith("the job has ended: rank 0")
