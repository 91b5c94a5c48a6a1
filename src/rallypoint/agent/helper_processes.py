"""The helper processes of an agent, and the state that its guard needs.

The guard ends every worker when the agent is killed, and notes the signals of a scheduler; the
relay owns the console. They are forked first, while the agent is small. The guard knows until when
this node holds its place, and the notice for the coordinator, or for the register of the job that
the agent led, when the agent has died.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, NamedTuple

from rallypoint.agent.worker_source import WorkerSource
from rallypoint.process.guard import Guard, SharedPage
from rallypoint.process.limits import cant_start_process
from rallypoint.process.logs.log_dir import storage_error
from rallypoint.process.relay.client import Relay
from rallypoint.process.relay.messages import (
    FirstOutput,
    NothingMatched,
    PatternOff,
    PatternReport,
    RelayNews,
    SharedInput,
    WriteFailed,
)
from rallypoint.wire.death_notice import ByRegister, Notice, ReleaseNotice

CONSOLE_S = 10.0
"""How long the console may take for the last lines, in seconds, if the shutdown timeout allows
it."""
CONSOLE_LEAST_S = 1.0
"""The least time that the console gets for the last lines, in seconds."""
MOMENT_S = 0.2
"""How long `wait_unless` still waits when `hurried` is set, in seconds."""
RELAY_LIFE_S = 1.0
"""How long a restarted relay must live, in seconds, to be replaced when it dies: restarts must not
go on for ever."""


class HelperEvents(NamedTuple):
    """The callbacks of an agent for what its helper processes report; called in the loop."""

    guard_replaced: Callable[[Guard], None]
    relay_replaced: Callable[[int, bool], None]
    """Called with the last round whose output the killed relay had (-1: none), and whether there is
    another relay."""
    storage_error: Callable[[str], None]
    """Called with a message, for the user, when stdout or a log file can't be written any more."""
    first_output: Callable[[int], None]
    """Called with the round whose first output came through the relay."""
    shared_input: Callable[[], None]
    """Called when several workers read from one terminal."""
    pattern: Callable[[PatternReport], None]
    """Called with each report about `--progress-pattern`."""
    guard_signalled: Callable[[int], None]
    """Called with the number of each signal that has reached the guard."""


class HelperProcesses:
    """The guard and the relay of an agent, and the source of its workers.

    Ended by `stop` or `kill`, which leave none of them behind.
    """

    def __init__(self, temporary_dirs: Sequence[str], source: WorkerSource, part_of: str) -> None:
        """Fork the helper processes; to be made before the loop runs.

        The guard removes `temporary_dirs` in the end, also when the agent is killed. `source` is
        started and closed with them. `part_of` ends all titles of processes but the guard's. Raises
        InfrastructureError when the system can't start a process, and UsageError as `source.start`.
        """
        self.source, self._part_of = source, part_of
        self.hurried = asyncio.Event()
        """Set to have `stop` not wait for the console."""
        self._events: HelperEvents | None = None
        self._relay_started_at = -inf
        self._temporary_dirs = tuple(temporary_dirs)
        self._page = SharedPage()
        self.guard = self._start_guard()
        try:
            title = f"rallypoint: relay{part_of}"
            self.relay = Relay.start(self._relay_tells, self._replace_relay, title=title)
        except OSError as error:
            self.guard.stop()
            raise cant_start_process(error) from error
        try:
            source.start(self.guard, part_of)
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError):
                raise cant_start_process(error) from error
            raise

    def owns(self, pid: int) -> bool:
        """Return whether only this object may reap the process."""
        is_ours = self.guard.owns(pid) or pid == self.relay.process.pid
        return is_ours or self.source.owns(pid)

    def hold(self, until_s: float) -> None:
        """Tell the guard, and later ones, when the lease ends and they have to kill the workers.

        `until_s` is in seconds on CLOCK_BOOTTIME; 0: never. See `Guard.hold`.
        """
        self.guard.hold(until_s)

    def leave_notice(self, notice: bytes) -> None:
        """Set the notice that a guard sends when this agent has died and no worker lives.

        It is encoded as in `wire/death_notice.py`, and replaces the earlier notice; b"", or one
        that is too long: none.
        """
        self._page.leave_notice(notice)

    def watch(self, events: HelperEvents) -> None:
        """Call the functions of `events` from now on, and replace a guard that was killed.

        Without a guard, a killed agent leaves workers behind.
        """
        self._events = events
        asyncio.get_running_loop().add_reader(self.guard.fileno(), self._guard_tells)

    def unwatch(self) -> None:
        """Stop watching the guard. May be called again, and without a watch."""
        if self.guard.fileno() >= 0:  # A dead guard that could not be replaced has none.
            asyncio.get_running_loop().remove_reader(self.guard.fileno())

    def take_signals(self) -> bool:
        """Read the signals that have reached the guard by now, and report each to the agent.

        Return False if the guard has died.
        """
        if self._events is None:
            return True
        numbers = self.guard.read_signals()
        for number in numbers or ():
            self._events.guard_signalled(number)
        return numbers is not None

    def _guard_tells(self) -> None:
        if not self.take_signals():
            self._replace_guard()

    async def stop(self, limit_s: float) -> None:
        """Close the source of workers, flush the relay, then end both helpers.

        A console that does not accept output delays this for `limit_s`, but for 1 s at least and 10
        s at most, or until `hurried` is set.
        """
        self.source.close()
        limit_s = max(limit_s, CONSOLE_LEAST_S)
        await wait_unless(self.hurried, self.relay.stop(min(limit_s, CONSOLE_S)), limit_s)
        self.guard.stop()

    def kill(self) -> None:
        """Close the source of workers, kill the relay and end the guard, where no loop can run."""
        self.source.close()
        self.relay.kill()
        self.guard.stop()

    def _start_guard(self) -> Guard:
        try:
            by_register = ByRegister(_release, _who_hears)
            return Guard.start(self._temporary_dirs, self._page, by_register)
        except OSError as error:
            raise cant_start_process(error) from error

    def _replace_guard(self) -> None:
        self.unwatch()
        self.guard.stop()
        self.guard = self._start_guard()
        self.source.use_guard(self.guard)
        assert self._events is not None
        self._events.guard_replaced(self.guard)
        self.watch(self._events)

    def _replace_relay(self, round_number: int) -> None:
        now = asyncio.get_running_loop().time()
        by_another = now - self._relay_started_at >= RELAY_LIFE_S
        self._relay_started_at = now
        if by_another:
            try:
                self.relay.restart()
            except OSError:
                by_another = False  # Output goes where the agent's own goes: see `Relay.add`.
        if self._events is not None:
            self._events.relay_replaced(round_number, by_another)

    def _relay_tells(self, news: RelayNews) -> None:
        if (events := self._events) is None:
            return
        match news:
            case FirstOutput(round_number):
                events.first_output(round_number)
            case SharedInput():
                events.shared_input()
            case PatternOff() | NothingMatched():
                events.pattern(news)
            case WriteFailed(b"stderr", _):
                pass  # There is nobody to tell.
            case WriteFailed(b"stdout", number):
                text = f"worker output can't be written to stdout: {os.strerror(number)}: "
                events.storage_error(text + "lost output is not written again")
            case WriteFailed(path, number):
                error = OSError(number, os.strerror(number))
                events.storage_error(str(storage_error(os.fsdecode(path), error)))


def _release(notice: ReleaseNotice, limit_s: float) -> None:
    # Imported now, in the process that the guard starts for it: most agents lead no job.
    from rallypoint.register.release import release

    release(notice, limit_s)


def _who_hears(notice: Notice, limit_s: float) -> Callable[[], tuple[str, ...] | None]:
    from rallypoint.register.release import who_hears

    return who_hears(notice, limit_s)


class NodeLease:
    """The end of this node's lease in the job, as its guard and its workers are told.

    For the thread of the loop.

    Times are seconds on CLOCK_BOOTTIME; 0: not known, or no other node can take the place.
    """

    def __init__(self, tell_guard: Callable[[float], None]) -> None:
        self._tell_guard = tell_guard
        self._tell_workers: Callable[[float], None] | None = None
        self._until = 0.0
        self._is_fenced = False

    def tell_workers(self, tell: Callable[[float], None]) -> None:
        """Call `tell` with the end of the lease, now and at each renewal."""
        self._tell_workers = tell
        tell(self._until)

    def renewed(self, until: float) -> None:
        """Note a renewal of the lease until this time; tell the guard and the workers."""
        self._until = until
        if self._tell_workers is not None:
            self._tell_workers(until)
        self.fence(self._is_fenced)

    def fence(self, is_fenced: bool) -> None:
        """Set whether the guard must kill the workers at the end of the lease, and tell it."""
        self._is_fenced = is_fenced
        self._tell_guard(self._until if is_fenced else 0.0)


async def wait_unless(
    hurried: asyncio.Event, waiting: Coroutine[Any, Any, object], limit_s: float
) -> None:
    """Wait for a coroutine for at most `limit_s`, or only a moment once `hurried` is set.

    It runs as a task, which is cancelled after that. Raises what the task raises.
    """
    task = asyncio.ensure_future(waiting)
    hurry = asyncio.ensure_future(hurried.wait())
    try:
        ends: list[asyncio.Future[Any]] = [task, hurry]
        await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if hurry.done():
            await asyncio.wait((task,), timeout=min(limit_s, MOMENT_S))
    finally:
        hurry.cancel()
        task.cancel()
        await asyncio.wait((task, hurry))
    if not task.cancelled():
        task.result()
