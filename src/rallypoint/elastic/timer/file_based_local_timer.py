"""Timers through a named pipe, in torch's format, so that either side may be torch's."""

from __future__ import annotations

import os
import signal
import time

from rallypoint.elastic.timer.api import TimerClient, TimerRequest, register

TYPE_CHECKING = False  # That of `typing` would cost a worker several ms.
if TYPE_CHECKING:
    import logging
    import threading
    from collections.abc import Callable

_PAUSE_S = 0.1


class FileTimerRequest(TimerRequest):
    """A process's request to start or release a timer.

    If the timer expires, the process gets `signal`; 0 or less: none is sent.
    """

    def __init__(
        self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0
    ) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        from rallypoint.wire.timer_lines import VERSION

        self.version = VERSION
        self.signal = int(signal)

    @property
    def worker_pid(self) -> int:
        """The `worker_id`, by torch's other name."""
        assert isinstance(self.worker_id, int)
        return self.worker_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileTimerRequest) and self.to_json() == other.to_json()

    __hash__ = None

    def to_json(self) -> str:
        """Return the line that a client writes, without its line feed."""
        from rallypoint.wire.timer_lines import format_timer_line

        return format_timer_line(self.worker_pid, self.scope_id, self.expiration_time, self.signal)


class FileTimerClient(TimerClient):
    """A client that sets timers of this process, through the pipe of a server at `file_path`.

    When a timer expires the server sends `signal` to this process (none if 0 or less). A call
    blocks for a second at most. It raises BrokenPipeError when nobody reads the pipe, RuntimeError
    for too long a scope.
    """

    def __init__(self, file_path: str, signal: int = signal.SIGKILL) -> None:
        from rallypoint.elastic.timer.pipe.writing import TimerPipe

        self._pipe, self.signal = TimerPipe(file_path), int(signal)

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this scope; it expires at `expiration_time`, in Unix seconds."""
        request = FileTimerRequest(os.getpid(), scope_id, expiration_time, self.signal)
        self._pipe.send(request.scope_id, request.to_json())

    def release(self, scope_id: str) -> None:
        """Release the timer of this scope."""
        self._pipe.send(scope_id, FileTimerRequest(os.getpid(), scope_id, -1, 0).to_json())


class FileTimerServer:
    """A server of timers, which takes requests from a named pipe that it makes at `file_path`.

    When a timer expires, only its process gets the signal of the request. An existing pipe is
    replaced. `run_id` is for messages. Its thread looks at least every `max_interval` seconds.
    `log_event(name, request)` is called with each event: `watchdog started`, `timer expired`, `kill
    worker process`, `watchdog stopped`.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ) -> None:
        from rallypoint.process import syscalls
        from rallypoint.process.line_pipe import LinePipe
        from rallypoint.worker.timers import PendingTimers

        self._file_path, self._run_id, self._max_interval = file_path, run_id, max_interval
        self._daemon, self._log_event = daemon, log_event
        self._pending = PendingTimers(most=None)
        self._progress_at = int(time.time())
        self._thread: threading.Thread | None = None
        self._stopping = False
        if os.path.exists(file_path):
            os.unlink(file_path)
        self._pipe = LinePipe(file_path)
        self._wake_read, self._wake_write = syscalls.pipe_above_standard_fds()

    def start(self) -> None:
        """Start the thread that serves the timers, unless it runs."""
        import threading

        if self._thread is not None:
            return
        self._stopping = False
        self._thread = threading.Thread(
            target=self._watch, name="rallypoint-FileTimerServer", daemon=self._daemon
        )
        self._thread.start()
        self._tell("watchdog started", None)

    def stop(self) -> None:
        """Stop the thread, wait for it, and remove the pipe. May be called again."""
        if self._pipe.fileno() < 0:
            return
        self._stopping = True
        os.write(self._wake_write, b".")
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._pipe.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        self._tell("watchdog stopped", None)

    def run_once(self) -> None:
        """Take the requests from the pipe, and signal processes whose timers have expired, once.

        Does not wait.
        """
        self._read()
        self._reap()

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Start timers, and release those whose time is negative."""
        register(self._pending, timer_requests)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Release all timers of these pids."""
        self._pending.forget(*worker_pids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers that expired by `deadline` (seconds since the epoch), by pid."""
        return {
            int(pid): [FileTimerRequest(int(pid), x.scope, x.ends_at, x.signal) for x in timers]
            for pid, timers in self._pending.all_expired(deadline).items()
        }

    def get_last_progress_time(self) -> int:
        """Return the time of the last request, in seconds since the epoch.

        Before the first request it is the time at which this object was made.
        """
        return self._progress_at

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Return whether the process exists and is not a zombie.

        Raises OSError when the system can't tell.
        """
        from rallypoint.process import sessions

        return sessions.session_of(pid) is not None

    def _watch(self) -> None:
        import select

        while not self._stopping:
            try:
                ends_at = self._pending.next_end()
                left_s = self._max_interval if ends_at is None else ends_at - time.time()
                wait_s = max(min(left_s, self._max_interval), 0.0)
                select.select([self._pipe.fileno(), self._wake_read], [], [], wait_s)
                if not self._stopping:
                    self.run_once()
            except Exception:
                # One timer that makes trouble must not be the end of all others.
                _log().exception("checking the timers of job %s failed", self._run_id)
                time.sleep(_PAUSE_S)

    def _read(self) -> None:
        from rallypoint.wire.timer_lines import parse_timer_line

        lines = map(parse_timer_line, self._pipe.read_lines())
        requests = [FileTimerRequest(*line[:4]) for line in lines if line is not None]
        if requests:
            self._progress_at = int(time.time())
        self.register_timers(requests)

    def _reap(self) -> None:
        from rallypoint.process import syscalls

        expired = self.get_expired_timers(time.time())
        for pid, requests in expired.items():
            first = requests[0]
            self._tell("timer expired", first)
            _log().info("timer %r of process %d expired", first.scope_id, pid)
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
            _log().exception("the log_event callback failed for %r", name)


def _log() -> logging.Logger:
    import logging

    return logging.getLogger(__name__)
