"""The timers of this node's workers (W6).

A worker whose block takes longer than its timer is ended, and it alone; the agent continues, and
the round ends by that failure. Requests come through the wake-up pipe beside the shared memory,
which `rallypoint.elastic.timer` uses by itself, and through the named pipe of torch's variables,
for torch's clients. As in torch, they have wall-clock times. Only the remaining time at arrival is
used, on the clock of the loop, so that a change of the wall clock ends no worker.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import stat
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from rallypoint.agent.worker_shm import WatchedPipe
from rallypoint.clocks import Alarm
from rallypoint.errors import UsageError, during
from rallypoint.files import open_named
from rallypoint.process import sessions
from rallypoint.wire.timer_lines import TimerLine, parse_timer_line
from rallypoint.worker.timers import Countdown, PendingTimers

MAX_SCOPE_CHARACTERS = 200
MAX_SIGNAL = 64
MAX_LENGTH_S = 1e9
"""The longest timer in seconds, over 30 years; a longer one is cut to it."""


class Expiry(Struct, frozen=True):
    """A worker whose timer has ended, and the signal that its request wants (0: none)."""

    local_rank: int
    reason: str
    signal: int


class WorkerTimers:
    """The timers of the workers of one round.

    `on_expired` is called from the loop when the first timer of a process has ended; the other
    timers of that process are forgotten then.
    """

    def __init__(self, pids: Sequence[int], on_expired: Callable[[Expiry], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pids = {pid: local_rank for local_rank, pid in enumerate(pids)}
        self._on_expired = on_expired
        self._pending = PendingTimers()
        self._alarm = Alarm(self._loop, self._ring)

    def line(self, data: bytes) -> None:
        """Handle a line of a pipe: start or release the timer that it requests, if any."""
        request = parse_timer_line(data)
        if request is None:
            return
        if request.expires_at < 0:
            self._pending.release(request.pid, request.scope)
        elif self._worker_of(request.pid) is not None:
            self._pending.acquire(self._started(request))
            self._set_alarm()

    def close(self) -> None:
        """Close the timers: the round ends, and no worker is ended for a timer any more.

        Safe to call again.
        """
        self._pending = PendingTimers()
        self._pids = {}
        self._alarm.cancel()

    def _started(self, request: TimerLine) -> Countdown:
        left_s = min(request.expires_at - time.time(), MAX_LENGTH_S)
        # What a client does not say is known but for the time that its request has waited.
        length_s = math.ceil(max(left_s, 0.0) * 10) / 10
        if request.length_s is not None:
            length_s = request.length_s
        ends_at = self._loop.time() + left_s
        return Countdown(request.pid, request.scope, ends_at, length_s, request.signal)

    def _worker_of(self, pid: int) -> int | None:
        """Return the local rank of the worker that this process is, or belongs to; else None."""
        if pid in self._pids or pid <= 1:
            return self._pids.get(pid)
        try:
            session = sessions.session_of(pid)
        except OSError:
            return None  # It can't be looked at just now.
        return self._pids.get(session) if session is not None else None

    def _set_alarm(self) -> None:
        """Set the alarm to the end of the timer that ends first, unless it is set earlier.

        One that is too early costs less than one that is moved at every request.
        """
        ends_at = self._pending.next_end()
        if ends_at is not None:
            self._alarm.set(ends_at)

    def _ring(self) -> None:
        for timer in self._pending.expired(self._loop.time()):
            local_rank = self._worker_of(timer.pid)
            self._pending.forget(timer.pid)
            if local_rank is not None:
                signum = timer.signal if 0 < timer.signal <= MAX_SIGNAL else 0
                self._on_expired(Expiry(local_rank, _reason(timer), signum))
        self._set_alarm()


class TimerPipe:
    """The named pipe of torch's variables; `path` is given to the workers.

    A path that a user has chosen is used unless another agent reads that pipe: another agent of
    this node, or the one around this one, from which the variable was inherited.
    """

    def __init__(self, chosen: str, wake_up_path: str, on_line: Callable[[bytes], None]) -> None:
        """Make the pipe; `wake_up_path` replaces it if none was chosen or another agent reads it.

        Raises UsageError when that is not possible.
        """
        self._pipe: WatchedPipe | None = None
        self._on_line = on_line
        self.path = chosen
        if not chosen or not _make_way(chosen):
            if not wake_up_path:
                raise UsageError(
                    "TORCHELASTIC_ENABLE_FILE_TIMER=1: no writable directory for the pipe: set "
                    "TMPDIR to a writable one"
                )
            self.path = wake_up_path
            return
        try:
            self._pipe = WatchedPipe(chosen, self._feed)
        except OSError as error:
            raise during("make a pipe", error.errno, _cant_make(chosen, _why(error))) from error

    def close(self) -> None:
        """Remove the pipe, if this agent made it. May be called again."""
        if self._pipe is not None:
            self._pipe.close()

    def _feed(self, lines: list[bytes]) -> None:
        for line in lines:
            self._on_line(line)


def _make_way(path: str) -> bool:
    """Remove a pipe without a reader, if one is there; return False if it has a reader.

    Raises UsageError for anything else at that path, or if the pipe can't be removed.
    """
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            raise _cant_make(path, "there is something else")
        if _has_reader(path):
            return False
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise during("make a pipe", error.errno, _cant_make(path, _why(error))) from error
    return True


def _has_reader(path: str) -> bool:
    try:
        os.close(open_named(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True


def _cant_make(path: str, why: str) -> UsageError:
    return UsageError(
        f"TORCHELASTIC_TIMER_FILE={path}: can't make this named pipe: {why}: choose another path"
    )


def _why(error: OSError) -> str:
    return os.strerror(error.errno or 0)


def _reason(timer: Countdown) -> str:
    scope = timer.scope
    if len(scope) > MAX_SCOPE_CHARACTERS:
        scope = "..." + scope[-MAX_SCOPE_CHARACTERS:]
    return f"timer {scope!r} expired after {timer.length_s:g} s"
