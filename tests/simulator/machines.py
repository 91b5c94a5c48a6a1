"""Simulated machines: an agent, its guard, its workers, and perhaps the coordinator.

The production code runs in them unchanged: `Agent`, `CoordinatorSession`, `Coordinator` and all
that they host. What is simulated is the kernel below: processes, clocks, the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from errno import ENOSPC
from functools import partial
from random import Random
from typing import Protocol

from msgspec.structs import replace
from tests.simulator.coordinators import HostedCoordinator, Observer, Simulated
from tests.simulator.loop import MachineClock, ProcessLoop, new_loop, start
from tests.simulator.workers import Badness, Place, SimulatedWorkers

from rallypoint.agent.agent import Agent, AgentLinks
from rallypoint.agent.helper_processes import NodeLease, wait_unless
from rallypoint.agent.node_workers import NodeWorkers, WorkerRound
from rallypoint.agent.progress_report import PhaseTeller, ProgressReport
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.coordinator.client.session import CoordinatorSession, Hooks
from rallypoint.coordinator.connection import ClientConnection, Dial, dial
from rallypoint.core import messages as m
from rallypoint.core.liveness import next_look_ns, overdue
from rallypoint.core.model import Assignment, Candidate, DeadPlace, Lacking, NodeRef, Stamp
from rallypoint.core.node.events import Finish, Tried
from rallypoint.core.session import AgentEnd, Identity, SessionRules
from rallypoint.errors import EnrolmentError, RallypointError
from rallypoint.process.death_report import NEXT_LEADER_S
from rallypoint.wire.address import Address, split_endpoint
from rallypoint.wire.death_notice import commitment

PORT = 29400
LAST_REPORTS_S = 2.0
MEET_AGAIN_S = 0.5
NS = 1_000_000_000


TELL_AGAIN_S = 0.3


class Will(Protocol):
    """What the guard does besides when its agent is dead."""

    def begin(self, loop: ProcessLoop) -> None: ...


class Registry(Protocol):
    """A register, as the guard of a dead agent reads it."""

    def open(self, loop: ProcessLoop) -> Callable[[DeadPlace], Awaitable[tuple[str, ...] | None]]:
        """Return a function that reads the register, and then decides as `leading.who_hears`."""


def _witness_has_told() -> None:
    """Do nothing: a simulated witness tells each signal at once."""


class Guard:
    """The process that outlives its agent, and ends the workers of one that is stopped."""

    def __init__(self, machine: Machine, loop: ProcessLoop) -> None:
        self._machine, self._loop = machine, loop
        self._held_until_ns = 0
        self._killed: set[int] = set()
        self._looks_at: float | None = None
        self.notice: m.AgentDied | None = None
        self.notice_to = ""
        """The machine of the coordinator."""
        self.place: Callable[[], DeadPlace | None] = lambda: None
        """The place of the agent in the newest world that it knows."""
        self.may_follow: Callable[[], bool] = lambda: False
        """Another coordinator may take over at that machine's name."""
        self.register: Registry | None = None
        """The next leader is found by it; None: the job has no register."""
        self._release: Will | None = None

    def leave(self, release: Will | None) -> None:
        """Do this when the agent and its workers are dead."""
        self._release = release

    def reach_no_register(self) -> None:
        """Tell the coordinator that the agent was connected to, and nobody else."""
        self.leave(None)
        self.place = lambda: None

    def hold(self, until_s: float) -> None:
        """The agent's lease ends then; 0: there is nothing to fence."""
        self._held_until_ns = int(until_s * NS)
        self._arm()

    def worker_registered(self) -> None:
        """One more runs."""
        self._arm()

    def agent_died(self) -> None:
        """Kill what it has left, and report it."""
        self._machine.place.kill(set(self._machine.place.workers))
        self._loop.call_later(0.05, self._tell_all)

    def _arm(self) -> None:
        workers = self._machine.place.workers
        now_ns = int(self._loop.time() * NS)
        wait_ns = next_look_ns(self._held_until_ns, now_ns, workers, self._killed)
        if wait_ns is None:
            return
        at_s = self._loop.time() + wait_ns / NS
        if self._looks_at is None or self._looks_at > at_s:
            self._looks_at = at_s
            self._loop.run(lambda: self._loop.call_at(at_s, self._look))

    def _look(self) -> None:
        self._looks_at = None
        workers = self._machine.place.workers
        now_ns = int(self._loop.time() * NS)
        late = overdue(self._held_until_ns, now_ns, workers, self._killed)
        self._killed |= late
        self._machine.place.kill(late)
        self._arm()

    def _tell_all(self) -> None:
        if self._release is not None:
            self._release.begin(self._loop)
        task = self._loop.create_task(self._tell(self.place(), may_follow=self.may_follow()))
        task.add_done_callback(lambda done: done.exception())

    async def _tell(self, place: DeadPlace | None, *, may_follow: bool) -> None:
        notice, is_told = self.notice, False
        died = m.AgentDied(self._machine.place.life, 0, b"", place=place)
        if notice is not None:
            died = replace(notice, place=place)
            is_told = await self._report(self.notice_to, died)
        if place is None:
            return
        end_s = self._loop.time() + NEXT_LEADER_S
        look = None if self.register is None else self.register.open(self._loop)
        while self._loop.time() < end_s:
            if look is not None:
                if (where := await look(place)) is None:
                    return
                for each in where:
                    if await self._report(split_endpoint(each, 0)[0], died):
                        break
            elif is_told or not may_follow:
                return
            else:
                is_told = await self._report(self.notice_to, died)
            await asyncio.sleep(TELL_AGAIN_S)

    async def _report(self, host: str, died: m.AgentDied) -> bool:
        addresses = (Address(host, PORT),)
        try:
            connection = await dial(addresses, self._machine.shared.settings.run_id, None)
        except RallypointError:
            return False
        connection.send(died)
        connection.close()
        return True


class Store:
    """This machine's way to the round stores (`agent.round_store.StoreAccess`)."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.unreachable: set[str] = set()

    def open(self, stamp: Stamp) -> None:
        self._machine.shared.stores[self._machine.name] = stamp

    def close(self) -> None:
        self._machine.shared.stores.pop(self._machine.name, None)

    def reaches(self, other: str) -> bool:
        """Whether the way to this machine is open, and something listens there."""
        own, shared = self._machine.name, self._machine.shared
        network = shared.network
        blocked = network.is_blocked(own, other) or network.is_blocked(other, own)
        return not blocked and other not in self.unreachable and other in shared.stores

    async def enrol(self, stamp: Stamp, assignment: Assignment, node_id: str) -> None:
        """As the real one: tries until the time is over."""
        shared, other = self._machine.shared, assignment.master_addr
        loop = asyncio.get_running_loop()
        end_s = loop.time() + shared.config.rendezvous.enrol_timeout_s
        while loop.time() < end_s:
            await asyncio.sleep(0.002)
            if self.reaches(other) and shared.stores.get(other) == stamp:
                return
            await asyncio.sleep(0.25)
        raise EnrolmentError(f"{other} does not answer")


class Session(CoordinatorSession):
    """One that somebody listens to."""

    def follow(self, observer: Observer) -> None:
        """Tell it what the coordinator says."""
        self._observer = observer

    def _received(self, message: m.ToAgent) -> None:
        incarnation = self._end.identity.incarnation
        self._observer.told(incarnation, message)
        super()._received(message)
        if self.attached is not None:
            self._observer.follows(incarnation, self.attached.epoch)


class AgentProcess:
    """One agent, from its start to its end."""

    def __init__(self, machine: Machine, loop: ProcessLoop, guard: Guard, *, hosts: bool) -> None:
        """To be made in `loop`. `hosts`: the coordinator lives here."""
        self._machine, self._loop, self._guard = machine, loop, guard
        shared = machine.shared
        self._lease = NodeLease(self._hold)
        self._hurried = asyncio.Event()
        self._report = ProgressReport(machine.shared.config, EventDispatcher(loop.time))
        self.store = Store(machine)
        links = AgentLinks(
            self.dispatcher,
            self.store,  # type: ignore[arg-type]
            self._hurried.set,
            self._lease.fence,
            None,
            self._try_to_start,
            look_at_witness=_witness_has_told,
        )
        self.agent = Agent(shared.config, self._make_workers, (15, 2, 1, 3), links)
        self.hosted = HostedCoordinator(shared, loop) if hosts else None
        self.workers: SimulatedWorkers | None = None
        self._random = Random(f"{shared.seed} {machine.place.life}")
        self.session: CoordinatorSession | None = None
        self.end: AgentEnd | None = None

    @property
    def dispatcher(self) -> EventDispatcher:
        """What the agent reports to."""
        return self._report.dispatcher

    async def main(self) -> None:
        """Take part to the end."""
        shared, name = self._machine.shared, self._machine.name
        connection = await self._meet()
        if connection is None:
            self._machine.ended(None, "no coordinator was found")
            return
        hosts = self.hosted is not None
        candidate = Candidate(
            shared.config.workers.count,
            "default",
            name,
            29500,
            stop_grace_s=shared.config.stop.restart_grace_s,
            machine=name,
            proves=True,
        )
        session = self.session = self._make_session(hosts)
        self._loop.watch(session.check_fence)
        self.agent.join(session, candidate, hosts=hosts)
        session.open(connection)
        finish: Finish | None = None
        try:
            finish = await self.agent.finished
            why = finish.text
        except RallypointError as error:
            why = str(error)
        await self.agent.workers.abandon()
        self._machine.observer_finished(finish, why)
        await self._close(session)
        self._machine.ended(finish, why)

    async def _try_to_start(self, order: m.Prove, _node_id: str) -> Tried:
        await asyncio.sleep(0.01)
        if self._machine.place.bad.full_since is not None:
            full = Lacking("write logs", ENOSPC)
            return Tried(order.stamp, order.number, "can't write logs: its disk is full", full)
        end_s = self._loop.time() + order.limit_s
        while self._loop.time() < end_s:
            if self.store.reaches(order.master_addr):
                return Tried(order.stamp, order.number)
            await asyncio.sleep(0.25)
        unreached = f"{order.master_addr} does not answer"
        return Tried(order.stamp, order.number, unreached=unreached)

    async def _close(self, session: CoordinatorSession) -> None:
        await wait_unless(self._hurried, session.close(LAST_REPORTS_S), LAST_REPORTS_S)
        self._guard.notice, self._guard.place = None, lambda: None
        if self.hosted is not None:
            stop = self._machine.shared.config.stop
            lease_s = self._machine.shared.settings.lease_s
            limit_s = lease_s + stop.shutdown_grace_s + LAST_REPORTS_S
            coordinator = self.hosted.coordinator
            await wait_unless(self._hurried, coordinator.jobs.wait_empty(), limit_s)
            coordinator.close()

    async def _meet(self) -> ClientConnection | None:
        """As discovery does, once it knows who hosts."""
        end_s = self._loop.time() + self._machine.shared.config.rendezvous.host_timeout_s
        while self._loop.time() < end_s:
            try:
                return await self._dial()
            except RallypointError:
                await asyncio.sleep(MEET_AGAIN_S)
        return None

    async def _dial(self) -> ClientConnection:
        shared = self._machine.shared
        addresses = (Address(shared.coordinator_host, PORT),)
        return await dial(addresses, shared.settings.run_id, None)

    def _make_session(self, hosts: bool) -> CoordinatorSession:
        shared = self._machine.shared
        ref = self._machine.ref
        identity = Identity(ref.node_id, self._machine.name, ref.incarnation)
        has_fence = shared.settings.max_nodes > 1 or not hosts
        on_held: Callable[[float], None] = self._lease.renewed if has_fence else lambda _: None
        if self.hosted is not None:
            self.hosted.coordinator.jobs.lives_in(identity.incarnation)
            hooks = Hooks(on_held, uniform=self._random.uniform)
        else:
            rounds, uniform = self._report.rounds, self._random.uniform
            hooks = Hooks(on_held, self._attaching, rounds=rounds, uniform=uniform)
        timeout_s = shared.config.rendezvous.reconnect_timeout_s
        end = AgentEnd(identity, shared.settings, SessionRules(timeout_s, has_fence=has_fence))
        return self._session_of(end, self._dial, hooks)

    def _session_of(self, end: AgentEnd, dial: Dial, hooks: Hooks) -> CoordinatorSession:
        self.end, tells = end, self._machine.shared.training.step_s > 0
        if tells:
            news = self._report.news
            hooks = replace(hooks, progress=lambda number: news(self.agent.stamp, number))
        session = Session(end, dial, self.agent, self._loop.time, hooks)
        if tells:
            self.dispatcher.subscribe(PhaseTeller(session.tell_progress))
        session.follow(self._machine.shared.observer)
        return session

    def _attaching(self, _connection: ClientConnection, generation: int) -> bytes:
        return self._leave_notice(self._machine.shared.coordinator_host, generation)

    def _leave_notice(self, host: str, generation: int) -> bytes:
        """With the guard, for the coordinator on this machine."""
        secret = self._random.randbytes(16)
        self._guard.place = self._dead_place
        self._guard.may_follow = lambda: self.session is not None and self.session.is_replaceable
        self._guard.notice = m.AgentDied(self._machine.place.life, generation, secret)
        self._guard.notice_to = host
        return commitment(secret)

    def _dead_place(self) -> DeadPlace | None:
        return None if self.end is None else self.end.dead_place

    def died(self) -> None:
        """Its process is gone."""

    def _make_workers(self, round_: WorkerRound) -> NodeWorkers:
        count = self._machine.shared.config.workers.count
        self.workers = SimulatedWorkers(self._machine.place, self._loop, count, round_)
        return self.workers

    def _hold(self, until_s: float) -> None:
        if self._machine.shared.settings.max_nodes > 1:
            self._guard.hold(until_s)


MakeProcess = Callable[["Machine", ProcessLoop, Guard], AgentProcess]


class Machine:
    """One node, in one life of its agent."""

    def __init__(
        self, shared: Simulated, name: str, ref: NodeRef, clock: MachineClock, make: MakeProcess
    ) -> None:
        self.shared, self.name, self.ref = shared, name, ref
        life = ref.incarnation
        self.place = Place(
            *(name, life, shared.seed, shared.schedule, clock, shared.program, shared.training),
            shared.observer,
            shared.bad.setdefault(name, Badness()),
        )
        make_loop = partial(
            new_loop, shared.schedule, clock, shared.network, name, shared.observer.crashed
        )
        self.loop, guard_loop = make_loop(), make_loop()
        self.guard = Guard(self, guard_loop)
        self._guard_loop = guard_loop
        self.place.follow(self.guard.worker_registered)
        self.is_over = self.has_vanished = False
        """The agent has ended, or was killed."""
        self.process = self.loop.run(lambda: make(self, self.loop, self.guard))
        start(self.loop, self.process.main)

    @property
    def doing(self) -> str:
        """What its agent does."""
        claim = self.process.agent.claim()
        return f"{claim.doing.value} {claim.stamp.round if claim.stamp else ''}".rstrip()

    def observer_finished(self, finish: Finish | None, why: str) -> None:
        """The agent has said how it ended."""
        self.shared.observer.finished(self.name, self.ref, finish, why)

    def ended(self, finish: Finish | None, why: str) -> None:
        """Its process exits."""
        if finish is None and self.process.session is None:
            self.observer_finished(finish, why)
        self._exit()
        self._guard_loop.kill_process()

    def kill(self) -> None:
        """SIGKILL to the agent."""
        if not self.is_over:
            self._exit()
            self.guard.agent_died()

    def vanish(self) -> None:
        """The machine loses its power."""
        self.has_vanished = True
        self.shared.network.vanish(self.name)
        self._exit()
        self._guard_loop.kill_process()
        self.place.lose_all()

    def discard(self) -> None:
        """At the very end of the simulation."""
        self.loop.discard()
        self._guard_loop.discard()

    def _exit(self) -> None:
        self.is_over = True
        self.process.died()
        self.shared.stores.pop(self.name, None)
        self.loop.kill_process()
        self.shared.network.process_died(self.loop)
