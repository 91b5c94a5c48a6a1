"""Candidates: a process that is not a node of any job, and can lead jobs of one place.

`rallypoint serve --candidate`; `core/takeover/candidacy.py` decides. It reads the record of each
job as an heir does, and attaches to the job's leader. The leader lists it in the record. From then
on it promises in its heartbeats what heirs promise, and claims the job before them when the leader
is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from rallypoint.clocks import boot_time
from rallypoint.coordinator.client.session import raise_in_loop
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.coordinator.leading.candidacy import JobRegister, RegisterCandidacy
from rallypoint.coordinator.leading.leader_process import random_nonce
from rallypoint.coordinator.leading.leaderships import ManyLeaderships
from rallypoint.core import messages as m
from rallypoint.core.takeover import candidacy as c
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.errors import RallypointError
from rallypoint.wire.address import told_addresses

SCAN_S = 3.0
"""The interval in seconds of looking for other jobs in the place."""
DIAL_TIMEOUT_S = 2.0
"""The time limit in seconds for each address of a leader, whose machine may be gone."""


class Candidates:
    """The candidacies of this process for all jobs of one place: a directory, an etcd, a namespace.

    For the thread of the loop: `close` at the end.
    """

    def __init__(
        self,
        led: ManyLeaderships,
        jobs: HostedJobs,
        find: Callable[[], list[str]],
        lookup_token: Callable[[str], bytes] | None,
    ) -> None:
        """Begin to look for the jobs of the place, and stand by for each.

        `jobs` hosts the jobs that this process leads. `find` blocks, and returns the run ids of
        jobs whose registers have changed since the last call; at first, those of all jobs.
        `lookup_token` returns the token of a run id; None: no authentication.
        """
        self._led, self._jobs, self._find, self._lookup_token = led, jobs, find, lookup_token
        self._loop = asyncio.get_running_loop()
        self._deferences: dict[str, Deference] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._scanner = self._loop.create_task(self._scan())
        self._scanner.add_done_callback(raise_in_loop)

    def close(self) -> None:
        """Look for no more jobs, and stand ready for none. What this process leads it leads on."""
        for task in (self._scanner, *self._tasks.values()):
            task.cancel()

    async def _scan(self) -> None:
        while True:
            for run_id in await self._led.call(self._find):
                if run_id not in self._tasks:
                    self._tasks[run_id] = task = self._loop.create_task(self._follow(run_id))
                    task.add_done_callback(raise_in_loop)
            await asyncio.sleep(SCAN_S)

    async def _dial(self, run_id: str, addresses: tuple[str, ...]) -> ClientConnection:
        """Make one attempt to reach the leader of this job. Raises RallypointError."""
        token = None if self._lookup_token is None else self._lookup_token(run_id)
        return await dial(told_addresses(addresses), run_id, token, DIAL_TIMEOUT_S)

    async def _follow(self, run_id: str) -> None:
        """Stand by for this job until this process leads it or is no longer needed."""
        deference = self._deferences.setdefault(run_id, Deference())
        job, leadership = self._led.stand_ready(run_id, deference), None
        try:
            if job is None:
                return
            say = partial(self._led.wait_for, run_id)
            is_awaited = partial(self._led.is_awaited, run_id)
            candidacy = _Candidacy(job, deference, say, partial(self._dial, run_id), is_awaited)
            try:
                leadership = await candidacy.run()
            finally:
                candidacy.hang_up()
                self._led.settle(run_id, leadership)
            if leadership is not None:
                self._jobs.lead(run_id, leadership)
        finally:
            del self._tasks[run_id]


class _Candidacy(RegisterCandidacy):
    """The candidacy for one job, attached to its leader, until the process leads."""

    def __init__(
        self,
        job: JobRegister,
        deference: Deference,
        say: Callable[[str], None],
        dial: Callable[[tuple[str, ...]], Awaitable[ClientConnection]],
        is_awaited: Callable[[], bool],
    ) -> None:
        """`dial` connects to the leader at these addresses.

        `is_awaited` returns whether an agent of the job waits here until this process leads it.
        """
        nonce = job.local.runtime.nonce()
        self._standby = c.Standby(job.leader, nonce, job.memory, deference, _drawn())
        super().__init__(self._standby, job, say)
        self._dial, self._is_awaited = dial, is_awaited
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    @property
    def present(self) -> c.Present:
        return c.Present(is_awaited=self._is_awaited())

    async def execute(self, effect: c.Effect) -> list[c.Effect]:
        if not isinstance(effect, c.Dial):
            return await super().execute(effect)
        self.hang_up()
        self._task = self._loop.create_task(self._attend(effect))
        self._task.add_done_callback(raise_in_loop)
        return []

    async def pause(self, wait: c.Wait) -> None:
        """Wait for the time of the effect, or until the connection to the leader ends."""
        self._lost.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait.seconds):
                await self._lost.wait()

    def hang_up(self) -> None:
        """Close the connection to the leader."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _attend(self, leader: c.Dial) -> None:
        try:
            connection = await self._dial(leader.addresses)
        except RallypointError:
            self._standby.dialled(self.now, was_connected=False)
            return
        self._standby.has_number(_drawn())
        connection.listen(self._received)
        try:
            while not connection.lost.done():
                for heartbeat in self._standby.heartbeats(boot_time(), leader.epoch):
                    connection.send(heartbeat)
                await asyncio.wait((connection.lost,), timeout=leader.heartbeat_s)
            self._standby.dialled(self.now, was_connected=True)
            self._lost.set()
        finally:
            connection.close()

    def _received(self, message: m.ToAgent) -> None:
        if isinstance(message, m.Ack):
            self._standby.promises.answered(message.number, boot_time())


def _drawn() -> int:
    return random_nonce() | 1
