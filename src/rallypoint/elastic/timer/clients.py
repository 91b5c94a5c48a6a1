"""How workers set timers, in torch's vocabulary: requests, and the ways to a server."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from rallypoint.files import open_named
from rallypoint.wire.shm import MAX_LINE_BYTES
from rallypoint.wire.timer_lines import RELEASE, VERSION, format_timer_line

_TRIES, _PAUSE_S = 10, 0.1


class TimerClient(ABC):
    """How a worker sets timers. Its server decides what happens when one ends."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this scope; it ends at so many seconds since the epoch."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """End it: nothing will happen."""


@dataclass(slots=True)
class TimerRequest:
    """A timer that is acquired, or released when `expiration_time` is negative.

    What a `worker_id` is, client and server settle between them. The time is in seconds since the
    epoch.
    """

    worker_id: object
    scope_id: str
    expiration_time: float


class FileTimerRequest(TimerRequest):
    """A request of one process. `signal` is what ends it; 0 or less: nothing does."""

    def __init__(
        self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0
    ) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = VERSION
        self.signal = int(signal)

    @property
    def worker_pid(self) -> int:
        """The same as `worker_id`."""
        assert isinstance(self.worker_id, int)
        return self.worker_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileTimerRequest) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> str:
        """The line that a client writes, without its end."""
        return format_timer_line(self.worker_pid, self.scope_id, self.expiration_time, self.signal)


class LocalTimerClient(TimerClient):
    """Puts requests into the `multiprocessing` queue of a `LocalTimerServer`; by pid."""

    def __init__(self, mp_queue: Any) -> None:
        self._queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this scope."""
        self._queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        """End it."""
        self._queue.put(TimerRequest(os.getpid(), scope_id, -1))


class FileTimerClient(TimerClient):
    """Sets timers of this process through the pipe at `file_path`, which the server has made.

    When one ends the server sends `signal` (none if 0 or less). A call blocks for a second at most;
    it raises BrokenPipeError when nobody reads the pipe, RuntimeError for too long a scope.
    """

    _tries_when_full = _TRIES

    def __init__(self, file_path: str, signal: int = signal.SIGKILL) -> None:
        self._file_path, self.signal = file_path, int(signal)

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this scope."""
        request = FileTimerRequest(os.getpid(), scope_id, expiration_time, self.signal)
        self._send(request.scope_id, request.to_json())

    def release(self, scope_id: str) -> None:
        """End it."""
        self._send(scope_id, FileTimerRequest(os.getpid(), scope_id, RELEASE, 0).to_json())

    def _send(self, scope_id: str, text: str) -> None:
        line = text.encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise RuntimeError(
                f"the scope {scope_id[:40]!r}... makes a request of {len(line)} bytes: "
                f"at most {MAX_LINE_BYTES} are possible, use a shorter scope"
            )
        attempt = 0
        while True:
            try:
                fd = open_named(self._file_path, os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(fd, line)
                    return
                finally:
                    os.close(fd)
            except OSError as error:
                attempt += 1
                is_full = isinstance(error, BlockingIOError)
                if attempt >= (self._tries_when_full if is_full else _TRIES):
                    where = f"no timer server can be reached at {self._file_path}"
                    raise BrokenPipeError(f"{where}: {error.strerror}") from error
            time.sleep(_PAUSE_S)


class AgentTimerClient(FileTimerClient):
    """To the agent of this worker, which is told how long a timer is as well.

    An agent that is paused does not read: that must not fail its workers. A call blocks for at most
    a minute.
    """

    _tries_when_full = 600

    def begin(self, scope_id: str, after_s: float) -> None:
        """Start the timer of this scope; it ends after so many seconds."""
        ends_at, pid = time.time() + after_s, os.getpid()
        self._send(scope_id, format_timer_line(pid, scope_id, ends_at, self.signal, after_s))
