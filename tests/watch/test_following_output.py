"""Who follows what workers write gets each line once, whatever connection breaks meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace
from tests.harness.job_machine import CANDIDATE, RULES
from tests.harness.running_job import Place
from tests.harness.virtual_time import in_virtual_time
from tests.harness.wires import Wire

from rallypoint.cli.parser import parse
from rallypoint.cli.watch.logs import LOGS, Logs
from rallypoint.clocks import CALLS_IN_A_TURN
from rallypoint.coordinator.gathering import TICK_S, Gatherings
from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.core import limits
from rallypoint.core import messages as m
from rallypoint.core.job_state import new_job
from rallypoint.core.model import Stamp
from rallypoint.core.sessions import Sessions
from rallypoint.core.settings import MAX_WORKERS_PER_NODE
from rallypoint.core.watch.collection_messages import (
    ALL_LINES,
    ANSWER_S,
    Gathered,
    HowFar,
    RankTold,
    WorkerAnswer,
)
from rallypoint.core.watch.questions import READ_MAX, ReadTo, Subject

FOLLOWS = m.Ask(Subject.LOGS, follow=True, newest=5)


def told(person: Wire) -> list[Gathered]:
    return [msgspec.json.decode(one.piece, type=Gathered) for one in person.all(m.Answer)]


def writes(place: Place, node: Wire, *lines: WorkerAnswer, round_: int = 0) -> None:
    """Its agent passes this on."""
    number = node.all(m.Collect)[-1].number
    place.job.collected(node, m.Collected(number))
    place.job.collected(node, m.Collected(number, round_, lines))


def comes_back(place: Place, number: int) -> Wire:
    """A node's connection has broken, and is there again."""
    old = place.nodes[number]
    place.job.connection_closed(old)
    new = place.nodes[number] = Wire(10 + number)
    hello = m.Attach(f"node-{number}", "host", f"life-{number}", 2, RULES, opened=1)
    stamp = m.Claim(m.Doing.RUNNING, Stamp(1, 0))
    place.job.attach(new, replace(hello, claim=stamp))
    return new


def tick(place: Place) -> None:
    place.job.watch.gatherings.check_deadlines()


async def test_V6_a_node_whose_connection_broke_goes_on_after_the_last_line_that_it_told(
    place: Place,
) -> None:
    person = place.asks(FOLLOWS)
    writes(
        place, place.nodes[1], WorkerAnswer(0, "one\n", 2, next=40), WorkerAnswer(1, "", 2, next=7)
    )
    writes(place, place.nodes[1], WorkerAnswer(0, "two\n", 2, next=44))
    again = comes_back(place, 1)
    tick(place)
    (question,) = again.all(m.Collect)
    assert question.read == (ReadTo(2, 2, 0, 44), ReadTo(3, 2, 0, 7))
    assert question.newest == 5, "of streams of which it has told nothing yet"
    assert [one.told[0].text for one in told(person)] == ["one\n", "two\n"]


async def test_V6_a_node_that_is_away_is_asked_when_it_is_back(place: Place) -> None:
    place.job.connection_closed(place.nodes[1])
    place.asks(FOLLOWS)
    tick(place)
    again = comes_back(place, 1)
    tick(place)
    tick(place)
    assert len(again.all(m.Collect)) == 1


async def test_V6_a_command_that_comes_again_says_to_each_node_how_far_it_is(place: Place) -> None:
    read = (ReadTo(0, 2, 0, 9), ReadTo(3, 1, 0, 8))
    place.asks(replace(FOLLOWS, newest=ALL_LINES, read=read, incarnation=1))
    assert [node.all(m.Collect)[0].read for node in place.nodes] == [read[:1], read[1:]]


async def test_V6_what_was_read_of_a_job_that_has_begun_anew_is_not_taken_for_this_one(
    place: Place,
) -> None:
    place.asks(replace(FOLLOWS, newest=ALL_LINES, read=(ReadTo(0, 2, 0, 9),), incarnation=7))
    (question,) = place.nodes[0].all(m.Collect)
    assert (question.read, question.newest) == ((), ALL_LINES)


def test_V6_a_command_says_that_the_job_has_begun_anew(capsys: pytest.CaptureFixture[str]) -> None:
    scanned = parse(LOGS, ["-f", "--last", "5"], {})
    logs = Logs(scanned, Logs.read_words(scanned))
    logs._take(Gathered("a", 3, (RankTold(0, "old", 1, next=4),), incarnation=1), 0.0)
    assert logs._further(FOLLOWS).read == (ReadTo(0, 1, 3, 4),)
    logs._take(Gathered("a", 0, (RankTold(0, "new", 1, next=9),), incarnation=2), 0.0)
    again = logs._further(FOLLOWS)
    assert (again.read, again.incarnation) == ((ReadTo(0, 1, 0, 9),), 2)
    assert "the job was started anew" in capsys.readouterr().err


def test_V6_as_many_places_as_there_may_be_are_taken_by_coordinators_and_nodes() -> None:
    def places(number: int) -> tuple[ReadTo, ...]:
        return tuple(ReadTo(index // 2, 1 + index % 2, 0, 5) for index in range(number))

    limits.check(replace(FOLLOWS, read=places(READ_MAX)))
    limits.check(m.Collect(1, Subject.LOGS, read=places(2 * MAX_WORKERS_PER_NODE)))


async def test_V6_lines_that_may_be_lost_since_a_round_has_ended_are_told_of(place: Place) -> None:
    person = place.asks(FOLLOWS)
    writes(place, place.nodes[1], WorkerAnswer(0, "one\n", 2, next=40))
    again = comes_back(place, 1)
    for number, node in enumerate(place.nodes):
        place.says(node, 3 + number, m.Join(2, CANDIDATE))
    assert place.job.round.round == 1
    tick(place)
    (question,) = again.all(m.Collect)
    assert question.newest == ALL_LINES, "nothing was read of the new round"
    missing = told(person)[-1].missing
    assert list(missing) == ["node-1"]
    assert "round 0 has ended since its connection broke" in missing["node-1"]
    tick(place)
    assert len(told(person)) == 2


async def test_V6_who_follows_waits_for_a_job_without_a_round() -> None:
    job = HostedJob(Sessions(new_job(RULES), 1), lambda record: None, lambda: None)
    person = Wire(7)
    job.asked(person, FOLLOWS)
    assert person.sent == []
    nodes = [Wire(number) for number in range(2)]
    for node in nodes:
        hello = m.Attach(f"node-{node.number}", "host", f"life-{node.number}", 1, RULES)
        job.attach(node, hello)
        job.received(node, m.Numbered(1, m.Join(1, CANDIDATE)))
    job.watch.gatherings.check_deadlines()
    assert [len(node.all(m.Collect)) for node in nodes] == [1, 1]
    job.close()


def test_V6_nodes_that_do_not_answer_are_named_and_the_answer_ends() -> None:
    async def body() -> None:
        place = Place()
        person = place.asks(m.Ask(Subject.STACKS))
        await asyncio.sleep(ANSWER_S + 2 * TICK_S)
        (answer,) = told(person)
        why = f"no answer within {ANSWER_S:g} s"
        assert answer.missing == {"node-0": why, "node-1": why}
        assert person.all(m.Answer)[-1].is_last
        place.job.close()

    in_virtual_time(body)


async def test_V6_the_answer_to_who_follows_ends_when_nodes_have_told_all_after_the_jobs_end(
    place: Place,
) -> None:
    person = place.asks(FOLLOWS)
    place.wants(Subject.CANCEL)
    for node in place.nodes:
        number = node.all(m.Collect)[-1].number
        place.job.collected(node, m.Collected(number, is_last=True))
    assert person.all(m.Answer)[-1].is_last


def test_a_place_of_a_round_before_does_not_replace_a_newer_one() -> None:
    read = HowFar()
    read.note(1, [RankTold(0, "", 2, next=5)])
    read.note(0, [RankTold(0, "", 2, next=900)])
    assert read.all == (ReadTo(0, 2, 1, 5),)


class Turn(Wire):
    """Notes in which turn of the loop it is asked."""

    turn, turns = 0, Counter[int]()

    def send(self, message: m.ToAgent | m.ToCoordinator) -> None:
        super().send(message)
        self.turns[Turn.turn] += isinstance(message, m.Collect | m.CollectMore)


async def test_a_question_to_thousands_of_nodes_is_sent_in_turns_and_withdrawn_so() -> None:
    nodes = 3 * CALLS_IN_A_TURN

    rules = replace(RULES, min_nodes=nodes, max_nodes=nodes)
    sessions = Sessions(new_job(rules), 1)
    wires = {number: Turn(number) for number in range(nodes)}
    for number in wires:
        hello = m.Attach("", "host", f"life{number}", 1, rules)
        sessions.attach(number, "10.0.0.1", hello, 0.0)
        sessions.received(number, m.Numbered(1, m.Join(1, CANDIDATE)), 0.0)
    gatherings = Gatherings(sessions, wires.get)
    for how in "asked", "not asked any more":
        Turn.turns.clear()
        if how == "asked":
            person = Wire(nodes)
            gatherings.begin(person, m.Ask(Subject.STACKS))
            assert person.sent == [], "nobody has answered yet"
        else:
            gatherings.closed(nodes)
        while sum(Turn.turns.values()) < nodes:
            Turn.turn += 1
            await asyncio.sleep(0)
        assert max(Turn.turns.values()) <= CALLS_IN_A_TURN, how
    gatherings.close()
