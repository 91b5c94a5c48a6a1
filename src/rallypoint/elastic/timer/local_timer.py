"""Timers of processes that share a `multiprocessing` queue with their server."""

from __future__ import annotations

import os
import signal
import time

from rallypoint.elastic.timer.api import (
    RequestQueue,
    TimerClient,
    TimerRequest,
    TimerServer,
    register,
)

TYPE_CHECKING = False  # That of `typing` would cost a worker several ms.
if TYPE_CHECKING:
    from typing import Any

_RETRY_S = 0.5
_STOP_S = 1.0


class LocalTimerClient(TimerClient):
    """A client that sets timers of this process, through the queue of a `LocalTimerServer`.

    The queue is of `multiprocessing`.
    """

    def __init__(self, mp_queue: Any) -> None:
        self._queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this scope; it expires at `expiration_time`, in Unix seconds."""
        self._queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        """Release the timer of this scope."""
        self._queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """A `multiprocessing.Queue` of requests."""

    def __init__(self, mp_queue: Any) -> None:
        self._queue = mp_queue

    def size(self) -> int:
        """Return the approximate number of waiting requests."""
        return int(self._queue.qsize())

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return at most `size` requests, after waiting for at most `timeout` seconds."""
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
    """A server of timers of the processes that send requests by a `multiprocessing` queue.

    A worker whose timer has expired is ended by SIGKILL, and that worker only.
    """

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        from rallypoint.worker.timers import PendingTimers

        self._pending = PendingTimers(most=None)

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Start timers, and release those whose time is negative."""
        register(self._pending, timer_requests)

    def clear_timers(self, worker_ids: set[object]) -> None:
        """Release all timers of these pids."""
        self._pending.forget(*worker_ids)

    def get_expired_timers(self, deadline: float) -> dict[object, list[TimerRequest]]:
        """Return the timers that expired by `deadline` (seconds since the epoch), by pid."""
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
        from rallypoint.process import sessions, syscalls

        killed = syscalls.signal_process(worker_id, signal.SIGKILL)
        return killed or sessions.session_of(worker_id) is None
