"""Servers that keep the timers of workers, in torch's vocabulary.

A `LocalTimerServer` takes requests from a queue between a process and the workers that it has
started; a `FileTimerServer` from a named pipe, in torch's format, so that either side may be
torch's. Both keep what runs in a `PendingTimers`, as the agent of `rallypoint run` does.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from rallypoint.elastic.timer.clients import FileTimerRequest, TimerRequest
from rallypoint.process import sessions, syscalls
from rallypoint.process.line_pipe import LinePipe
from rallypoint.wire.timer_lines import parse_timer_line
from rallypoint.worker.timers import PendingTimers, Timer

log = logging.getLogger(__name__)

_PAUSE_S = 0.1
_RETRY_S = 0.5
_STOP_S = 1.0


class RequestQueue(ABC):
    """Where requests arrive."""

    @abstractmethod
    def size(self) -> int:
        """How many are there now."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """At most `size` requests, waiting at most `timeout` seconds for them."""


class TimerServer(ABC):
    """A thread that takes requests from a queue, and reaps the workers whose timers have ended.

    Subclasses keep the timers and say how a worker is reaped. The thread wakes at each request, and
    otherwise after `max_interval` seconds at the latest.
    """

    def __init__(
        self, request_queue: RequestQueue, max_interval: float, daemon: bool = True
    ) -> None:
        self._request_queue, self._max_interval, self._daemon = request_queue, max_interval, daemon
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Start timers, and end those whose time is negative."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[object]) -> None:
        """End all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[object, list[TimerRequest]]:
        """By worker, what ended at `deadline` (seconds since the epoch) or before."""

    @abstractmethod
    def _reap_worker(self, worker_id: object) -> bool:
        """End a worker; True when it has gone, and its timers with it. False: tried again later."""

    def start(self) -> None:
        """Start the thread; nothing is done when it runs already."""
        if self._thread is not None:
            return
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._watch, name=f"rallypoint-{type(self).__name__}", daemon=self._daemon
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it, `max_interval` at most. Safe to call again."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._max_interval + 1)

    def _next_look_s(self) -> float:
        """How long nothing can end; subclasses that know more may say less."""
        return self._max_interval

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except Exception:
                # A timer that is not kept must not be the end of all others.
                log.exception("checking the timers failed")
                self._stopped.wait(0.1)

    def _look(self) -> None:
        requests = self._request_queue.get(max(1, self._request_queue.size()), self._next_look_s())
        self.register_timers(requests)
        reaped = set()
        for worker_id, timers in self.get_expired_timers(time.time()).items():
            scopes = ", ".join(repr(timer.scope_id) for timer in timers)
            log.info("reaping worker %s: timer %s expired", worker_id, scopes)
            if self._reaped(worker_id):
                reaped.add(worker_id)
        self.clear_timers(reaped)

    def _reaped(self, worker_id: object) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception:
            log.exception("could not reap worker %s: trying again", worker_id)
            return False


class MultiprocessingRequestQueue(RequestQueue):
    """A `multiprocessing.Queue` of requests."""

    def __init__(self, mp_queue: Any) -> None:
        self._queue = mp_queue

    def size(self) -> int:
        """How many are there, about."""
        return int(self._queue.qsize())

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """At most `size` requests within `timeout` seconds."""
        import queue

        requests: list[TimerRequest] = []
        deadline = time.monotonic() + timeout
        for _ in range(size):
            try:
                requests.append(self._queue.get(timeout=max(deadline - time.monotonic(), 0)))
            except queue.Empty:
                break
        return requests


class LocalTimerServer(TimerServer):
    """Keeps the timers of processes that share a `multiprocessing` queue; ends a worker whose timer
    has ended by SIGKILL, and that worker only."""

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._pending = PendingTimers(most=None)

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Start timers, and end those whose time is negative."""
        _register(self._pending, timer_requests)

    def clear_timers(self, worker_ids: set[object]) -> None:
        """End all timers of these pids."""
        self._pending.forget(*worker_ids)

    def get_expired_timers(self, deadline: float) -> dict[object, list[TimerRequest]]:
        """By pid, what ended at `deadline` or before."""
        return {
            worker: [TimerRequest(worker, timer.scope, timer.ends_at) for timer in timers]
            for worker, timers in self._pending.all_expired(deadline).items()
        }

    def _next_look_s(self) -> float:
        ends_at = self._pending.next_end()
        wait_s = self._max_interval if ends_at is None else max(ends_at - time.time(), 0.0)
        # What has ended and could not be reaped is tried again, but not at once; and a stop must
        # not wait for long.
        return min(wait_s or _RETRY_S, self._max_interval, _STOP_S)

    def _reap_worker(self, worker_id: object) -> bool:
        if not isinstance(worker_id, int) or worker_id <= 1 or worker_id == os.getpid():
            return True  # No process that is ours to end.
        killed = syscalls.signal_process(worker_id, signal.SIGKILL)
        return killed or sessions.session_of(worker_id) is None


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
        self._pending = PendingTimers(most=None)
        self._progress_at = int(time.time())
        self._thread: threading.Thread | None = None
        self._stopping = False
        if os.path.exists(file_path):
            os.unlink(file_path)
        self._pipe = LinePipe(file_path)
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
        """Look at the pipe and at the timers once, without waiting."""
        self._read()
        self._reap()

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Start timers, and end those whose time is negative."""
        _register(self._pending, timer_requests)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """End all timers of these pids."""
        self._pending.forget(*worker_pids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """By pid, what ended at `deadline` (seconds since the epoch) or before."""
        return {
            int(pid): [FileTimerRequest(int(pid), x.scope, x.ends_at, x.signal) for x in timers]
            for pid, timers in self._pending.all_expired(deadline).items()
        }

    def get_last_progress_time(self) -> int:
        """When a request came last, in seconds since the epoch; at first, when this was made."""
        return self._progress_at

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Whether there is such a process, zombies not counted. Raises OSError when the system
        can't tell."""
        return sessions.session_of(pid) is not None

    def _watch(self) -> None:
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
                log.exception("checking the timers of job %s failed", self._run_id)
                time.sleep(_PAUSE_S)

    def _read(self) -> None:
        lines = map(parse_timer_line, self._pipe.read_lines())
        requests = [FileTimerRequest(*line[:4]) for line in lines if line is not None]
        if requests:
            self._progress_at = int(time.time())
        self.register_timers(requests)

    def _reap(self) -> None:
        expired = self.get_expired_timers(time.time())
        for pid, requests in expired.items():
            first = requests[0]
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
            log.exception("the log_event callback failed for %r", name)


def _register(pending: PendingTimers, requests: Iterable[TimerRequest]) -> None:
    """Start these timers, and end those whose time is negative."""
    for request in requests:
        if request.expiration_time < 0:
            pending.release(request.worker_id, request.scope_id)
        else:
            number = request.signal if isinstance(request, FileTimerRequest) else 0
            ends_at = request.expiration_time
            pending.acquire(Timer(request.worker_id, request.scope_id, ends_at, signal=number))
