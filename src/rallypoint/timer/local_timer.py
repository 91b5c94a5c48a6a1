"""Timers over a queue between a process and the workers that it has started."""

from __future__ import annotations

import os
import queue
import signal
import time
from typing import Any

from rallypoint.process import sessions, syscalls
from rallypoint.timer.scope import TimerClient
from rallypoint.timer.server import RequestQueue, TimerRequest, TimerServer

_RETRY_S = 0.5
_STOP_S = 1.0


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


class MultiprocessingRequestQueue(RequestQueue):
    """A `multiprocessing.Queue` of requests."""

    def __init__(self, mp_queue: Any) -> None:
        self._queue = mp_queue

    def size(self) -> int:
        """How many are there, about."""
        return int(self._queue.qsize())

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """At most `size` requests within `timeout` seconds."""
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
        self._timers: dict[tuple[object, str], TimerRequest] = {}
        self._not_before = 0.0

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Start timers, and end those whose time is negative."""
        for request in timer_requests:
            key = request.worker_id, request.scope_id
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def clear_timers(self, worker_ids: set[object]) -> None:
        """End all timers of these pids."""
        self._timers = {k: v for k, v in self._timers.items() if k[0] not in worker_ids}

    def get_expired_timers(self, deadline: float) -> dict[object, list[TimerRequest]]:
        """By pid, what ended at `deadline` or before."""
        expired: dict[object, list[TimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_id, []).append(request)
        return expired

    def _next_look_s(self) -> float:
        now = time.time()
        ends = (request.expiration_time - now for request in self._timers.values())
        wait_s = max(min(ends, default=self._max_interval), 0.0)
        # What has ended and could not be reaped is tried again, but not at once; and a stop must
        # not wait for long.
        return min(wait_s or _RETRY_S, self._max_interval, _STOP_S)

    def _reap_worker(self, worker_id: object) -> bool:
        if not isinstance(worker_id, int) or worker_id <= 1 or worker_id == os.getpid():
            return True  # No process that is ours to end.
        killed = syscalls.signal_process(worker_id, signal.SIGKILL)
        return killed or sessions.session_of(worker_id) is None
