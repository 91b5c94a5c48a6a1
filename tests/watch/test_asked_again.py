"""A request whose answer was lost is made again, and done once."""

from __future__ import annotations

import msgspec
import pytest
from tests.harness.running_job import Place
from tests.harness.wires import Wire

from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.job_requests import of_other_life
from rallypoint.core.job_state import renumber
from rallypoint.core.watch.questions import Subject


def again(place: Place, subject: Subject, number: int = 9, node: str = "") -> Wire:
    """The same request on another connection, by who was answered nothing in round 0."""
    nodes = (node,) if node else ()
    life = place.sessions.job.incarnation
    return place.asks(m.Ask(subject, nodes=nodes, incarnation=life, asked_in=0), number)


def rounds_ended(place: Place) -> int:
    return [entry.event for entry in place.job.watch.history.entries].count("round_ended")


def starts(place: Place, number: int) -> None:
    """Its nodes form the next round, from their report of this number on."""
    place.join_again(number)
    for node in place.nodes:
        place.says(node, number + 1, m.Enrolled(jobs.stamp(place.sessions.job)))
    assert place.sessions.job.started


def drains(person: Wire) -> list[m.DrainAnswer]:
    return [msgspec.json.decode(one.piece, type=m.DrainAnswer) for one in person.all(m.Answer)]


async def test_a_restart_that_has_begun_is_not_made_twice(place: Place) -> None:
    place.job.connection_closed(place.wants(Subject.RESTART))
    person = again(place, Subject.RESTART)
    assert (rounds_ended(place), person.sent) == (1, [])
    starts(place, 3)
    assert [said.text for said in person.said] == ["round 1 has begun: 2 nodes, 4 workers"]
    late = again(place, Subject.RESTART, 10)
    assert [said.text for said in late.said] == ["round 1 has begun: 2 nodes, 4 workers"]
    assert rounds_ended(place) == 1


async def test_a_restart_that_was_lost_before_it_was_made_is_made(place: Place) -> None:
    again(place, Subject.RESTART)
    assert rounds_ended(place) == 1


async def test_a_cancel_whose_answer_was_lost_is_done(place: Place) -> None:
    place.wants(Subject.CANCEL)
    person = again(place, Subject.CANCEL)
    (said,) = person.said
    assert said.is_done
    assert said.text.startswith("the job was cancelled: a person cancelled it")


async def test_a_checkpoint_that_workers_save_already_is_not_asked_for_twice(place: Place) -> None:
    place.job.connection_closed(place.wants(Subject.CHECKPOINT))
    save = place.sessions.job.save
    person = again(place, Subject.CHECKPOINT)
    assert save is not None
    assert place.sessions.job.save is save
    answer = m.CheckpointAnswered(jobs.stamp(place.sessions.job), save.number, listens=True)
    for node in place.nodes:
        place.says(node, 3, answer)
    (said,) = person.said
    assert said.is_done


async def test_a_checkpoint_of_a_round_that_has_ended_meanwhile_is_not_said_to_be_saved(
    place: Place,
) -> None:
    place.wants(Subject.RESTART)
    starts(place, 3)
    (said,) = again(place, Subject.CHECKPOINT).said
    assert (said.is_done, said.text) == (
        False,
        "the round has ended: it is unknown whether a checkpoint was saved before",
    )


@pytest.mark.parametrize("subject", [Subject.CANCEL, Subject.RESTART, Subject.DRAIN])
async def test_what_was_wanted_of_an_earlier_life_of_a_job_is_not_done_to_the_next(
    subject: Subject, place: Place
) -> None:
    life = place.sessions.job.incarnation + 1
    request = m.Ask(subject, nodes=("node-0",), incarnation=life, asked_in=0)
    person = place.asks(request)
    assert person.refusal == (
        "the job was started anew since this request, which is not applied to the new one"
    )
    assert rounds_ended(place) == 0
    assert not place.nodes[0].all(m.DrainWanted)
    assert not of_other_life(place.sessions.job, m.Ask(subject))


async def test_A5_a_drain_goes_on_in_the_same_life_that_a_takeover_has_given_another_number(
    place: Place,
) -> None:
    job = place.sessions.job
    asked_in = jobs.stamp(job)
    renumber(job, job.incarnation + 1)
    request = m.Ask(
        Subject.DRAIN,
        nodes=("node-1",),
        incarnation=asked_in.incarnation,
        asked_in=asked_in.round,
    )
    person = place.asks(request)
    (first,) = drains(person)
    assert (first.text, first.done) == ("node node-1 was asked to leave", False)


async def test_A5_a_drain_is_a_question_with_two_answers(place: Place) -> None:
    person = place.asks(m.Ask(Subject.DRAIN, nodes=("node-1",)))
    (first,) = drains(person)
    assert (first.text, first.done) == ("node node-1 was asked to leave", False)
    place.says(place.nodes[1], 3, m.Leave())
    assert drains(person)[-1].done
    assert drains(person)[-1].text.startswith("node node-1 has left")


async def test_R7_a_command_of_before_hears_of_a_drain_as_it_did(place: Place) -> None:
    person = Wire(8)
    person.reads_drain_answers = True
    place.job.asked(person, m.DrainNode("node-1", "why").question)
    assert person.sent == [m.DrainAnswer("node node-1 was asked to leave", done=False)]
