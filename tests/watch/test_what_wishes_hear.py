"""What people who want something of a job hear: that it can't be done, or that it is done, when
that is recorded if another coordinator can take over the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from tests.core.test_takeover import running
from tests.harness.job_machine import CANDIDATE, RULES

from rallypoint.coordinator.connection import ServerConnection
from rallypoint.coordinator.gathering import Gatherings
from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.coordinator.watching import JobWatch
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.host_effects import HostEffect
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, PersonWants, new_job
from rallypoint.core.model import SharedSettings
from rallypoint.core.sessions import Sessions
from rallypoint.core.takeover.handover import Handover
from rallypoint.core.watch.questions import RankRange, Said, Subject


class Register:
    """A gate that is shut while the register is away."""

    def __init__(self, perform: Callable[[list[HostEffect]], None]) -> None:
        self._perform, self.is_away = perform, False
        self._kept: list[HostEffect] = []

    def after(self, effects: list[HostEffect]) -> list[HostEffect]:
        self._kept += effects if self.is_away else []
        return [] if self.is_away else effects

    def answer(
        self, heartbeat: m.Heartbeat, effects: list[HostEffect], connection: int, incarnation: str
    ) -> list[HostEffect]:
        return self.after(effects)

    @property
    def is_open(self) -> bool:
        return not self.is_away

    def close(self) -> None:
        pass

    def tell(self) -> None:
        """All that has waited, as it is recorded or can't be."""
        kept, self._kept = self._kept, []
        self._perform(kept)


class Wire:
    """What is said on one connection."""

    ended_by_peer, peer, is_closed = True, "10.0.0.1:40000", False

    def __init__(self, number: int) -> None:
        self.number, self.version = number, 3
        self.sent: list[m.ToAgent] = []

    def send(self, message: m.ToAgent) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass

    @property
    def said(self) -> list[Said]:
        pieces = [message.piece for message in self.sent if isinstance(message, m.Answer)]
        return [msgspec.json.decode(piece, type=Said) for piece in pieces]


class Place:
    """A job of two nodes that runs, led by a register."""

    def __init__(self, settings: SharedSettings = RULES) -> None:
        self.sessions = Sessions(new_job(settings), 1, self.machine)
        registers: list[Register] = []

        def opened(perform: Callable[[list[HostEffect]], None], _: object) -> Register:
            registers.append(Register(perform))
            return registers[0]

        self.job = HostedJob(self.sessions, lambda record: None, lambda: None, opened)
        (self.register,) = registers
        self.is_faulty = False
        self.nodes = [Wire(number) for number in range(2)]
        for node in self.nodes:
            hello = m.Attach(f"node-{node.number}", "host", f"life-{node.number}", 1, settings)
            self.job.attach(cast(ServerConnection, node), hello)
            self.says(node, 1, m.Join(1, CANDIDATE))
        stamp = jobs.stamp(self.sessions.job)
        for node in self.nodes:
            self.says(node, 2, m.Enrolled(stamp))
        assert self.sessions.job.started

    def machine(self, job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
        if isinstance(event, PersonWants) and self.is_faulty:
            raise ValueError("nobody has expected this")
        return jobs.step(job, event, at)

    def says(self, node: Wire, number: int, report: m.Report) -> None:
        self.job.received(cast(ServerConnection, node), m.Numbered(number, report))

    def wants(self, subject: Subject) -> Wire:
        person = Wire(7)
        self.job.asked(cast(ServerConnection, person), m.Ask(subject))
        return person


def in_loop(test: Callable[[Place], None], settings: SharedSettings = RULES) -> None:
    async def body() -> None:
        place = Place(settings)
        test(place)
        place.job.close()

    asyncio.run(body())


def test_L3_a_cancel_is_done_when_the_verdict_is_recorded() -> None:
    def test(place: Place) -> None:
        place.register.is_away = True
        person = place.wants(Subject.CANCEL)
        assert place.sessions.verdict is not None
        assert person.said == []
        place.register.is_away = False
        place.register.tell()
        (said,) = person.said
        assert said.is_done
        assert said.text.startswith("the job was cancelled: a person")

    in_loop(test)


def test_L3_a_cancel_that_nodes_hear_without_a_record_is_done() -> None:
    def test(place: Place) -> None:
        place.register.is_away = True
        person = place.wants(Subject.CANCEL)
        place.register.tell()
        assert [said.is_done for said in person.said] == [True]

    in_loop(test)


def test_L3_a_restart_is_done_when_its_round_is_recorded() -> None:
    def test(place: Place) -> None:
        person = place.wants(Subject.RESTART)
        for node in place.nodes:
            place.says(node, 3, m.Join(2, CANDIDATE))
        stamp = jobs.stamp(place.sessions.job)
        place.register.is_away = True
        for node in place.nodes:
            place.says(node, 4, m.Enrolled(stamp))
        assert place.sessions.job.started
        assert person.said == []
        place.register.is_away = False
        place.register.tell()
        assert [said.text for said in person.said] == ["round 1 has begun: 2 nodes, 4 workers"]

    in_loop(test)


def test_R7_a_checkpoint_that_an_older_node_can_not_be_asked_for_is_refused() -> None:
    def test(place: Place) -> None:
        place.nodes[1].version = 2
        (answer,) = place.wants(Subject.CHECKPOINT).sent
        assert isinstance(answer, m.Answer)
        assert answer.refusal == (
            "node node-1 runs an older version of Rallypoint, and can't be asked for it"
        )
        assert place.sessions.job.save is None

    in_loop(test)


def saves(place: Place, number: int) -> None:
    save = place.sessions.job.save
    assert save is not None
    answer = m.CheckpointAnswered(jobs.stamp(place.sessions.job), save.number, listens=True)
    for node in place.nodes:
        place.says(node, number, answer)


def test_a_checkpoint_is_not_done_because_an_older_one_was() -> None:
    def test(place: Place) -> None:
        first = place.wants(Subject.CHECKPOINT)
        saves(place, 3)
        assert [said.is_done for said in first.said] == [True]
        place.is_faulty = True
        second = place.wants(Subject.CHECKPOINT)
        assert second.said == []
        place.is_faulty = False
        wish = PersonWants(Subject.CHECKPOINT)
        assert place.sessions.apply_own(wish, 0.0)  # As when it is tried again.
        saves(place, 4)
        assert [said.is_done for said in second.said] == [True]

    in_loop(test)


def test_a_checkpoint_that_was_never_asked_for_is_not_done_when_its_round_ends() -> None:
    def test(place: Place) -> None:
        place.is_faulty = True
        person = place.wants(Subject.CHECKPOINT)
        place.is_faulty = False
        for node in place.nodes:
            place.says(node, 3, m.Join(2, CANDIDATE))
        (said,) = person.said
        assert not said.is_done
        assert said.text == "the round has ended before it was asked for"

    in_loop(test)


def refusal(person: Wire) -> str:
    (answer,) = person.sent
    assert isinstance(answer, m.Answer)
    return answer.refusal


@pytest.mark.parametrize("subject", [Subject.RESTART, Subject.CHECKPOINT])
def test_what_a_job_without_workers_waits_for_is_said(subject: Subject) -> None:
    def test(place: Place) -> None:
        for node in place.nodes:
            place.says(node, 3, m.Join(2, CANDIDATE))
        assert refusal(place.wants(subject)) == (
            "no workers run now: the job waits for nodes node-[0-1] to reach the store of rank 0: "
            "try again when rallypoint status shows that it runs"
        )

    in_loop(test)


@pytest.mark.parametrize(
    "question",
    [
        m.Ask(Subject.RESTART),
        m.Ask(Subject.CHECKPOINT),
        m.Ask(Subject.STACKS, ranks=(RankRange(2, 2),)),
        m.Ask(Subject.LOGS, nodes=("c",), newest=5),
    ],
    ids=lambda question: question.subject.value,
)
def test_L5_a_coordinator_that_has_taken_over_says_whom_it_waits_for(question: m.Ask) -> None:
    waits_for = (
        "3 of 3 nodes to come to this coordinator, which has taken it over (group rank 0, 1, 2 of "
        "round 0, where workers may run until its lease is over, 18 s at most)"
    )

    async def test() -> None:
        cluster, _ = running(3)
        cluster.take_over()
        watch = JobWatch(cluster.sessions, lambda: 0.0, lambda number: None)
        watch.take_over(Handover(cluster.record))
        person = Wire(7)
        assert not watch.asked(cast(ServerConnection, person), question)
        assert refusal(person) == (
            f"it is not known yet what runs: the job waits for {waits_for}: "
            "try again when rallypoint status shows that it runs"
        )
        assert watch.view.waits_for == waits_for

    asyncio.run(test())


def test_L5_who_follows_lines_waits_for_the_nodes_of_a_coordinator_that_has_taken_over() -> None:
    async def test() -> None:
        cluster, _ = running(2)
        cluster.take_over()
        watch = JobWatch(cluster.sessions, lambda: 0.0, lambda number: None)
        watch.take_over(Handover(cluster.record))
        person = Wire(7)
        watch.asked(cast(ServerConnection, person), m.Ask(Subject.LOGS, follow=True, nodes=("b",)))
        assert person.sent == []
        watch.gatherings.close()

    asyncio.run(test())


def test_L5_no_first_round_is_waited_for_when_no_node_has_come_to_the_next_coordinator() -> None:
    async def test() -> None:
        cluster, _ = running(2)
        cluster.take_over()
        gatherings = Gatherings(cluster.sessions, lambda number: None)
        cluster.sessions.apply(TimerEnded(Timer(TimerKind.RECOVERY)), 30.0)
        person = Wire(7)
        gatherings.begin(cast(ServerConnection, person), m.Ask(Subject.STACKS))
        assert refusal(person) == "no workers run yet: the job's next round has not begun"

    asyncio.run(test())
