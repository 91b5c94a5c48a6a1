"""The guard: a small process that ends all workers when the agent was killed (behaviour A6).

Parent-death signals reach the workers only; the guard reaches their children too. Each worker
registers itself between fork and exec, so that there is no moment in which it could be missed, and
the agent has it forgotten before it reaps the worker, so that the number can't be a stranger's.
It also removes the agent's temporary directories.

The channel is one pipe of 4-byte records: +pid registers, -pid forgets. Its end of file is the
death of the agent, for nobody else keeps the write end.
"""

from __future__ import annotations

import os
import select
import signal
import struct
from collections.abc import Sequence

from rallypoint.process import sessions, syscalls
from rallypoint.process.dispositions import SENT_TO_EVERYBODY
from rallypoint.process.forks import ForkedProcess, fork_process

_RECORD = struct.Struct("=i")
_STOP_TIMEOUT_MS = 2000
_KILL_PASSES = 20
_BURST_MS = 100


def register_self(child_fd: int) -> None:
    """In a forked worker that already leads its session: tell the guard. One atomic write.

    A dead guard is no reason not to start: the parent-death signal still holds, and the agent
    learns of the death by `Guard.fileno`.
    """
    _write(child_fd, os.getpid())


class Guard:
    """The agent's handle of its guard. Start it before the event loop, stop it last."""

    def __init__(self, process: ForkedProcess, channel: int, lifeline: int) -> None:
        self._process = process
        self._channel = channel
        self._lifeline = lifeline

    @classmethod
    def start(cls, temporary_dirs: Sequence[str] = ()) -> Guard:
        """Fork the guard. Also makes sure that descriptors 0 to 2 are open (see syscalls).

        `temporary_dirs`, absolute paths, are removed with all in them at the end, whatever that is.

        May be called again while a loop runs, to replace a guard that was killed; the workers that
        live must then be registered again.
        """
        syscalls.open_standard_fds()
        channel_read, channel_write = syscalls.pipe_above_standard_fds()
        lifeline_read, lifeline_write = syscalls.pipe_above_standard_fds()
        agent_pid = os.getpid()
        try:
            process = fork_process(
                lambda: _watch(channel_read, agent_pid, temporary_dirs),
                name="rallypoint-grd",
                keep_fds=(channel_read, lifeline_write),
                ignored_signals=SENT_TO_EVERYBODY,
                dies_with_parent=False,
            )
        except BaseException:
            os.close(channel_write)
            os.close(lifeline_read)
            raise
        finally:
            os.close(channel_read)
            os.close(lifeline_write)
        os.set_blocking(channel_write, False)  # A stopped guard must not stop the agent.
        return cls(process, channel_write, lifeline_read)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def child_fd(self) -> int:
        """What a worker between fork and exec gives to `register_self`. Close-on-exec."""
        return self._channel

    def fileno(self) -> int:
        """Becomes readable (end of file) when the guard has died, which only a SIGKILL can do."""
        return self._lifeline

    def owns(self, pid: int) -> bool:
        """Whether `pid` is the guard: a reaper of orphans must leave it alone."""
        return pid == self._process.pid

    def register(self, pid: int) -> None:
        """Have a living worker guarded that registered with an earlier guard."""
        _write(self._channel, pid)

    def forget(self, pid: int) -> None:
        """The session of this worker is empty. Must come before the worker is reaped."""
        _write(self._channel, -pid)

    def stop(self) -> None:
        """End the guard and reap it; what is still registered is killed. Safe to call again.

        Blocks while the guard finishes, 2 s at most: then it is killed.
        """
        if self._channel < 0:
            return
        os.close(self._channel)
        self._channel = -1
        waiting = select.poll()
        waiting.register(self._lifeline, select.POLLIN)
        if not waiting.poll(_STOP_TIMEOUT_MS):
            self._process.kill()
        self._process.wait()
        os.close(self._lifeline)
        self._lifeline = -1


def _write(fd: int, record: int) -> None:
    try:
        os.write(fd, _RECORD.pack(record))
    except (BrokenPipeError, BlockingIOError):
        pass  # The guard is dead or stopped; see `register_self`.


def _watch(channel: int, agent_pid: int, temporary_dirs: Sequence[str]) -> None:
    """The guard's life: read records until the agent is gone, then kill what is registered."""
    _let_go()
    registered: set[int] = set()
    agent = _open_agent(agent_pid)
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    if agent is not None:
        # A process that the agent's program forked by other means may hold the pipe open.
        waiting.register(agent, select.POLLIN)
    bursting = select.poll()
    bursting.register(channel, 0)  # Only its end, which poll always tells.
    if agent is not None:
        bursting.register(agent, select.POLLIN)
    os.set_blocking(channel, False)
    agent_lives = os.getppid() == agent_pid
    while agent_lives:
        ready = {fd for fd, _ in waiting.poll()}
        agent_lives = _read_records(channel, registered) and agent not in ready
        if agent_lives and agent is not None:
            # Records come in bursts, at the moment when the machine has better to do: take the
            # rest of a burst at once, but the end of the agent or of its pipe at any time.
            bursting.poll(_BURST_MS)
    _kill(registered)
    remaining = [path for path in temporary_dirs if os.path.isdir(path)]
    if remaining:
        from shutil import rmtree

        for path in remaining:
            rmtree(path, ignore_errors=True)


def _read_records(channel: int, registered: set[int]) -> bool:
    """Apply what the pipe holds now; False at its end. Writes are whole records, so reads are."""
    while True:
        try:
            data = os.read(channel, 1024 * _RECORD.size)
        except BlockingIOError:
            return True
        if not data:
            return False
        for (record,) in _RECORD.iter_unpack(data):
            if record > 0:
                registered.add(record)
            else:
                registered.discard(-record)


def _kill(registered: set[int]) -> None:
    for pid in registered:
        syscalls.signal_group(pid, signal.SIGKILL)
    # Members of other groups in the same sessions; again, because a fork may escape one pass.
    for _ in range(_KILL_PASSES):
        members = sessions.live_members(registered)
        if not members:
            return
        for member in members:
            sessions.kill_member(member)
        select.select([], [], [], 0.01)


def _open_agent(agent_pid: int) -> int | None:
    try:
        return syscalls.pidfd_open(agent_pid)
    except OSError:
        return None


def _let_go() -> None:
    """Hold neither the console nor a directory: a guard must keep no terminal or mount busy."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    os.chdir("/")
