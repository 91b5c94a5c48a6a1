"""Timers over a named pipe: torch's format, so that either side may be torch's."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from rallypoint.files import make_pipe, open_named
from rallypoint.process import sessions, syscalls
from rallypoint.timer.scope import TimerClient
from rallypoint.timer.server import TimerRequest
from rallypoint.wire.shm import MAX_LINE_BYTES, LineSplitter
from rallypoint.wire.timer_lines import RELEASE, VERSION, format_timer_line, parse_timer_line

log = logging.getLogger(__name__)

_TRIES, _PAUSE_S = 10, 0.1
_READ_BYTES = 65536


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


class FileTimerServer:
    """Keeps timers that come through a named pipe made at `file_path`, in a thread.

    When one ends its process gets the signal that the request names, and nobody else does. A pipe
    that is there is replaced. `run_id` is for people. The thread looks at least every
    `max_interval` seconds. `log_event(name, request)` is told what happens: `watchdog started`,
    `timer expired`, `kill worker process`, `watchdog stopped`.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ) -> None:
        self._file_path, self._run_id, self._max_interval = file_path, run_id, max_interval
        self._daemon, self._log_event = daemon, log_event
        self._timers: dict[tuple[int, str], FileTimerRequest] = {}
        self._splitter = LineSplitter()
        self._progress_at = int(time.time())
        self._thread: threading.Thread | None = None
        self._stopping = False
        if os.path.exists(file_path):
            os.unlink(file_path)
        self._fd = make_pipe(file_path)
        self._wake_read, self._wake_write = syscalls.pipe_above_standard_fds()

    def start(self) -> None:
        """Start the thread."""
        self._stopping = False
        self._thread = threading.Thread(
            target=self._watch, name="rallypoint-FileTimerServer", daemon=self._daemon
        )
        self._thread.start()
        self._tell("watchdog started", None)

    def stop(self) -> None:
        """Stop the thread, wait for it, and remove the pipe. Safe to call again."""
        if self._fd < 0:
            return
        self._stopping = True
        os.write(self._wake_write, b".")
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for fd in (self._fd, self._wake_read, self._wake_write):
            os.close(fd)
        self._fd = -1
        try:
            os.unlink(self._file_path)
        except FileNotFoundError:
            pass
        self._tell("watchdog stopped", None)

    def run_once(self) -> None:
        """Look at the pipe and at the timers once, without waiting."""
        self._read()
        self._reap()

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Start timers, and end those whose time is negative."""
        for request in timer_requests:
            key = request.worker_pid, request.scope_id
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def clear_timers(self, worker_pids: set[int]) -> None:
        """End all timers of these pids."""
        self._timers = {k: v for k, v in self._timers.items() if k[0] not in worker_pids}

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """By pid, what ended at `deadline` (seconds since the epoch) or before."""
        expired: dict[int, list[FileTimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_pid, []).append(request)
        return expired

    def get_last_progress_time(self) -> int:
        """When a request came last, in seconds since the epoch; at first, when this was made."""
        return self._progress_at

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Whether there is such a process, zombies not counted."""
        return sessions.session_of(pid) is not None

    def _watch(self) -> None:
        while not self._stopping:
            try:
                ends = [request.expiration_time for request in self._timers.values()]
                wait_s = min([self._max_interval, *(end - time.time() for end in ends)])
                select.select([self._fd, self._wake_read], [], [], max(wait_s, 0.0))
                if not self._stopping:
                    self.run_once()
            except Exception:
                # One timer that makes trouble must not be the end of all others.
                log.exception("a look at the timers of job %s failed", self._run_id)
                time.sleep(_PAUSE_S)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        lines = map(parse_timer_line, self._splitter.feed(data))
        requests = [FileTimerRequest(*line[:4]) for line in lines if line is not None]
        if requests:
            self._progress_at = int(time.time())
        self.register_timers(requests)

    def _reap(self) -> None:
        expired = self.get_expired_timers(time.time())
        for pid, requests in expired.items():
            first = min(requests, key=lambda request: request.expiration_time)
            self._tell("timer expired", first)
            log.info("timer %r of process %d expired", first.scope_id, pid)
            ours = pid > 1 and pid != os.getpid()
            if first.signal > 0 and ours and syscalls.signal_process(pid, first.signal):
                self._tell("kill worker process", first)
        self.clear_timers(set(expired))

    def _tell(self, name: str, request: FileTimerRequest | None) -> None:
        if self._log_event is None:
            return
        try:
            self._log_event(name, request)
        except Exception:
            # Whoever listens must not be the end of all timers.
            log.exception("what %r was told to failed", name)
