"""The search of a job's nodes for their leader, and for the next one, on asyncio.

`core/takeover/leader_search.py` decides. A register that can signal changes wakes the searching
nodes, which then read it. A leader that is deposed, or steps down, closes its coordinator: its own
agent looks for the next one as all others do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from socket import socket
from typing import Protocol

from msgspec import Struct

from rallypoint.coordinator.client.session import raise_in_loop
from rallypoint.coordinator.connection import ClientConnection
from rallypoint.coordinator.leading.candidacy import JobRegister, RegisterCandidacy
from rallypoint.coordinator.leading.leader_process import LocalLeader
from rallypoint.coordinator.leading.leadership import Leadership
from rallypoint.coordinator.server import Coordinator
from rallypoint.core.model import Epoch
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leader_search import FirstWait, Search
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Seal
from rallypoint.errors import (
    AccessError,
    InfrastructureError,
    ProtocolError,
    RendezvousConnectionError,
    UsageError,
    VersionMismatchError,
)
from rallypoint.register.record import Register, RegisterWatch
from rallypoint.wire.address import Address, told_addresses

PATIENCE_S = 1.0
"""How long an attempt to connect waits for the register, in seconds: the last known leader may
answer nevertheless."""
VACATE_S = 2.0


class Listening(Struct, frozen=True):
    """The listener on which this node's coordinator would accept connections."""

    listeners: list[socket]
    addresses: tuple[str, ...]
    """The addresses by which other nodes reach the listener."""

    def close(self) -> None:
        """Close the listener."""
        for listener in self.listeners:
            listener.close()


class Seeker(Protocol):
    """The node that looks for the job's leader, or becomes it."""

    @property
    def is_attached(self) -> bool:
        """Whether the node is connected to a leader."""

    def claimant(self) -> Claimant:
        """Return the node's present part in the job."""

    async def dial(self, addresses: Sequence[Address]) -> ClientConnection:
        """Make one attempt to reach the coordinator at any of these addresses.

        Raises as `dial` in `connection.py`.
        """

    def listen(self) -> Listening:
        """Open and return the listener on which the node would lead.

        Raises UsageError or InfrastructureError.
        """

    def host(self, listening: Listening) -> Coordinator:
        """Lead from now on: host the job's coordinator on these sockets, and return it.

        A connection to the leader before is dropped.
        """

    def leads_no_more(self) -> None:
        """Note that this node no longer leads; its agent goes on."""

    def notice(self, text: str) -> None:
        """Show a line to the user."""


class OwnLeadership:
    """The leadership of a node's only job, while this node leads it.

    `HostedJobs` asks it, in the thread of the loop. The agent of this node may call `vouched_at` at
    any time.
    """

    def __init__(self, lease_s: float) -> None:
        """Make it for a job with this lease in seconds; the node does not lead yet."""
        self.promises, self.deference = Promises(lease_s), Deference()
        self.memory = Memory()
        self.leadership: Leadership | None = None
        """The leadership of this node; None: it does not lead."""
        self._on_lost: Callable[[], None] | None = None

    def begin(self, leadership: Leadership, on_lost: Callable[[], None]) -> None:
        """Note that this node leads. `on_lost` is called when its coordinator no longer does."""
        self.leadership, self._on_lost = leadership, on_lost

    def end(self) -> None:
        """Note that this node leads no more."""
        self.leadership = self._on_lost = None

    def vouched_at(self) -> float:
        """Return the latest time from which the lease of this node, which leads, may count.

        Infinite if this node does not lead: then only its leader's answers count.
        """
        return inf if self.leadership is None else self.leadership.lead.vouched_at

    # As `hosting.Leaderships` asks.

    def of(self, run_id: str) -> Leadership | None:
        return self.leadership

    async def lead(self, run_id: str) -> Leadership:
        raise RendezvousConnectionError("this node no longer leads")

    def forget(self, run_id: str) -> None:
        if self._on_lost is not None:
            self._on_lost()

    def remove(self, run_id: str) -> None:
        """Do nothing: the record stays until it is old, so that late agents get the verdict."""

    async def vacate(self) -> None:
        if self.leadership is not None:
            await self.leadership.vacate(VACATE_S)


class LeaderSearch(RegisterCandidacy):
    """The search of one node for the job's leader; the node may become the leader itself.

    For the thread of the loop. Call `dial` at any time, and `close` at the end.
    """

    def __init__(
        self, register: Register, local: LocalLeader, own: OwnLeadership, node: Seeker, run_id: str
    ) -> None:
        """Begin to search, in a task of its own.

        `own`: the leadership of the job, if this node leads it. `node`: the node that searches.
        """
        leader, nonce = local.leader(has_workers=True), local.runtime.nonce()
        self._search = Search(leader, nonce, own.memory, own.promises, own.deference)
        seal = Seal(run_id, local.secret_of(run_id))
        job = JobRegister(register, local, leader, own.memory, seal, own.deference)
        super().__init__(self._search, job, node.notice)
        self._watched = RegisterWatch(register)
        self._own, self._node, self._local = own, node, local
        self._loop = asyncio.get_running_loop()
        self._listening: Listening | None = None
        """The listener on which this node offers to lead, or is about to claim."""
        self._changed = asyncio.Event()
        """The event that is set when another process leads than at the last look, perhaps this
        node."""
        self._looked = asyncio.Event()
        """The event that is set when a look at the register is over."""
        self._resting: asyncio.Task[None] | None = None
        self.coordinator: Coordinator | None = None
        """The coordinator that this node hosts; None: this node does not lead."""
        self._watcher = self._loop.create_task(self.run())
        self._watcher.add_done_callback(raise_in_loop)

    @property
    def epoch(self) -> Epoch | None:
        """The epoch by which this node leads; None: it does not."""
        leadership = self._own.leadership
        return None if leadership is None else leadership.lead.epoch

    def stop(self) -> None:
        """Stop looking and claiming; a claim that is under way is carried through."""
        for _ in self._search.stops():
            self._watcher.cancel()

    async def close(self, *, is_heard: bool) -> None:
        """Stop searching and lead no more, so that another node may lead at once.

        `is_heard`: all live nodes have heard the verdict of the job. Takes a few seconds at most.
        """
        self.stop()
        await asyncio.wait((self._watcher,), timeout=VACATE_S)
        if (leadership := self._own.leadership) is not None:
            await leadership.vacate(VACATE_S, is_heard=is_heard)
        self._step_down()
        self._listen_no_more()
        self._watched.close()
        self._local.calls.close()

    async def connect(self, timeout_s: float, on_wait: Callable[[str], None]) -> ClientConnection:
        """Reach the leader, or become it; `on_wait` is told what this node waits for.

        Raises RendezvousTimeoutError if no node leads within `timeout_s` seconds, or later if this
        node's own turn comes later. Raises VersionMismatchError, and the register's errors for an
        unusable record.
        """
        first = FirstWait(self._search, self.now, timeout_s)
        while True:
            try:
                return await self.dial()
            except RendezvousConnectionError as error:
                for effect in first.unreached(error, self.now):
                    match effect:
                        case c.Say(text):
                            on_wait(text)
                        case c.Wait(seconds):
                            await asyncio.sleep(seconds)

    async def dial(self) -> ClientConnection:
        """Make one attempt to reach the leader.

        Raises RendezvousConnectionError, and the register's errors for an unusable record.
        """
        self._changed.clear()
        for _ in self._search.wanted(self.now):
            await self._look_now()
            self._changed.clear()
            if self._watcher.done() and not self._watcher.cancelled():
                self._watcher.result()  # It has met with what nobody has expected.
        dialling = self._loop.create_task(self._dial_leader())
        changing = self._loop.create_task(self._changed.wait())
        try:
            await asyncio.wait((dialling, changing), return_when=asyncio.FIRST_COMPLETED)
            if dialling.done():
                return dialling.result()
            raise RendezvousConnectionError("another node leads the job now")
        finally:
            changing.cancel()
            if not dialling.done():
                dialling.cancel()

    async def _look_now(self) -> None:
        self._looked.clear()
        if self._resting is not None:
            self._resting.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._looked.wait()

    async def _dial_leader(self) -> ClientConnection:
        if not (addresses := told_addresses(self._search.whom())):
            raise RendezvousConnectionError("the leader of the job names no address")
        try:
            return await self._node.dial(addresses)
        except (AccessError, ProtocolError, VersionMismatchError) as error:
            # Another program may listen there by now.
            raise RendezvousConnectionError(str(error)) from error

    @property
    def present(self) -> c.Present:
        node, leads = self._node, self._own.leadership is not None
        return c.Present(node.claimant(), node.is_attached, leads)

    async def pause(self, wait: c.Wait) -> None:
        rest = asyncio.sleep(wait.seconds)
        if wait.for_change:
            rest.close()
            rest = self._watched.wait(self._record.token, wait.seconds)
        self._resting = self._loop.create_task(rest)
        self._looked.set()
        try:
            await asyncio.wait((self._resting,))
        finally:
            self._resting.cancel()

    async def execute(self, effect: c.Effect) -> list[c.Effect]:
        match effect:
            case c.Listen():
                return self._listen()
            case c.TryWriting():
                is_writable = await self._record.could_be_written()
                return self._search.tried(self.now, is_writable=is_writable)
            case c.Close():
                self._listen_no_more()
            case c.LeaderChanged():
                self._changed.set()
            case c.Lead():
                await super().execute(effect)
                listening, self._listening = self._listening, None
                assert listening is not None
                assert self._leadership is not None
                self._own.begin(self._leadership, self._deposed)
                self.coordinator = self._node.host(listening)
            case _:
                return await super().execute(effect)
        return []

    def _listen(self) -> list[c.Effect]:
        try:
            self._listening = self._node.listen()
        except (UsageError, InfrastructureError) as error:
            return self._search.listened(self.now, (), str(error))
        return self._search.listened(self.now, self._listening.addresses)

    def _listen_no_more(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _deposed(self) -> None:
        self._step_down()
        self._node.leads_no_more()
        self._changed.set()

    def _step_down(self) -> None:
        self._own.end()
        if self.coordinator is not None:
            self.coordinator.close()
            self.coordinator = None
