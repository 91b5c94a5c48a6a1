"""All workers of one round on this node: started together, signalled together, gone together.

When to signal and how long to wait is the policy of the caller; this module only guarantees the
state of the processes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from msgspec.structs import replace

from rallypoint.core.worker_exits import WorkerExit, WorkerExits
from rallypoint.core.worker_signals import Received
from rallypoint.errors import InvariantError
from rallypoint.process import exits, sessions, syscalls
from rallypoint.process.exits import ExitWatch
from rallypoint.process.guard import Guard
from rallypoint.process.spawn import WorkerCommand, WorkerProcess, abandon, spawn_workers

KILL_TIMEOUT_S = 5.0
"""The time in seconds after which a process that outlives SIGKILL is reported, and left to the
kernel."""

Spawn = Callable[[Sequence[WorkerCommand], Guard | None], list[WorkerProcess]]
"""The function that starts all workers or none, as `spawn_workers` does; they must be children of
this process."""


class WorkerSet:
    """The workers of one round on this node, by local rank.

    Call `start` once, then signal them, then `reap` until it returns nothing. Needs a running loop
    (a selector loop). A worker that has exited stays a zombie until `reap`, so that the numbers of
    its process group and session are not reused.
    """

    def __init__(
        self,
        guard: Guard | None,
        *,
        leaders_first: bool = False,
        pidfd_open: syscalls.PidfdOpen = syscalls.pidfd_open,
    ) -> None:
        """Make an empty set of workers.

        `leaders_first`: a signal other than SIGKILL reaches the processes that a worker has started
        only when the worker has ended.
        """
        self._guard, self._leaders_first = guard, leaders_first
        self._followers: dict[int, int] = {}
        """The signals that groups get when their workers have ended, by the workers' pids."""
        self._pidfd_open = pidfd_open
        self._watch = ExitWatch(asyncio.get_running_loop(), pidfd_open=pidfd_open)
        self.pids: tuple[int, ...] = ()
        """The pids by local rank; also after the workers are gone."""
        self.exits = WorkerExits()
        """The exits of workers that were noticed so far, by local rank."""
        self._held: set[int] = set()  # Started and not reaped: running, or a zombie of ours.
        self._all_exited = asyncio.Event()
        self._all_exited.set()

    def owns(self, pid: int) -> bool:
        """Return whether `pid` is a worker not reaped yet: nobody else may reap it."""
        return pid in self._held

    def start(
        self,
        commands: Sequence[WorkerCommand],
        on_exit: Callable[[WorkerExit], None],
        spawn: Spawn = spawn_workers,
    ) -> None:
        """Start one worker per command, in the order of local ranks.

        `on_exit(exit)` is called from the loop, once per worker, however it ends; by then the exit
        is in `exits`. If one can't be started or watched, none is left, and the error of `spawn` or
        `ExitWatch.watch` is raised.
        """
        if self.pids:
            raise InvariantError("a set of workers was started twice")
        pids = [process.pid for process in spawn(commands, self._guard)]
        try:
            for local_rank, pid in enumerate(pids):
                self._watch.watch(pid, partial(self._note_exit, on_exit, local_rank))
        except BaseException:
            self._watch.close()
            abandon(pids, self._guard)
            raise
        self.pids = tuple(pids)
        self._held = set(pids)
        if pids:
            self._all_exited.clear()

    def signal_all(self, signum: int, received: Received = Received.NOBODY) -> None:
        """Send a signal to the process group of every worker, also where the leader has exited.

        `received` tells who has got it already. If the workers have, only the other processes of
        their groups get it; if everybody has, nobody does.
        """
        match received:
            case Received.NOBODY:
                for pid in self._held:
                    is_first = self._follows(pid, signum)
                    send = syscalls.signal_process if is_first else syscalls.signal_group
                    send(pid, signum)
            case Received.WORKERS:
                for member in self._members():
                    if member.pgid != member.sid or member.sid == member.pid:
                        continue
                    if not self._follows(member.sid, signum):
                        sessions.signal_member(member, signum, pidfd_open=self._pidfd_open)
            case Received.EVERYBODY:
                pass
            case _:
                assert_never(received)

    def _follows(self, pid: int, signum: int) -> bool:
        """Return whether this worker's group gets the signal later, when the worker has ended.

        If so, the signal is noted for then.
        """
        if not self._leaders_first or signum == signal.SIGKILL or exits.peek(pid) is not None:
            return False
        self._followers[pid] = signum
        return True

    def signal_one(self, local_rank: int, signum: int) -> bool:
        """Send a signal to one worker alone; SIGKILL also to its process group.

        Returns False when it has exited.
        """
        pid = self.pids[local_rank]
        if pid not in self._held or exits.peek(pid) is not None:
            return False
        if signum == signal.SIGKILL:
            return syscalls.signal_group(pid, signum)
        return syscalls.signal_process(pid, signum)

    def kill_holder(self, local_rank: int, holder: int) -> bool:
        """Send SIGKILL to the one process that reported that it holds SIGTERM back.

        Such a process delays its end after SIGTERM. It must belong to this worker and catch that
        signal. Returns True if it was the worker itself; False: it was another process, or none was
        killed.
        """
        from rallypoint.process.stacks import catches

        pid = self.pids[local_rank] if local_rank < len(self.pids) else 0
        try:
            member = sessions.read_member(holder)
        except OSError:
            return False  # It can't be looked at just now, and may be anybody's.
        if pid not in self._held or member is None or member.sid != pid:
            return False
        if not catches(holder, signal.SIGTERM) or (holder == pid and exits.peek(pid) is not None):
            return False
        sessions.kill_member(member, pidfd_open=self._pidfd_open)
        return holder == pid

    def kill_all(self) -> None:
        """Send SIGKILL to all processes in the sessions of the workers. Does not wait."""
        self.signal_all(signal.SIGKILL)
        for member in self._members():
            sessions.kill_member(member, pidfd_open=self._pidfd_open)

    def running(self) -> int:
        """Return how many workers were not noticed to exit. Costs nothing, unlike `remaining`."""
        return len(self.pids) - len(self.exits)

    def look(self) -> None:
        """Add workers to `exits` that have ended without having been noticed by the loop.

        To be called before a signal: after it a failure can't be told from its effect.
        """
        for local_rank, pid in enumerate(self.pids):
            if local_rank not in self.exits and (outcome := exits.peek(pid)):
                self._note(local_rank, outcome)

    def remaining(self) -> int:
        """Return the number of live processes in the sessions of the workers.

        Zombies don't count. Reads /proc.
        """
        return len(self._members())

    async def wait_gone(self) -> None:
        """Wait until no process in the workers' sessions is alive. Safe to cancel."""
        await self._all_exited.wait()
        while members := self._members():
            await exits.wait_until_gone(members[0].pid, pidfd_open=self._pidfd_open)

    async def end(self, killed: asyncio.Event) -> list[int]:
        """Wait until nothing is left, or `killed` is set; then `reap`. Safe to cancel.

        Returns what `reap` does: the pids that did not die.
        """
        gone = asyncio.ensure_future(self.wait_gone())
        hurry = asyncio.ensure_future(killed.wait())
        try:
            await asyncio.wait((gone, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            hurry.cancel()
        return await self.reap(KILL_TIMEOUT_S)

    async def reap(self, timeout_s: float) -> list[int]:
        """Kill and reap the workers, have the guard forget them, and close descriptors.

        Returns the pids in their sessions that did not die within `timeout_s` seconds
        (uninterruptible sleep, another user's), normally none. Call again to retry those. Every
        worker that died is in `exits` by then.
        """
        self.kill_all()
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_exited.wait()
                while members := self._members():
                    for member in members:
                        sessions.kill_member(member, pidfd_open=self._pidfd_open)
                    await exits.wait_until_gone(members[0].pid, pidfd_open=self._pidfd_open)
        except TimeoutError:
            pass
        return self._release()

    def use_guard(self, guard: Guard) -> None:
        """Have a new guard guard the living workers, after the old one was killed."""
        self._guard = guard
        for pid in self._held:
            guard.register(pid)

    def _members(self) -> list[sessions.SessionProcess]:
        return sessions.live_members(self._held)

    def _note_exit(
        self,
        on_exit: Callable[[WorkerExit], None],
        local_rank: int,
        outcome: WorkerExit,
    ) -> None:
        self._note(local_rank, outcome)
        on_exit(self.exits[local_rank])

    def _note(self, local_rank: int, outcome: WorkerExit) -> None:
        pid = self.pids[local_rank]
        exit_ = replace(outcome, local_rank=local_rank, pid=pid, wall_time=time.time())
        self.exits.note(exit_, at=asyncio.get_running_loop().time())
        if (signum := self._followers.pop(pid, 0)) and pid in self._held:
            syscalls.signal_group(pid, signum)
        if len(self.exits) == len(self.pids):
            self._all_exited.set()

    def _release(self) -> list[int]:
        """Reap every worker whose session is empty; return the pids of all that still live."""
        alive = self._members()
        living = self._held - {self.pids[local_rank] for local_rank in self.exits}
        stubborn = {member.sid for member in alive} | living
        for pid in self._held - stubborn:
            # Forgotten first: once reaped, the number may be a stranger's.
            if self._guard is not None:
                self._guard.forget(pid)
            syscalls.reap_if_exited(pid)
        self._held = stubborn
        if not stubborn:
            self._watch.close()
        return sorted({member.pid for member in alive} | living)
