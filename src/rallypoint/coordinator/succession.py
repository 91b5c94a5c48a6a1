"""How the nodes of a job find who leads it, and how each of them may be the next that does, by the
job's register (section L1 of the design; `core/takeover/` decides).

An agent without a leader reads the register: it dials the leader that is named there, or claims the
job when it is its turn, and hosts the coordinator itself. An heir looks all the time, since it is
the first to claim. Nobody else reads the register while all is well. A register that can tell of
changes wakes those who look; what is there they read.

A leader that is deposed, or steps down, closes its coordinator: its own agent looks for the next
one as all others do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from socket import socket
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.coordinator.client import raise_in_loop
from rallypoint.coordinator.connection import ClientConnection
from rallypoint.coordinator.leadership import Leadership
from rallypoint.coordinator.led_jobs import LocalLeader
from rallypoint.coordinator.server import Coordinator
from rallypoint.core.model import Epoch
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import RANKS, Claimant
from rallypoint.core.takeover.leading import VersionRefusals
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import LeadRecord
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.takeover.told import Seal
from rallypoint.errors import (
    AccessError,
    InfrastructureError,
    ProtocolError,
    RallypointError,
    RecordError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    UsageError,
    VersionMismatchError,
)
from rallypoint.register.record import Register, RegisterWatch, gone
from rallypoint.wire.address import Address, told_addresses
from rallypoint.wire.versions import SPOKEN, Versions

FRESH_S = 0.2
"""What was read so lately is not read again for another attempt to connect."""
PATIENCE_S = 1.0
"""So long an attempt to connect waits for the register: the leader that was known last may answer
all the same."""
VACATE_S = 2.0
AFTER_CLAIM_S = 5.0
RETRY_S = 0.2
JUDGED_S = 5.0
"""After so long it is known, as a rule, whether a leader of another version stays."""
TOLD_S = 3.0
"""A shorter wait for its turn a person is not told of."""


class Listening(Struct, frozen=True):
    """Where a coordinator of this node would listen."""

    listeners: list[socket]
    addresses: tuple[str, ...]
    """As other nodes reach them."""

    def close(self) -> None:
        """Listen no more."""
        for listener in self.listeners:
            listener.close()


class Seeker(Protocol):
    """The node that looks for the leader, or is to lead."""

    @property
    def is_attached(self) -> bool:
        """It has a leader, and is connected to it."""

    def claimant(self) -> Claimant:
        """What it is in the job at present."""

    async def dial(self, addresses: Sequence[Address]) -> ClientConnection:
        """One attempt to reach the coordinator at any of these addresses. Raises as `dial` in
        `connection.py`."""

    def listen(self) -> Listening:
        """Where it would lead. Raises UsageError or InfrastructureError."""

    def host(self, listening: Listening) -> Coordinator:
        """It leads from now on: host the job's coordinator on these sockets. A connection to the
        leader before is of no use."""

    def leads_no_more(self) -> None:
        """Another node may lead."""

    def notice(self, text: str) -> None:
        """A person should know this."""


class OwnLeadership:
    """The one job of a node, while this node leads it (`HostedJobs` asks). `vouched_at` is for the
    agent of this node, at any time."""

    def __init__(self, lease_s: float) -> None:
        """`lease_s`: the job's."""
        self.promises, self.deference = Promises(lease_s), Deference()
        self.memory = Memory()
        self.leadership: Leadership | None = None
        """By which this node leads; None: it does not."""
        self.offered: Listening | None = None
        """Where it offers to lead instead of another one."""
        self._on_lost: Callable[[], None] | None = None

    def begin(self, leadership: Leadership, on_lost: Callable[[], None]) -> None:
        """This node leads from now on. `on_lost` is called when it does no more."""
        self.leadership, self._on_lost = leadership, on_lost

    def end(self) -> None:
        """It leads no more."""
        self.leadership = self._on_lost = None

    def claimant(self, node: Claimant) -> Claimant:
        """With what this node has promised, or lets others do first."""
        promises = self.promises
        return replace(
            node,
            promised_until=promises.until,
            defers_until=self.deference.until,
            freed_epoch=promises.freed_epoch,
        )

    def vouched_at(self) -> float:
        """When it was known last that no other node leads: the workers of a node that leads may run
        for a lease from then. Without end for one that does not lead."""
        return inf if self.leadership is None else self.leadership.lead.vouched_at

    # As `hosting.Leaderships` asks.

    def of(self, run_id: str) -> Leadership | None:
        return self.leadership

    async def lead(self, run_id: str) -> Leadership:
        raise RendezvousConnectionError("this node leads no more")

    def forget(self, run_id: str) -> None:
        if self._on_lost is not None:
            self._on_lost()

    def remove(self, run_id: str) -> None:
        """It stays until it is old: whoever comes late hears how the job has ended."""

    async def vacate(self) -> None:
        if self.leadership is not None:
            await self.leadership.vacate(VACATE_S)


class _Seen(Struct):
    """What this node has seen of the register."""

    record: LeadRecord | None = None
    looked_at: float = -inf
    claims_at: float = inf
    """When it may claim, if nothing new comes."""
    is_late: bool = False
    """It was said that new records are seen late."""
    has_listened: bool = False
    """The node has tried to listen, in case it has to lead."""
    unusable: str = ""
    """The line that was said about a register without a record."""


class _OtherVersionError(RendezvousConnectionError):
    """The leader's address answers in no version that this node speaks."""


class _CannotLeadError(RendezvousConnectionError):
    """It is this node's turn, and it can't listen."""


class Succession:
    """For the thread of the loop. `dial` at any time, `close` at the end."""

    def __init__(
        self, register: Register, local: LocalLeader, own: OwnLeadership, node: Seeker, run_id: str
    ) -> None:
        """`own`: the job of `node`, which asks it whether it leads."""
        self._seal = Seal(run_id, local.secret_of(run_id))
        self._watched = RegisterWatch(register)
        self._local, self._own, self._node = local, own, node
        self._loop = asyncio.get_running_loop()
        self._looking = asyncio.Lock()
        self._candidacy = self._new_candidacy()
        self._seen = _Seen()
        self._refusals = VersionRefusals((SPOKEN.oldest, SPOKEN.newest))
        self._claiming: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Another node leads than at the last look, or this one."""
        self.coordinator: Coordinator | None = None
        """The one that this node hosts."""
        self._watcher: asyncio.Task[None] | None = self._loop.create_task(self._watch())
        self._watcher.add_done_callback(raise_in_loop)

    @property
    def epoch(self) -> Epoch | None:
        """By which this node leads; None: it does not."""
        leadership = self._own.leadership
        return None if leadership is None else leadership.lead.epoch

    def stop(self) -> None:
        """Claim no more, and look no more."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def close(self, *, is_heard: bool) -> None:
        """Lead no more: another node may at once. `is_heard`: as in the record of a job."""
        self.stop()
        if self._claiming is not None:
            await asyncio.wait((self._claiming,), timeout=VACATE_S)
        if (leadership := self._own.leadership) is not None:
            await leadership.vacate(VACATE_S, is_heard=is_heard)
        self._step_down()
        self._withdraw()
        self._watched.close()
        self._local.calls.close()

    async def connect(self, timeout_s: float, on_wait: Callable[[str], None]) -> ClientConnection:
        """Reach the leader, or become it. Raises RendezvousTimeoutError, VersionMismatchError, and
        what the register raises for what can't be a record."""
        ends_at, extended = self._loop.time() + timeout_s, False
        judged_by = self._loop.time() + JUDGED_S
        said: set[str] = set()
        hindrance = ""
        while True:
            try:
                return await self.dial()
            except RendezvousConnectionError as error:
                if isinstance(error, _CannotLeadError):
                    hindrance = str(error)
                elif isinstance(error, _OtherVersionError):
                    self._judge_refusal(error.__cause__)
                    if self._loop.time() < judged_by:
                        await asyncio.sleep(RETRY_S)
                        continue
                if self._loop.time() > ends_at and not extended and self._seen.claims_at < inf:
                    # All that led before may be gone: then it is this node's turn at last.
                    ends_at, extended = max(ends_at, self._seen.claims_at + AFTER_CLAIM_S), True
                if self._loop.time() > ends_at:
                    why = hindrance or error
                    text = f"no node led the job within {timeout_s:g} s ({why})"
                    raise RendezvousTimeoutError(text) from error
                # Each reason once, though they may take turns.
                if (text := f"waiting for a node that leads the job ({error})") not in said:
                    said.add(text)
                    on_wait(f"{text}{self._its_turn()}")
            await asyncio.sleep(RETRY_S)

    def _judge_refusal(self, error: BaseException | None) -> None:
        """A leader that stays and can't talk with this node is not waited for."""
        record = self._seen.record
        if record is None or not self._refusals.is_final(record):
            return
        assert isinstance(error, VersionMismatchError)
        if (theirs := record.leader.versions) is not None:
            raise VersionMismatchError(str(SPOKEN), str(Versions(*theirs)))
        raise error

    def _its_turn(self) -> str:
        """When this node may lead the job, if that takes a while."""
        left_s = self._seen.claims_at - self._loop.time()
        if not TOLD_S <= left_s < inf:
            return ""
        return f": if no other node leads it by then, this one does in about {left_s:.0f} s"

    async def dial(self) -> ClientConnection:
        """One attempt to reach the leader. Raises RendezvousConnectionError, and what else the
        register raises for what can't be a record."""
        self._changed.clear()
        is_stale = self._loop.time() - self._seen.looked_at > FRESH_S or self._looking.locked()
        if is_stale and self._watcher is not None:
            await self._look_patiently()
            self._changed.clear()
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

    async def _dial_leader(self) -> ClientConnection:
        record = self._seen.record
        if record is None:
            raise RendezvousConnectionError("no node leads the job yet")
        if record.is_vacant:
            raise RendezvousConnectionError("the node that led the job has gone")
        following = self._own.promises.next_leader
        is_handed_over = following.epoch == record.epoch.as_int()
        texts = following.addresses if is_handed_over else record.leader.addresses
        if not (addresses := told_addresses(texts)):
            raise RendezvousConnectionError("the leader of the job names no address")
        try:
            return await self._node.dial(addresses)
        except VersionMismatchError as error:
            raise _OtherVersionError(str(error)) from error
        except (AccessError, ProtocolError) as error:
            # Another program may listen there by now.
            raise RendezvousConnectionError(str(error)) from error

    async def _look_patiently(self) -> None:
        looking = self._loop.create_task(self._look())
        looking.add_done_callback(_retrieve)
        done, _ = await asyncio.wait((looking,), timeout=PATIENCE_S)
        try:
            if done:
                looking.result()
        except RendezvousConnectionError:
            if self._seen.record is None:
                raise
            # The register is away: the leader that was known last may lead by promises.

    async def _watch(self) -> None:
        while True:
            wait_s = self._candidacy.look_s
            if self._must_look:
                with suppress(RallypointError):  # `dial` tells them.
                    wait_s = min(wait_s, await self._look())
                    self._try_to_listen()
                    await self._offer()
                await self._watched.wait(self._candidacy.seen, wait_s)
            else:
                await asyncio.sleep(wait_s)

    @property
    def _must_look(self) -> bool:
        if self._own.leadership is not None:
            return False
        return not self._node.is_attached or 0 <= self._node.claimant().rank < RANKS

    async def _look(self) -> float:
        """Read the record, and claim the job if it is this node's turn. Returns after how long to
        look again at the latest."""
        async with self._looking:
            if self._own.leadership is not None:
                return inf
            own, before = self._own, self._seen.record
            claimant = own.claimant(self._node.claimant())
            try:
                found = await self._candidacy.look(claimant)
            except RecordError as error:
                no_node = "no node can lead the job as long as its record is like that"
                self._tell_unusable(f"{no_node}: {error}", claimant)
                raise
            if not found.unfit:
                self._seen.unusable = ""
            elif found.claims_in_s:  # Who claims at once has just said why.
                self._tell_unusable(found.unfit, claimant)
            if found.record is None and before is not None and not found.is_behind:
                raise gone()
            seen = self._seen
            seen.looked_at, seen.record = self._loop.time(), found.record
            seen.claims_at = seen.looked_at + found.claims_in_s
            if before is None or found.record is None or before.epoch != found.record.epoch:
                self._changed.set()
            own.promises.saw(found.record)
            self._compare_views()
            if found.claims_in_s or self._watcher is None:
                return found.claims_in_s
            is_vacant = found.record is not None and found.record.is_vacant
            if own.promises.until > claimant.promised_until and not is_vacant:
                return RETRY_S  # It has promised meanwhile: the read may have taken long.
            told = self._node.claimant().told
            if told is not None and (claimant.told is None or told.epoch != claimant.told.epoch):
                return RETRY_S  # It has heard another leader meanwhile.
            # One that has begun is carried through: the register may hold it already.
            claiming = self._claiming = self._loop.create_task(self._claim(found.record, claimant))
            claiming.add_done_callback(_retrieve)
            await asyncio.shield(claiming)
            # What was read may be as old as a cache lets it be: then the claim has failed.
            return self._candidacy.look_s if found.is_behind else 0.0

    def _tell_unusable(self, why: str, claimant: Claimant) -> None:
        """Say once that the register holds no record. A node that has just started ends with that
        line anyway."""
        if not claimant.is_fresh and why != self._seen.unusable:
            self._seen.unusable = why
            self._node.notice(why)

    def _compare_views(self) -> None:
        """A leader that answers swaps a record every few seconds."""
        still_s = self._candidacy.stands_still_s
        silent_s = self._local.runtime.clock() - self._own.promises.answered_at
        late_s = self._candidacy.late_s
        # It has answered when its record was late already.
        is_answered = self._node.is_attached and still_s - silent_s > late_s
        if is_answered and not self._seen.is_late:
            self._seen.is_late = True
            self._node.notice(
                f"the leader of the job answers, but nothing new was seen in its register for "
                f"{still_s:.0f} s: it can't write there, or what it writes is seen late here (NFS "
                "caches: mount it with actimeo=1), and then a takeover takes so much longer"
            )

    async def _claim(self, found: LeadRecord | None, claimant: Claimant) -> None:
        listening, self._own.offered = self._own.offered or self._listen(), None
        is_leader, leadership = False, self._candidacy
        self._own.promises.claiming(found)
        try:
            is_leader = await leadership.take(found, listening.addresses, claimant)
        finally:
            if not is_leader:
                listening.close()
        if is_leader:
            self._seen.record, self._candidacy = leadership.lead.record, self._new_candidacy()
            self._own.begin(leadership, self._deposed)
            self.coordinator = self._node.host(listening)
            self._changed.set()

    def _listen(self) -> Listening:
        try:
            return self._node.listen()
        except (UsageError, InfrastructureError) as error:
            raise _CannotLeadError(f"this node can't lead the job: {error}") from error

    async def _offer(self) -> None:
        """To lead instead of a leader that answers and can't write its record, if this node can."""
        is_needed = self._node.is_attached and self._own.leadership is None
        if is_needed and await self._candidacy.could_be_written():
            self._own.offered = self._own.offered or self._listen()
        else:
            self._withdraw()
        addresses = () if self._own.offered is None else self._own.offered.addresses
        self._own.promises.offer(addresses, self._local.runtime.clock())

    def _try_to_listen(self) -> None:
        """An heir that can't listen says so before it has to lead."""
        is_heir = self._node.is_attached and self._own.promises.is_heir
        if not is_heir or self._seen.has_listened or self._own.leadership is not None:
            return
        self._seen.has_listened = True
        try:
            self._listen().close()
        except _CannotLeadError as error:
            self._node.notice(
                f"{error}; it is one of the first four nodes, which take over if the leading node "
                "is lost: another one has to, and if none can, all nodes stop their workers"
            )

    def _withdraw(self) -> None:
        if self._own.offered is not None:
            self._own.offered.close()
            self._own.offered = None

    def _deposed(self) -> None:
        self._step_down()
        self._node.leads_no_more()
        self._changed.set()

    def _step_down(self) -> None:
        self._own.end()
        if self.coordinator is not None:
            self.coordinator.close()
            self.coordinator = None

    def _new_candidacy(self) -> Leadership:
        local, leader = self._local, self._local.leader(has_workers=True)
        own = self._own
        return Leadership(
            self._watched.register,
            leader,
            local.calls,
            local.runtime,
            own.deference,
            own.memory,
            self._seal,
        )


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Nobody may be left to hear what it raised."""
    if not task.cancelled():
        task.exception()
