"""What keeps the timers of the processes of one machine, as torch's vocabulary has it."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TimerRequest:
    """A timer that is acquired, or released when `expiration_time` is negative.

    What a `worker_id` is, client and server settle between them. The time is in seconds since the
    epoch.
    """

    worker_id: object
    scope_id: str
    expiration_time: float


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
        """Start the thread. Raises RuntimeError when it runs."""
        if self._thread is not None:
            raise RuntimeError("this timer server runs already")
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
                log.exception("a look at the timers failed")
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
