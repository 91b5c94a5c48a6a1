"""A process that is no node of any job, and stands ready to lead those whose registers lie in one
place (`rallypoint serve --candidate`; `core/takeover/heirs.py` has the rules).

Of each job it reads the record as an heir does, and attaches to its leader. The leader lists it in
the record, and from then on it promises in its heartbeats what heirs promise, and claims the job
before them when the leader is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from rallypoint.clocks import boot_time
from rallypoint.coordinator.client import raise_in_loop
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.coordinator.leader_process import random_nonce
from rallypoint.coordinator.leadership import Leadership
from rallypoint.coordinator.led_jobs import ManyLeaderships
from rallypoint.core import messages as m
from rallypoint.core.model import Epoch
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import RELEASE_S
from rallypoint.core.takeover.record import LeadRecord
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.wire.address import Address, told_addresses

SCAN_S = 3.0
"""How often the place is looked at for other jobs."""
HURRY_S = 0.1
"""How often the record is read while the leader may have died just now."""
REDIAL_S = 1.0
DIAL_TIMEOUT_S = 2.0
"""A leader whose machine is gone does not answer."""
UNUSED_S = 60.0
"""A job that nobody has led for so long is left alone until its register changes."""


class Candidates:
    """For the thread of the loop: `close` at the end."""

    def __init__(
        self,
        led: ManyLeaderships,
        jobs: HostedJobs,
        find: Callable[[], list[str]],
        lookup_token: Callable[[str], bytes] | None,
    ) -> None:
        """`jobs` hosts what this process leads. `find` blocks, and returns the run ids of jobs
        whose registers have changed since the last call. `lookup_token`: the token of a run id;
        None: nothing is proved."""
        self._led, self._jobs, self._find, self._lookup_token = led, jobs, find, lookup_token
        self._loop = asyncio.get_running_loop()
        self._deferences: dict[str, Deference] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._scanner = self._loop.create_task(self._scan())
        self._scanner.add_done_callback(raise_in_loop)

    def close(self) -> None:
        """Stand ready no more. What this process leads it leads on."""
        for task in (self._scanner, *self._tasks.values()):
            task.cancel()

    async def _scan(self) -> None:
        while True:
            for run_id in await self._led.call(self._find):
                if run_id not in self._tasks:
                    self._tasks[run_id] = task = self._loop.create_task(self._follow(run_id))
                    task.add_done_callback(raise_in_loop)
            await asyncio.sleep(SCAN_S)

    async def _dial(self, run_id: str, addresses: Sequence[Address]) -> ClientConnection:
        """One attempt to reach the leader of this job. Raises RallypointError."""
        token = None if self._lookup_token is None else self._lookup_token(run_id)
        return await dial(addresses, run_id, token, DIAL_TIMEOUT_S)

    async def _follow(self, run_id: str) -> None:
        """Until nobody needs it."""
        deference = self._deferences.setdefault(run_id, Deference())
        unclaimed, leadership = self._led.stand_ready(run_id, deference), None
        try:
            if unclaimed is None:
                return
            is_awaited = partial(self._led.is_awaited, run_id)
            candidacy = _Candidacy(unclaimed, deference, partial(self._dial, run_id), is_awaited)
            try:
                if await candidacy.run(partial(self._led.wait_for, run_id)):
                    leadership = unclaimed
            finally:
                self._led.settle(run_id, leadership)
            if leadership is not None:
                self._jobs.lead(run_id, leadership)
        finally:
            del self._tasks[run_id]


class _Candidacy:
    """For one job, until this process leads it, or nobody needs that.

    It claims no job that it has not seen alive, and none of a coordinator to whose address the
    nodes go (`rallypoint serve` without candidates): that one lists nobody.
    """

    def __init__(
        self,
        unclaimed: Leadership,
        deference: Deference,
        dial: Callable[[Sequence[Address]], Awaitable[ClientConnection]],
        is_awaited: Callable[[], bool],
    ) -> None:
        """`is_awaited`: an agent of the job waits here until this process leads it."""
        self._unclaimed, self._deference = unclaimed, deference
        self._is_awaited = is_awaited
        self._loop = asyncio.get_running_loop()
        self._attachment = _Attachment(dial)
        self._record: LeadRecord | None = None
        self._changed_at = self._loop.time()
        self._has_changed = False
        self._is_of_nodes = False
        """A node was seen to lead it: the others look for the leader in the register."""
        self._told: Epoch | None = None
        """Of the leader after which a person knows that this process is ready."""

    async def run(self, say: Callable[[str], None]) -> bool:
        """Whether this process leads the job now. `say` is called with what a person reads."""
        try:
            while True:
                try:
                    if (is_leader := await self._step(say)) is not None:
                        return is_leader
                except RendezvousConnectionError:
                    pass  # The leader says that it can't write either.
                except RallypointError as error:
                    say(f"this coordinator can't stand ready to lead the job: {error}")
                    return False
                await self._attachment.pause(self._unclaimed.look_s)
        finally:
            self._attachment.close()

    async def _step(self, say: Callable[[str], None]) -> bool | None:
        promises, number = self._attachment.promises, self._attachment.number
        claimant = Claimant(
            promised_until=promises.until,
            defers_until=self._deference.until,
            candidate=number,
        )
        found = await self._unclaimed.look(claimant)
        record = found.record
        promises.saw(record)
        if record is None or (record.job is not None and record.job.verdict is not None):
            return False
        if record != self._record:
            self._has_changed |= self._record is not None
            self._record, self._changed_at = record, self._loop.time()
        self._is_of_nodes |= record.leader.has_workers
        is_listed = number in record.candidates
        if self._is_awaited() and not is_listed and not self._is_of_nodes:
            return False
        if is_listed and self._told != record.epoch:
            self._told = record.epoch
            say(f"ready to take over from {', '.join(record.leader.addresses)}")
        may_claim = is_listed or (self._is_of_nodes and self._has_changed)
        # The read may have taken long.
        has_promised = promises.until > claimant.promised_until and not record.is_vacant
        if not found.claims_in_s and may_claim and not has_promised:
            promises.claiming(record)
            return await self._unclaimed.take(record, (), claimant) or None
        self._attachment.follow(record)
        is_unused = self._loop.time() - self._changed_at > UNUSED_S and not is_listed
        return False if is_unused and not self._has_changed else None


class _Attachment:
    """To the leader of one job."""

    def __init__(self, dial: Callable[[Sequence[Address]], Awaitable[ClientConnection]]) -> None:
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self.number = _drawn()
        """The leader knows this process by it. Each connection has another one."""
        self.promises = Promises(0.0, self.number)
        self._epoch: Epoch | None = None
        """Of the leader that was dialled last."""
        self._task: asyncio.Task[None] | None = None
        self._dialled_at = self._hurries_until = -inf
        self._lost = asyncio.Event()
        self._sent = 0
        """Heartbeats to any leader: no two have one number."""

    def follow(self, record: LeadRecord) -> None:
        """Be attached to this leader, or try again."""
        if record.epoch != self._epoch:
            self.close()
            self._epoch, self._dialled_at = record.epoch, -inf
        is_due = self._loop.time() - self._dialled_at > REDIAL_S
        is_idle = self._task is None or self._task.done()
        if record.job is None or record.is_vacant or not (is_idle and is_due):
            return
        self._dialled_at = self._loop.time()
        settings = record.job.settings
        self.promises.lease_s = settings.lease_s
        addresses = told_addresses(record.leader.addresses)
        self._task = self._loop.create_task(
            self._attend(addresses, record.epoch, settings.heartbeat_s)
        )
        self._task.add_done_callback(raise_in_loop)

    async def pause(self, seconds: float) -> None:
        """So long at most, and less while the leader may have died just now."""
        if self._loop.time() < self._hurries_until:
            seconds = HURRY_S
        self._lost.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._lost.wait()

    def close(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _attend(
        self, addresses: Sequence[Address], led_by: Epoch, heartbeat_s: float
    ) -> None:
        epoch = led_by.as_int()
        try:
            connection = await self._dial(addresses)
        except RallypointError:
            return
        self.number = _drawn()
        self.promises.has_number(self.number)
        connection.listen(self._received)
        try:
            while not connection.lost.done():
                if (promise := self.promises.next(boot_time(), epoch)) is not None:
                    self._sent += 1
                    connection.send(m.Heartbeat(self._sent, promise))
                await asyncio.wait((connection.lost,), timeout=heartbeat_s)
            self._hurries_until = self._loop.time() + RELEASE_S
            self._lost.set()
        finally:
            connection.close()

    def _received(self, message: m.ToAgent) -> None:
        if isinstance(message, m.Ack):
            self.promises.answered(message.number, boot_time())


def _drawn() -> int:
    return random_nonce() | 1
