"""A job of two nodes that runs at a real coordinator, without a network and without a real
register, and people who ask for something of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace
from tests.harness.job_machine import CANDIDATE, RULES, failed
from tests.harness.wires import Wire

from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.host_effects import HostEffect
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, PersonWants, new_job
from rallypoint.core.model import SharedSettings
from rallypoint.core.sessions import Sessions
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.job_view import JobView
from rallypoint.core.watch.questions import Subject

NO_RESTARTS = replace(RULES, max_restarts=0)


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


class Place:
    """The job, its nodes, and the people who ask for something."""

    def __init__(self, settings: SharedSettings = RULES) -> None:
        self.sessions = Sessions(new_job(settings), 1, self._machine)
        registers: list[Register] = []

        def opened(perform: Callable[[list[HostEffect]], None], _: object) -> Register:
            registers.append(Register(perform))
            return registers[0]

        self.job = HostedJob(self.sessions, lambda record: None, lambda: None, opened)
        (self.register,) = registers
        self.is_faulty = False
        """What a person wants raises in the job's machine."""
        self.nodes = [Wire(number) for number in range(2)]
        for node in self.nodes:
            hello = m.Attach(f"node-{node.number}", "host", f"life-{node.number}", 1, settings)
            self.job.attach(node, hello)
            self.says(node, 1, m.Join(1, CANDIDATE))
        stamp = jobs.stamp(self.sessions.job)
        for node in self.nodes:
            self.says(node, 2, m.Enrolled(stamp))
        assert self.sessions.job.started

    def _machine(self, job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
        if isinstance(event, PersonWants) and self.is_faulty:
            raise ValueError("nobody has expected this")
        return jobs.step(job, event, at)

    def says(self, node: Wire, number: int, report: m.Report) -> None:
        """One node reports this."""
        self.job.received(node, m.Numbered(number, report))

    def join_again(self, number: int) -> None:
        """All nodes do, with the report of this number: their workers have ended."""
        for node in self.nodes:
            self.says(node, number, m.Join(2, CANDIDATE))

    def asks(self, question: m.Ask, number: int = 8) -> Wire:
        """A person does, on the connection with this number."""
        person = Wire(number)
        self.job.asked(person, question)
        return person

    def fails_for_good(self) -> None:
        """A worker fails while the register is away, and no restart is left."""
        self.register.is_away = True
        stamp = jobs.stamp(self.sessions.job)
        self.says(self.nodes[0], 3, m.Failed(stamp, (failed(),)))
        self.join_again(4)
        assert self.sessions.verdict is not None

    def wants(self, subject: Subject) -> Wire:
        """A person wants this of the job."""
        return self.asks(m.Ask(subject))


@asynccontextmanager
async def running_job(settings: SharedSettings = RULES) -> AsyncIterator[Place]:
    place = Place(settings)
    yield place
    place.job.close()


def views(person: Wire) -> list[JobView]:
    """The job as a person who follows it sees it, one after the other."""
    return [msgspec.json.decode(one.piece, type=JobView) for one in person.all(m.Answer)]


def events(person: Wire) -> list[str]:
    """The names of the events that a person hears of."""
    entries = [msgspec.json.decode(one.piece, type=HistoryEntry) for one in person.all(m.Answer)]
    return [entry.event for entry in entries]
