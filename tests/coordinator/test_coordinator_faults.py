"""A coordinator whose job machine raises: that ends one session at most, and is told once."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace
from tests.harness.sessions import Client, Rally, rally

from rallypoint.coordinator.hosted_job import RETRY_S
from rallypoint.core import event_kinds as kinds
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.events import TimerEnded, TimerKind
from rallypoint.core.job_state import JobEffect, JobEvent, SessionLost
from rallypoint.core.model import Outcome, SharedSettings, Stamp
from rallypoint.core.sessions import JobStep
from rallypoint.core.watch.questions import Subject

TWO = SharedSettings("job", 1, 2, reconnect_grace_s=0.05, last_call_s=0.01)


def machine_raising(*kinds: type[JobEvent | m.Report] | TimerKind) -> JobStep:
    def machine(job: jobs.JobState, event: JobEvent, at: float) -> list[JobEffect]:
        what = event.message if isinstance(event, m.FromNode) else event
        if type(what) in kinds or (isinstance(event, TimerEnded) and event.timer.kind in kinds):
            raise KeyError("rank 7")
        return jobs.step(job, event, at)

    return machine


def faults(place: Rally) -> list[str]:
    return [record.text for _, record in place.records if record.name == "fault"]


async def at_work(place: Rally) -> tuple[Client, Stamp]:
    """Node a, which was told of its first world, and that round."""
    a = await place.attached(TWO, "life-a", node_id="a")
    return a, (await a.joins()).stamp


@pytest.fixture
def place() -> AbstractAsyncContextManager[Rally]:
    return rally(TWO)


async def test_what_one_node_says_ends_its_session_and_no_other() -> None:
    async with rally(TWO, machine=machine_raising(m.HangSuspected)) as place:
        a = await place.attached(TWO, "life-a", node_id="a")
        b = await place.attached(TWO, "life-b", node_id="b")
        for client in (a, b):
            client.join()
        stamp = (await b.wait(m.Assigned)).stamp
        a.report(2, m.HangSuspected(stamp))
        await a.wait_closed()
        # The others re-form without it, as without a node that was lost.
        assert "a message of it can't be handled" in (await b.wait(m.StopNow)).reason.text
        await b.round_trip()
        (told,) = faults(place)
        assert "node a" in told
        assert "KeyError ('rank 7') at " in told
        assert "test_coordinator_faults.py:" in told
        assert "bug" in told


async def test_it_comes_back_as_a_newcomer_and_the_second_time_is_expelled_for_good() -> None:
    async with rally(TWO, machine=machine_raising(m.HangSuspected)) as place:
        a, stamp = await at_work(place)
        a.report(2, m.HangSuspected(stamp))
        await a.wait_closed()
        assert a.all(m.Expelled) == []
        again = await place.attached(TWO, "life-a", node_id="a", generation=2, opened=1)
        # It is a session of its own: what it was not acknowledged is not said again.
        assert not again.all(m.Attached)[0].resumed
        again.report(1, m.HangSuspected(stamp))
        await again.wait_closed()
        (expelled,) = again.all(m.Expelled)
        assert expelled.final, "it is no mistake in its command line"
        assert "can't be handled: unexpected KeyError" in expelled.why
        assert len(faults(place)) == 1
    assert faults(place)[1].startswith("there were 2 unexpected errors of one kind")


async def test_a_wait_of_the_job_that_can_not_be_applied_is_tried_again() -> None:
    failures = iter((True,))

    def machine(job: jobs.JobState, event: JobEvent, at: float) -> list[JobEffect]:
        if isinstance(event, TimerEnded) and next(failures, False):
            raise KeyError("rank 7")
        return jobs.step(job, event, at)

    async with rally(TWO, machine=machine) as place:
        await at_work(place)
        (told,) = faults(place)
        assert told.startswith("TimerEnded could not be applied: unexpected KeyError")


async def test_a_loss_that_is_applied_late_does_not_lose_an_agent_that_has_come_back() -> None:
    failures = iter((True,))

    def machine(job: jobs.JobState, event: JobEvent, at: float) -> list[JobEffect]:
        fails = isinstance(event, SessionLost) and next(failures, False)
        if fails or isinstance(event, m.HangSuspected):
            raise KeyError("rank 7")
        return jobs.step(job, event, at)

    async with rally(TWO, machine=machine) as place:
        a = await place.attached(TWO, "life-a", node_id="a")
        a.report(2, m.HangSuspected((await a.joins()).stamp))
        await a.wait_closed()
        again = await place.attached(TWO, "life-a", node_id="a", generation=2, opened=1)
        again.join(seq=2)
        assert (await again.wait(m.Assigned, 2)).stamp.round == 1
        await asyncio.sleep(RETRY_S)  # timers end in their order
        await again.round_trip()
        assert not [record for _, record in place.records if "node_lost" in record.name]
        again.report(2, m.Cancel("enough", 2))
        assert (await again.wait(m.Ended)).verdict.outcome is Outcome.CANCELLED


async def test_a_job_that_can_not_be_carried_on_is_ended_and_hangs_nobody() -> None:
    async with rally(TWO, machine=machine_raising(TimerKind.LAST_CALL)) as place:
        a = await place.attached(TWO, "life-a", node_id="a")
        a.join()
        verdict = (await a.wait(m.Ended)).verdict
        assert verdict.outcome is Outcome.INFRASTRUCTURE
        assert (
            "the coordinator failed three times at the same event: unexpected KeyError"
            in verdict.text
        )
        a.report(2, m.Leave())
        await place.coordinator.jobs.wait_empty()


async def test_a_coordinator_of_many_jobs_serves_the_others() -> None:
    other = replace(TWO, run_id="other")
    async with rally(None, machine=machine_raising(m.StacksCollected)) as place:
        a = await place.attached(TWO, "life-a", node_id="a")
        b = await place.attached(other, "life-b", node_id="b")
        for client in (a, b):
            client.join()
        stamp = (await a.wait(m.Assigned)).stamp
        a.report(2, m.StacksCollected(stamp, 1, None, -1))
        await a.wait_closed()
        await b.wait(m.Assigned)
        await b.round_trip()


async def test_V2_a_history_that_can_not_be_kept_disturbs_no_job(place: Rally) -> None:
    a = await place.attached(TWO, "life-a", node_id="a")
    (job,) = place.coordinator.jobs.all
    del job.watch.history.account  # which everything that happens is booked in
    stamp = (await a.joins()).stamp
    a.report(2, m.Succeeded(stamp))
    ended = await a.wait(m.Ended)
    assert (ended.verdict.outcome, ended.goodput) == (Outcome.SUCCEEDED, None)
    (told,) = faults(place)
    assert told.startswith("the history of the job can't be kept: unexpected AttributeError")


async def test_what_a_node_tells_a_person_can_not_end_its_session(place: Rally) -> None:
    a, _ = await at_work(place)
    (job,) = place.coordinator.jobs.all
    person = await place.dial(TWO, "")
    person.wire.send(m.Ask(Subject.LOGS, follow=True))
    wanted = await a.wait(m.Collect)
    gatherings = job.watch.gatherings
    loop = gatherings._loop
    del gatherings._loop  # by which it knows the time
    a.wire.send(m.Collected(wanted.number))
    await a.round_trip()
    gatherings._loop = loop
    assert len(faults(place)) == 1


async def test_an_answer_to_a_question_of_the_coordinator_before_needs_no_module(
    monkeypatch: pytest.MonkeyPatch, place: Rally
) -> None:
    a, _ = await at_work(place)
    # As where none can be read any more: no descriptor is left, or no disk.
    monkeypatch.setitem(sys.modules, "rallypoint.coordinator.gathering", None)
    a.wire.send(m.Collected(7))
    await a.round_trip()
    assert faults(place) == []


@pytest.mark.parametrize("subject", [Subject.STATUS, Subject.EVENTS, Subject.CHECKPOINT])
async def test_who_waits_for_a_job_hears_that_it_is_hosted_no_more(
    subject: Subject, place: Rally
) -> None:
    """Another coordinator may lead it."""
    a, _ = await at_work(place)
    person = await place.dial(TWO, "")
    person.wire.send(m.Ask(subject, follow=True))
    if subject is Subject.CHECKPOINT:
        await a.wait(m.CheckpointWanted)
    else:
        await person.wait(m.Answer)
    (job,) = place.coordinator.jobs.all
    job.close()
    await person.wait_closed()


async def test_V2_who_asks_for_more_events_than_fit_gets_the_newest_and_is_not_cut_off() -> None:
    async with rally(TWO, send_buffer=4096) as place:
        await at_work(place)
        (job,) = place.coordinator.jobs.all
        for number in range(1000):
            job.watch.history.record(kinds.PATIENCE(f"{number} {'x' * 2000}"), 0, 0.0)
        person = await place.dial(TWO, "")
        person.wire.send(m.Ask(Subject.EVENTS))
        newest = await person.wait(m.Answer)
        while not newest.is_last:
            newest = await person.wait(m.Answer, len(person.all(m.Answer)) + 1)
        assert 100 < len(person.all(m.Answer)) < 1000
        assert b"999 xxx" in newest.piece
