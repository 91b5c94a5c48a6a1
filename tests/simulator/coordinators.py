"""Simulated coordinators: the production `Coordinator` in a process of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from msgspec import Struct
from tests.simulator.facts import Accounts, Violation
from tests.simulator.loop import MachineClock, ProcessLoop, Schedule, new_loop
from tests.simulator.network import Listener, Network, Transport
from tests.simulator.register import RegisterCalls, SimulatedRegister
from tests.simulator.training import Training
from tests.simulator.workers import Badness, Program, Witness

from rallypoint.config import AgentConfig
from rallypoint.coordinator.connection import FramedConnection, ServerConnection
from rallypoint.coordinator.hosting import Hosting, Leaderships
from rallypoint.coordinator.leading.leader_process import LocalLeader, Runtime
from rallypoint.coordinator.leading.leadership import Leadership
from rallypoint.coordinator.leading.leaderships import ManyLeaderships
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import event_kinds as kinds
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.admission import AdmissionLimits
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, SessionLost
from rallypoint.core.model import NONCE_BITS, NodeRef, SharedSettings, Stamp
from rallypoint.core.node.events import Finish
from rallypoint.core.round_record import RoundRecord
from rallypoint.core.takeover.record import Process
from rallypoint.errors import MessageError
from rallypoint.wire.handshake import Established, ServerHandshake

WALL_MS = 1_000_000
"""The first wall clock shows about this."""
_ROUNDS = (kinds.ROUND_FORMED, kinds.ROUND_ENDED, kinds.ROUND_CHANGED, kinds.VERDICT)


class Observer(Witness, Protocol):
    """What follows everything that happens: the invariants and the transcript."""

    def steps(self, job: JobState, coordinator: int) -> None: ...

    def stepped(self, job: JobState, event: JobEvent, effects: list[JobEffect]) -> None: ...

    def read(
        self, incarnation: str, coordinator: int, message: m.ToCoordinator, *, is_late: bool
    ) -> None: ...

    def held(self, coordinator: int) -> None: ...

    def lost(self, incarnation: str, unread: int) -> None: ...

    def promised(self, incarnation: str, *, may_claim: bool) -> None: ...

    def lied(self, incarnation: str) -> None: ...

    def contradicted(self, coordinator: int) -> None: ...

    def told(self, incarnation: str, message: m.ToAgent) -> None: ...

    def closed(self, incarnation: str, coordinator: int, *, is_reset: bool) -> None: ...

    def follows(self, incarnation: str, epoch: int) -> None: ...

    def recorded(self, who: str, record: Record) -> None: ...

    def past(self, incarnation: int, past: RoundRecord) -> None: ...

    def finished(self, host: str, ref: NodeRef, finish: Finish | None, why: str) -> None: ...

    def crashed(self, who: str, error: BaseException) -> None: ...


class Simulated(Struct, frozen=True, eq=False):
    """What all machines share."""

    seed: int
    schedule: Schedule
    network: Network
    observer: Observer
    config: AgentConfig
    program: Program
    training: Training
    embedded: bool
    """The coordinator lives in the first agent; else in a process of its own."""
    coordinator_host: str
    lives: list[int]
    """How many coordinators there were: numbers them."""
    stores: dict[str, Stamp]
    """Which round store each machine has open."""
    settings: SharedSettings
    """Of the job."""
    bad: dict[str, Badness]
    """The defects of each machine, by its name."""
    wall_step_ms: int
    """The wall clock of each next coordinator is later by this."""

    def next_life(self) -> int:
        """The number of another one."""
        self.lives[0] += 1
        return self.lives[0]


class By(Struct, frozen=True, eq=False):
    """What a coordinator leads by."""

    number: int
    """Of this coordinator."""
    led: Leaderships
    is_held: Callable[[], bool]
    """Nobody else may lead now, by what the register has answered."""
    own_agent: str = ""
    """The incarnation of the agent that it lives in."""


def by_register(shared: Simulated, loop: ProcessLoop, register: SimulatedRegister) -> By:
    """Of a coordinator of its own. To be made in `loop`."""
    life = shared.next_life()
    name = f"{shared.seed} coordinator {life}"
    nonces = Random(f"{name} nonces")
    where = loop.host if register.knows_the_dead else name
    register.alive.add(life)
    calls = RegisterCalls(register, loop, name, partial(shared.observer.held, life))
    runtime = Runtime(
        loop.time,
        lambda process, own: (
            process.where == own.where and (process == own or process.pid not in register.alive)
        ),
        lambda: nonces.getrandbits(NONCE_BITS),
    )
    local = LocalLeader(Process(where, life, 0), calls, runtime)

    def on_wait(_: str, text: str) -> None:
        shared.observer.recorded(loop.host, kinds.WAITS_TO_LEAD(text))

    led = ManyLeaderships(lambda _: register, (loop.host,), on_wait, local)
    return By(life, led, lambda: calls.is_held)


class ListeningCoordinator(Coordinator):
    """Whose listener is simulated."""

    def __init__(self, hosting: Hosting, on_close: Callable[[], None]) -> None:
        super().__init__([], hosting, None, None, AdmissionLimits(10_000, 10.0))
        self._on_close = on_close

    def close(self) -> None:
        self._on_close()
        super().close()


class HostedCoordinator:
    """The production `Coordinator` in a simulated process."""

    def __init__(self, shared: Simulated, loop: ProcessLoop, by: By | None = None) -> None:
        """To be made in `loop`. `by`: None for one that another can't take over from."""
        lives_in_agent = by is not None and by.own_agent
        self._shared, self._loop, self._by = shared, loop, by
        self._name = "coordinator" if shared.embedded else loop.host
        if lives_in_agent:
            self._name = f"{loop.host} leads"
        self._connections = 0
        self._incarnations: dict[int, str] = {}
        self._transports: list[Transport] = []
        self._newest: dict[str, int] = {}
        """The newest connection of each agent."""
        self._accounts = Accounts(shared.training, loop)
        life = self.life = shared.next_life() if by is None else by.number
        first_ms = 1 if lives_in_agent else WALL_MS + life * shared.wall_step_ms
        hosting = Hosting(
            self._recorded,
            shared.settings if shared.embedded or lives_in_agent else None,
            self._machine,
            None if by is None else by.led,
            epoch=lambda: life,
            wall_ms=lambda: first_ms + int(shared.schedule.now_s),
            own_agent="" if by is None else by.own_agent,
        )
        listener = Listener(loop, self._accept)
        shut = partial(shared.network.shut, loop.host, listener)
        self.coordinator = ListeningCoordinator(hosting, shut)
        shared.network.listen(loop.host, listener)

    @property
    def _is_past_hold(self) -> bool:
        """It takes itself for the leader, and may be none any more."""
        by = self._by
        if by is None or by.led.of(self._shared.settings.run_id) is None:
            return False
        return not by.is_held()

    @property
    def leadership(self) -> Leadership | None:
        """The leadership of the job; None: this coordinator does not lead."""
        return None if self._by is None else self._by.led.of(self._shared.settings.run_id)

    # As an observer of connections: the coordinator, with somebody who listens in.

    def _accept(self, transport: Transport) -> FramedConnection:
        self._connections += 1
        self._transports = [each for each in self._transports if each.is_open]
        self._transports.append(transport)
        peer = transport.get_extra_info("peername")
        return ServerConnection(self, self._connections, f"{peer[0]}:{peer[1]}")

    def new_handshake(self) -> ServerHandshake:
        return self.coordinator.new_handshake()

    def established(self, connection: ServerConnection, established: Established) -> None:
        self.coordinator.established(connection, established)

    def received(self, connection: ServerConnection, message: m.ToCoordinator) -> None:
        if isinstance(message, m.Attach):
            self._incarnations[connection.number] = message.incarnation
            self._newest[message.incarnation] = connection.number
        if incarnation := self._incarnations.get(connection.number):
            self._shared.observer.read(incarnation, self.life, message, is_late=self._is_past_hold)
        self.coordinator.received(connection, message)
        if isinstance(message, m.Heartbeat) and (progress := message.progress) is not None:
            self._check(lambda: self._accounts.told(self.coordinator.jobs.all, progress))

    def closed(self, connection: ServerConnection) -> None:
        incarnation = self._incarnations.pop(connection.number, None)
        if incarnation is not None and self._newest[incarnation] == connection.number:
            is_reset = not connection.ended_by_peer
            self._shared.observer.closed(incarnation, self.life, is_reset=is_reset)
        self.coordinator.closed(connection)
        self._check_accounts()

    def failed(self, connection: ServerConnection, error: Exception) -> None:
        self._shared.observer.crashed(self._name, error)

    def misspoken(self, connection: ServerConnection, error: MessageError) -> None:
        self._shared.observer.crashed(self._name, error)

    def refused(self, connection: ServerConnection, why: str) -> None:
        self.coordinator.refused(connection, why)

    def _recorded(self, _run_id: str, record: Record) -> None:
        self._shared.observer.recorded(self._name, record)
        if record.kind in _ROUNDS:
            self._check_accounts()
        if record.kind is kinds.ROUND_FORMED:
            self._tell_of_rounds()

    def _tell_of_rounds(self) -> None:
        for job in self.coordinator.jobs.all:
            # The newest one may have ended in the same turn, and is not judged yet.
            for past in list(job.watch.history.rounds)[:-1]:
                if past.ended is not None and past.why:
                    self._shared.observer.past(job.life.incarnation, past)

    def _check_accounts(self) -> None:
        for job in self.coordinator.jobs.all:
            self._check(partial(self._accounts.check, job))

    def _check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Violation as violation:
            self._shared.observer.crashed(self._name, violation)

    def _machine(self, job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
        if isinstance(event, SessionLost):
            host = event.ref.incarnation.rpartition("-")[0]
            own = (each for each in self._transports if each.get_extra_info("peername")[0] == host)
            self._shared.observer.lost(event.ref.incarnation, sum(each.unread for each in own))
        self._shared.observer.steps(job, self.life)
        effects = jobs.step(job, event, at)
        self._shared.observer.stepped(job, event, effects)
        return effects


class CoordinatorProcess:
    """A coordinator of its own (`rallypoint serve`)."""

    def __init__(
        self,
        shared: Simulated,
        clock: MachineClock,
        host: str,
        register: SimulatedRegister | None = None,
    ) -> None:
        self._shared, self._register = shared, register
        crashed = shared.observer.crashed
        self.loop = new_loop(shared.schedule, clock, shared.network, host, crashed)
        self.hosted = self.loop.run(self._host)

    def _host(self) -> HostedCoordinator:
        shared, register = self._shared, self._register
        by = None if register is None else by_register(shared, self.loop, register)
        return HostedCoordinator(shared, self.loop, by)

    @property
    def leads(self) -> Leadership | None:
        """The leadership of the job; None: this coordinator does not lead."""
        return self.hosted.leadership

    def kill(self) -> None:
        """SIGKILL: all that it knew is gone."""
        if self._register is not None:
            self._register.alive.discard(self.hosted.life)
        self.loop.kill_process()
        self._shared.network.process_died(self.loop)


def is_fault(record: Record) -> bool:
    """An unexpected exception that the coordinator has survived."""
    return record.kind is kinds.FAULT
