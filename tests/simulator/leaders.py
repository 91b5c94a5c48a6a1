"""Simulated agents of which any may lead the job, by the simulated register.

The production `LeaderSearch` runs in each of them, over the production `LeadingNode`: only its
sockets are simulated, and what its guard's helper does when the agent of a leader is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from random import Random

from msgspec.structs import replace
from tests.simulator.coordinators import By, HostedCoordinator, Simulated
from tests.simulator.facts import parsed
from tests.simulator.loop import ProcessLoop
from tests.simulator.machines import LAST_REPORTS_S, PORT, AgentProcess, Guard, Machine
from tests.simulator.register import RegisterCalls, SimulatedRegister

from rallypoint.agent.helper_processes import wait_unless
from rallypoint.agent.leading import Hosts, LeadingNode
from rallypoint.coordinator.client.session import CoordinatorSession, Hooks
from rallypoint.coordinator.connection import ClientConnection
from rallypoint.coordinator.leading.leader_process import LocalLeader, Runtime
from rallypoint.coordinator.leading.leader_search import LeaderSearch, Listening, OwnLeadership
from rallypoint.coordinator.leading.leadership import Leadership
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import messages as m
from rallypoint.core.model import NONCE_BITS, DeadPlace, Epoch, Promise, epoch_number
from rallypoint.core.session import AgentEffect, AgentEnd, Identity, Send, SessionRules
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.leading import RELEASE_S, released, who_hears
from rallypoint.core.takeover.record import LeadRecord, Process
from rallypoint.core.takeover.told import Position
from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.register import record as register_record

RETRY_S = 0.1


class ObservedPromises(Promises):
    """The promises of one simulated agent, told to the observer."""

    def __init__(self, lease_s: float, on_promise: Callable[[], None]) -> None:
        super().__init__(lease_s)
        self._on_promise = on_promise
        self._on_lie: Callable[[], None] | None = None
        self._forged = self._said = 0

    def lie(self, forged: int, on_lie: Callable[[], None]) -> None:
        """Keep no promise from now on. `forged`: promise for the node of this number in the world,
        too; 0: for none. `on_lie` is called with each promise."""
        self._forged, self._on_lie = forged, on_lie
        super().saw(None)
        self._claims_after, self.until = None, -inf

    def claiming(self, found: LeadRecord | None) -> None:
        if self._on_lie is None:
            super().claiming(found)

    def saw(self, record: LeadRecord | None, *, is_newest: bool = True) -> None:
        if self._on_lie is None:
            super().saw(record, is_newest=is_newest)

    def offer(self, addresses: tuple[str, ...], now: float) -> None:
        super().offer(addresses if self._on_lie is None else (), now)

    def next(self, now: float, epoch: int) -> Promise | None:
        promise = super().next(now, epoch)
        if promise is None:
            return None
        if self._on_lie is None:
            self._on_promise()
            return promise
        self.until = -inf
        self._on_lie()
        self._said += 1  # Two in a row are of one rank: the second names the answer to the first.
        is_forged = self._forged and self._said // 2 % 2
        return replace(promise, rank=self._forged - 1) if is_forged else promise


class BoastingEnd(AgentEnd):
    """The session of an agent that says it was told a position that nobody has told it."""

    boasts = False

    def connected(self, now: float, claim: m.Claim, commitment: bytes = b"") -> list[AgentEffect]:
        effects = super().connected(now, claim, commitment)
        return [self._boast(effect) for effect in effects] if self.boasts else effects

    def _boast(self, effect: AgentEffect) -> AgentEffect:
        if not isinstance(effect, Send) or not isinstance(effect.message, m.Attach):
            return effect
        known = self.told or Position(Epoch(1, 1).as_int(), 0, 1)
        higher = Epoch(epoch_number(known.epoch) + 5, 1).as_int()
        told = replace(known, epoch=higher, last_round=known.last_round + 3, nodes=1)
        return Send(replace(effect.message, told=told))


class Node(LeadingNode):
    """That of one simulated agent."""

    def __init__(self, process: LeadingProcess, end: AgentEnd, hosts: Hosts) -> None:
        shared = process.shared
        super().__init__(process.agent, end, shared.config.rendezvous, None, hosts)
        self._spread = Random(f"{shared.seed} {process.life} spread").random()
        self._host = process.loop.host

    def listen(self) -> Listening:
        return Listening([], (f"{self._host}:{PORT}",))


class LeadingProcess(AgentProcess):
    """An agent that finds its leader by the register, or leads itself."""

    def __init__(
        self,
        machine: Machine,
        loop: ProcessLoop,
        guard: Guard,
        register: SimulatedRegister,
        dead: tuple[DeadPlace, ...] = (),
    ) -> None:
        """`dead`: what agents before it have left on that machine."""
        super().__init__(machine, loop, guard, hosts=False)
        self.shared, self.loop, self.life = machine.shared, loop, machine.place.life
        self._register = register
        self._number = machine.shared.next_life()
        own = self._own = OwnLeadership(machine.shared.settings.lease_s)
        promises = ObservedPromises(machine.shared.settings.lease_s, self._promises)
        own.promises = self._own_promises = promises
        self._calls = RegisterCalls(
            register, loop, f"{self.shared.seed} {self.life}", self._held, self._has_read
        )
        register.alive.add(self._number)
        rendezvous, ref = self.shared.config.rendezvous, machine.ref
        identity = Identity(ref.node_id, machine.name, self.life)
        rules = SessionRules(
            rendezvous.reconnect_timeout_s,
            vouched_at=own.vouched_at,
            promises=own.promises,
            dead=dead,
        )
        self._end = BoastingEnd(identity, self.shared.settings, rules)
        guard.register = NextLeader(self.shared, register, self.life)
        node = self._node = Node(self, self._end, Hosts(self._host, self._reconnect))
        run_id = self.shared.settings.run_id
        self.succession = LeaderSearch(register, self._local(), self._own, node, run_id)

    @property
    def number(self) -> int:
        """Of this process, as in the record of a leader."""
        return self._number

    @property
    def leads(self) -> Leadership | None:
        """The leadership of this agent; None: it does not lead."""
        return self._own.leadership

    def lie(self, forged: int) -> None:
        """Keep no promise from now on; as in `ObservedPromises`."""
        lied = partial(self.shared.observer.lied, self.life)
        lied()  # It may claim before the end of an honest promise.
        self._own_promises.lie(forged, lied)

    def boast(self) -> None:
        """Attach again, now and always, as one that knows a newer record than there is."""
        self._end.boasts = True
        self._reconnect("it boasts")

    def died(self) -> None:
        self._register.alive.discard(self._number)

    def _local(self) -> LocalLeader:
        nonces, alive = Random(f"{self.shared.seed} {self.life} nonces"), self._register.alive
        runtime = Runtime(
            self.loop.time,
            lambda process, own: (
                process.where == own.where and (process == own or process.pid not in alive)
            ),
            lambda: nonces.getrandbits(NONCE_BITS),
        )
        return LocalLeader(Process(self.loop.host, self._number, 0), self._calls, runtime)

    def _promises(self) -> None:
        self.shared.observer.promised(self.life, may_claim=self._calls.may_claim)

    def _has_read(self, data: bytes | None) -> None:
        if (led := self._own.leadership) is None:
            return
        found, known = None if data is None else parsed(data), led.lead.record
        if found is None or found.epoch != known.epoch or found.beat < known.beat:
            self.shared.observer.contradicted(known.epoch.as_int())

    def _held(self) -> None:
        if (epoch := self.succession.epoch) is not None:
            self.shared.observer.held(epoch.as_int())

    def _host(self, _listeners: object, _lookup_token: object) -> Coordinator:
        epoch = self.succession.epoch
        assert epoch is not None
        by = By(epoch.as_int(), self._own, lambda: self._calls.is_held, self.life)
        return HostedCoordinator(self.shared, self.loop, by).coordinator

    def _reconnect(self, why: str) -> None:
        if self.session is not None:
            self.session.reconnect(why)

    # What differs from an agent that knows who hosts, as in `agent.membership`

    async def _meet(self) -> ClientConnection | None:
        await asyncio.sleep(self._node.first_claim_delay_s)
        timeout_s = self.shared.config.rendezvous.join_timeout_s
        try:
            return await self.succession.connect(timeout_s, lambda text: None)
        except RallypointError:
            return None

    def _make_session(self, hosts: bool) -> CoordinatorSession:
        rounds, uniform = self._report.rounds, self._random.uniform
        hooks = Hooks(self._lease.renewed, self._attaching, rounds=rounds, uniform=uniform)
        return self._session_of(self._end, self.succession.dial, hooks)

    def _attaching(self, connection: ClientConnection, generation: int) -> bytes:
        if (epoch := self.succession.epoch) is None:
            self._guard.leave(None)
            return self._leave_notice(connection.peer.host, generation)
        self._guard.notice, self._guard.place = None, self._dead_place
        self._guard.leave(Release(self.shared, self._register, epoch, self.life))
        return b""

    async def _close(self, session: CoordinatorSession) -> None:
        succession, shared = self.succession, self.shared
        succession.stop()
        await wait_unless(self._hurried, session.close(LAST_REPORTS_S), LAST_REPORTS_S)
        self._guard.notice, self._guard.place = None, lambda: None
        self._guard.leave(None)
        led = succession.coordinator
        coordinator = led if led is not None and led.jobs.is_over else None
        if coordinator is not None:
            limit_s = shared.settings.lease_s + shared.config.stop.shutdown_grace_s + LAST_REPORTS_S
            await wait_unless(self._hurried, coordinator.jobs.wait_empty(), limit_s)
        is_heard = coordinator is not None and not coordinator.jobs.nodes
        await wait_unless(self._hurried, succession.close(is_heard=is_heard), LAST_REPORTS_S)


class NextLeader:
    """Where the guard of a dead agent looks for it."""

    def __init__(self, shared: Simulated, register: SimulatedRegister, life: str) -> None:
        self._shared, self._register, self._life = shared, register, life

    def open(self, loop: ProcessLoop) -> Callable[[DeadPlace], Awaitable[tuple[str, ...] | None]]:
        """Read the register from this process, as `release.who_hears` does."""
        name = f"{self._shared.seed} {self._life} teller"
        calls = RegisterCalls(self._register, loop, name, lambda: None)

        async def look(place: DeadPlace) -> tuple[str, ...] | None:
            try:
                found = await calls.submit(self._register.get_state)
            except RendezvousConnectionError:
                return ()
            return () if found is None else who_hears(register_record.decode(found[0]), place)

        return look


class Release:
    """What the guard of a leader does when it is dead, as `rendezvous.release`."""

    def __init__(
        self, shared: Simulated, register: SimulatedRegister, epoch: Epoch, life: str
    ) -> None:
        self._shared, self._register, self._epoch, self._life = shared, register, epoch, life

    def begin(self, loop: ProcessLoop) -> None:
        """In the helper of a guard, of this loop, which is killed if it takes too long."""
        rng = Random(f"{self._shared.seed} {self._life} release")
        name = f"{self._shared.seed} {self._life} helper"
        calls = RegisterCalls(self._register, loop, name, lambda: None)
        task = loop.run(lambda: loop.create_task(self._run(calls, rng.random())))

        def kill() -> None:
            calls.close()
            task.cancel()

        loop.call_later(RELEASE_S, kill)

    async def _run(self, calls: RegisterCalls, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            try:
                while (found := await calls.submit(self._register.get_state)) is not None:
                    record = released(register_record.decode(found[0]), self._epoch)
                    if record is None:
                        return
                    data = register_record.encode(record)
                    swap = partial(self._register.set_state, data, found[1])
                    after = await calls.submit(swap)
                    if after is not None and after[2]:
                        return
            except RendezvousConnectionError:
                await asyncio.sleep(RETRY_S)
