"""The guard: a small process that ends all workers when the agent was killed.

Behaviour A6; also when the agent is stopped and the lease of the node is over (behaviour F2).

Parent-death signals reach the workers only; the guard reaches their children too. Each worker
registers itself between fork and exec, so that there is no moment in which it could be missed, and
the agent has it forgotten before it reaps the worker, so that the number can't be a stranger's.
It also tells the coordinator that the agent died, or the register that its leader did, once the
workers are dead, and removes the agent's temporary directories. If the coordinator may have died
with the agent, the guard stays until it has told the next one, or for 40 s.

While the agent lives, the guard is the witness of signals that a scheduler sends to every process
of a job: it tells the agent the number of each one that reaches it. It is proof that the workers
got the signal too, and so must not be found where the workers are not. `pkill rallypoint` finds
helpers by their names, and `pkill -f` by a job's name. So the guard's name and title have neither.

The channel to the guard is one pipe of 4-byte records: +pid registers, -pid forgets, and with one
more bit set pid is a helper, which no lease ends; 0 only wakes the guard. Its end of file is the
death of the agent, for nobody else keeps the write end. The lease is in memory that both share: a
renewal is one write to it, and wakes nobody.

The memory that both share, which the guard can read while the agent is stopped or dead:

    word     the end of the lease: nanoseconds on CLOCK_BOOTTIME; 0: no fence
    word     the length of the death notice; 0: there is none
    bytes    the death notice: what to tell, and whom, when the agent has died

The agent alone writes. A word is aligned and of 8 bytes, which processors read and write whole, so
nothing is locked. The length is set to 0 before the notice changes and written after it, and the
notice is read when its writer is dead: so it is whole whenever the agent was killed.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rallypoint.core import liveness
from rallypoint.files import remove_tree
from rallypoint.process import sessions, signals, syscalls, titles
from rallypoint.process.forks import ForkedProcess, fork_process
from rallypoint.process.limits import OomWatch

if TYPE_CHECKING:
    from rallypoint.wire.death_notice import ByRegister

NAME = "worker-guard"
TITLE = "worker guard"

_RECORD = struct.Struct("=i")
_HELPER = 1 << 30
"""The flag, above all pids, in a record about a process that is not a worker."""
_LONGEST_POLL_MS = 3_600_000
_STOP_TIMEOUT_MS = 2000
_KILL_S = 0.2
_LAST_KILL_S = 1.0
"""The time in seconds for killing the workers of an agent that has left a death notice. A worker
with much memory takes a moment to die, and while one lives nothing is reported."""
_BURST_MS = 100
_QUIET_MS = 1000


def register_self(child_fd: int) -> None:
    """Register this forked worker, which already leads its session, with the guard.

    It is one atomic write. A dead guard does not stop the start: the parent-death signal still
    applies, and the agent learns of the death by `Guard.fileno`.
    """
    _write(child_fd, os.getpid())


class Guard:
    """The agent's handle of its guard, the process that kills the workers when the agent dies.

    Start it before the event loop, stop it last.
    """

    def __init__(
        self, process: ForkedProcess, channel: int, lifeline: int, page: SharedPage
    ) -> None:
        self._process, self._page = process, page
        self._channel = channel
        self._lifeline = lifeline

    @classmethod
    def start(
        cls,
        temporary_dirs: Sequence[str] = (),
        page: SharedPage | None = None,
        by_register: ByRegister | None = None,
    ) -> Guard:
        """Fork the guard. Also makes sure that descriptors 0 to 2 are open (see syscalls).

        The guard removes `temporary_dirs`, absolute paths, when the agent has ended in any way, but
        not one that the agent's program keeps (`scratch.py`). Once workers run, it also removes
        what killed agents have left in the parents of these directories. `page` is the shared
        memory of an earlier guard; None: a new one. `by_register`: the functions that release and
        read the register of a job that any of its nodes may lead.

        May be called again while a loop runs, to replace a guard that was killed; the workers that
        live must then be registered again. Raises OSError when the system can't fork.
        """
        page = page or SharedPage()
        syscalls.open_standard_fds()
        channel_read, channel_write = syscalls.pipe_above_standard_fds()
        lifeline_read, lifeline_write = syscalls.pipe_above_standard_fds()
        agent_pid = os.getpid()
        try:
            process = fork_process(
                lambda: _serve(
                    channel_read, lifeline_write, agent_pid, temporary_dirs, page, by_register
                ),
                name=NAME,
                title=TITLE,
                keep_fds=(channel_read, lifeline_write),
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
        os.set_blocking(lifeline_read, False)
        return cls(process, channel_write, lifeline_read, page)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def child_fd(self) -> int:
        """The descriptor that a worker between fork and exec passes to `register_self`.

        Close-on-exec.
        """
        return self._channel

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when signals have reached the guard.

        It also becomes readable when the guard has died, as by a SIGKILL. See
        `read_signals`. After `stop` it is -1.
        """
        return self._lifeline

    def read_signals(self) -> tuple[int, ...] | None:
        """Return the numbers of the signals that have reached the guard since the last call.

        Does not block.

        None: the guard has died, or was stopped.
        """
        if self._lifeline < 0:
            return None
        try:
            return tuple(os.read(self._lifeline, 4096)) or None
        except BlockingIOError:
            return ()

    def owns(self, pid: int) -> bool:
        """Return whether `pid` is the guard: a reaper of orphans must leave it alone."""
        return pid == self._process.pid

    def register(self, pid: int) -> None:
        """Register with this guard a living process of a former one; it counts as a worker."""
        _write(self._channel, pid)

    def spare(self, pid: int) -> None:
        """Tell the guard that this registered process is not a worker.

        The guard kills it when the agent dies, but not when the node's lease is over.
        """
        _write(self._channel, pid | _HELPER)

    def hold(self, until_s: float) -> None:
        """Set the end of the node's lease, after which the guard kills the workers.

        `until_s` is in seconds on CLOCK_BOOTTIME; 0: no lease ends them. The guard waits a moment
        longer, so that the agent can end them first.
        """
        had_fence = self._page.held_until_ns > 0
        self._page.hold(until_s)
        if until_s and not had_fence:
            _write(self._channel, 0)

    def forget(self, pid: int) -> None:
        """Have the guard forget a worker whose session has no live process any more.

        Must be called before the worker is reaped.

        Does nothing after `stop`: the guard has killed the worker then, and is gone.
        """
        if self._channel >= 0:
            _write(self._channel, -pid)

    def stop(self) -> None:
        """End the guard and reap it; registered processes are killed.

        May be called again.

        Blocks while the guard finishes, 2 s at most: then it is killed.
        """
        if self._channel < 0:
            return
        os.close(self._channel)
        self._channel = -1
        waiting = select.poll()
        waiting.register(self._lifeline, 0)  # Only its end, which poll always tells.
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


class _Registered:
    """The processes that the guard has to kill, according to the records in its pipe."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self.workers: set[int] = set()
        self.killed: set[int] = set()
        """The workers that were killed because the node's lease was over."""

    def apply(self, record: int) -> None:
        pid = abs(record) & ~_HELPER
        if record < 0:
            for known in (self.pids, self.workers, self.killed):
                known.discard(pid)
        elif record & _HELPER:
            self.workers.discard(pid)
        elif record:
            self.pids.add(pid)
            self.workers.add(pid)


def _serve(
    channel: int,
    told: int,
    agent_pid: int,
    temporary_dirs: Sequence[str],
    page: SharedPage,
    by_register: ByRegister | None,
) -> None:
    """Live as the guard: read records until the agent is gone, then kill what is registered.

    Meanwhile the number of each signal that a scheduler sends is written to the descriptor `told`.
    """
    _let_go()
    _tell_signals(told)
    registered = _Registered()
    agent = syscalls.try_pidfd_open(agent_pid)
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
    oom = OomWatch()
    unswept = {os.path.dirname(path) for path in temporary_dirs}
    agent_lives = os.getppid() == agent_pid
    while agent_lives:
        limit_ms = _poll_ms(page, registered)
        settles = bool(unswept and registered.workers)
        if settles:
            limit_ms = _QUIET_MS if limit_ms is None else min(limit_ms, _QUIET_MS)
        ready = {fd for fd, _ in waiting.poll(limit_ms)}
        if settles and not ready:
            _sweep(unswept)
            unswept = set()
        agent_lives = _read_records(channel, registered) and agent not in ready
        _keep_fence(page, registered)
        if ready and agent_lives and agent is not None:
            oom.rearm()  # What was killed before these workers began has not killed the agent.
            # Records come in bursts, at the moment when the machine has better to do: take the
            # rest of a burst at once, but the end of the agent or of its pipe at any time.
            bursting.poll(_BURST_MS)
    _ignore_signals()
    # If the agent died before this guard began, no record has been read yet.
    _read_records(channel, registered)
    _end(registered, agent_pid, temporary_dirs, page, by_register, oom)


def _end(
    registered: _Registered,
    agent_pid: int,
    temporary_dirs: Sequence[str],
    page: SharedPage,
    by_register: ByRegister | None,
    oom: OomWatch,
) -> None:
    """End after the agent: kill what is registered, obey its notice, remove its directories.

    The notice, if the agent has left one, is obeyed only if all registered processes have died: it
    asks for a report of the agent's death, or for the release of the job's record.
    """
    # An agent that leaves its job takes the notice away; then the connection's end alone tells.
    notice, tell_next = page.notice, None
    limit_s = _LAST_KILL_S if notice else _KILL_S
    if sessions.kill_sessions(registered.pids, limit_s) and notice:
        with suppress(Exception):  # It has no console, and must still remove what is left.
            from rallypoint.process.death_report import tell

            tell_next = tell(notice, agent_pid, by_register, out_of_memory=oom.rose())
    remaining = [path for path in temporary_dirs if os.path.isdir(path)]
    if remaining:
        from rallypoint.process.scratch import is_kept

        for path in remaining:
            if not is_kept(path):
                remove_tree(path)
    if tell_next is not None:
        with suppress(Exception):
            tell_next()


def _tell_signals(told: int) -> None:
    """Have the number of each signal that a scheduler sends written to `told` as one byte."""
    os.set_blocking(told, False)

    def tell(number: int, _frame: object) -> None:
        with suppress(OSError):  # The agent has died, or has not read thousands of signals.
            os.write(told, bytes((number,)))

    for number in signals.SENT_TO_EVERYBODY:
        signal.signal(number, tell)


def _ignore_signals() -> None:
    for number in signals.SENT_TO_EVERYBODY:
        signal.signal(number, signal.SIG_IGN)


def _sweep(places: set[str]) -> None:
    """Remove what killed agents have left in these directories, in a separate process.

    The guard must not wait for a file system. Does nothing if the system can't fork.
    """
    prctl, guard_pid = syscalls.load_prctl(), os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for it.
    try:
        if os.fork():
            return
    except OSError:
        return
    try:
        _ignore_signals()  # The descriptor by which they are told may become another file's.
        syscalls.die_with_parent(prctl, guard_pid)
        syscalls.close_fds_except(frozenset())
        titles.set_name("rallypoint-swp")
        os.nice(19)
        # Imported now: at the start it would cost time.
        from rallypoint.process.scratch import sweep

        sweep(places)
    finally:
        os._exit(0)


def _poll_ms(page: SharedPage, registered: _Registered) -> int | None:
    """Return the milliseconds until the guard may have to kill workers for the lease's end.

    An hour at most; None: there is no lease, or no worker that it has not killed. Time in which the
    machine is suspended is noticed only at the next wake-up.
    """
    look_ns = liveness.next_look_ns(
        page.held_until_ns, boot_time_ns(), registered.workers, registered.killed
    )
    return None if look_ns is None else min(look_ns // 1_000_000 + 1, _LONGEST_POLL_MS)


def _keep_fence(page: SharedPage, registered: _Registered) -> None:
    """Kill the workers if the node's lease is over, each once.

    They stay registered until the agent has them forgotten.
    """
    overdue = liveness.overdue(
        page.held_until_ns, boot_time_ns(), registered.workers, registered.killed
    )
    if overdue:
        registered.killed |= overdue
        sessions.kill_sessions(overdue, _KILL_S)


def _read_records(channel: int, registered: _Registered) -> bool:
    """Apply the records in the pipe, which register or forget processes; return False at its end.

    Writes and reads are whole records.
    """
    while True:
        try:
            data = os.read(channel, 1024 * _RECORD.size)
        except BlockingIOError:
            return True
        if not data:
            return False
        for (record,) in _RECORD.iter_unpack(data):
            registered.apply(record)


def _let_go() -> None:
    """Replace descriptors 0 to 2 by the null device, and leave the directory for `/`.

    A guard must keep no terminal or mount busy.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    os.chdir("/")


_HELD_UNTIL: Final = 0
_LENGTH: Final = 1
_NOTICE_AT: Final = 16
_NS_PER_S = 1_000_000_000
_LONGEST_NS = 2**62


class SharedPage:
    """The memory that an agent shares with its guard: the end of the lease, and the death notice.

    Made before the guard is forked. Only the agent may write to it.
    """

    def __init__(self) -> None:
        self._bytes = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._words = self._bytes.cast("q")

    @property
    def held_until_ns(self) -> int:
        """The end of the node's lease in nanoseconds on CLOCK_BOOTTIME; 0: there is no lease."""
        return self._words[_HELD_UNTIL]

    def hold(self, until_s: float) -> None:
        """Set the end of the node's lease in seconds on CLOCK_BOOTTIME; 0: none."""
        self._words[_HELD_UNTIL] = min(int(until_s * _NS_PER_S), _LONGEST_NS)

    @property
    def notice(self) -> bytes:
        """The encoded notice of what to do when the agent has died; empty: there is none.

        To be read only when the agent is dead.
        """
        return bytes(self._bytes[_NOTICE_AT : _NOTICE_AT + self._words[_LENGTH]])

    def leave_notice(self, notice: bytes) -> None:
        """Replace the agent's death notice; b"": none. One that is too long counts as none."""
        self._words[_LENGTH] = 0
        end = _NOTICE_AT + len(notice)
        if end <= len(self._bytes):
            self._bytes[_NOTICE_AT:end] = notice
            self._words[_LENGTH] = len(notice)


def boot_time_ns() -> int:
    """Return the time in nanoseconds on CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
