"""A coordinator that leads jobs by a register, and connections of agents without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.harness.leading_process import Stepwise, no_wait
from tests.harness.narrowed import known
from tests.harness.wires import Wire

from rallypoint.coordinator.hosting import HistorySink, Hosting
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.coordinator.leading.leadership import Leadership
from rallypoint.coordinator.leading.leaderships import ManyLeaderships
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Candidate, SharedSettings
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.register.record import Register

SETTINGS = SharedSettings("job", 2, 2)
CANDIDATE = Candidate(1, "default", "a", 29500)


class Host:
    """The coordinator."""

    def __init__(self, register: Register, history: HistorySink | None = None) -> None:
        self.waits: list[str] = []
        self.records: list[str] = []
        self.led = ManyLeaderships(
            lambda _: register, ("h:1",), lambda _, text: self.waits.append(text)
        )
        self.jobs = HostedJobs(Hosting(self._record, led=self.led, history=history))
        self._connections = 0

    def _record(self, _: str, record: Record) -> None:
        self.records.append(record.text)

    async def lead_as_candidate(self) -> Leadership:
        """Lead the job as a process that has stood ready for that."""
        candidacy = Stepwise(known(self.led.stand_ready("job", Deference())), no_wait)
        leadership = known(await candidacy.run())
        self.led.settle("job", leadership)
        return leadership

    def attach(self, hello: m.Attach) -> Wire:
        """An agent comes."""
        wire = self._connect()
        self.jobs.attach(wire, "job", hello)
        return wire

    def ask(self, question: m.Ask) -> Wire:
        """A person does."""
        wire = self._connect()
        self.jobs.asked(wire, "job", question)
        return wire

    def _connect(self) -> Wire:
        self._connections += 1
        return Wire(self._connections)

    def hang_up(self, wire: Wire) -> None:
        """The agent's connection ends."""
        wire.job.connection_closed(wire)

    def say(self, wire: Wire, number: int, report: m.Report) -> None:
        """The agent reports this."""
        wire.job.received(wire, m.Numbered(number, report))


@asynccontextmanager
async def host_of(register: Register, history: HistorySink | None = None) -> AsyncIterator[Host]:
    host = Host(register, history)
    yield host
    host.jobs.close()
    await host.led.vacate()


def fresh(incarnation: str, generation: int = 1) -> m.Attach:
    """An agent of node a that knows of no leader."""
    return m.Attach("a", "a", incarnation, generation, SETTINGS)
