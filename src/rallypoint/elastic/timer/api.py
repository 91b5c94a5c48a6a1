"""A deadline for a block of code, and the base classes of timer clients and servers.

A worker imports this to use `expires`: modules that only servers need are imported when one is
made.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from contextlib import ContextDecorator

from rallypoint.worker.shm import shm

TYPE_CHECKING = False  # That of `typing` would cost a worker several ms.
if TYPE_CHECKING:
    import logging
    import threading
    from collections.abc import Iterable
    from types import TracebackType

    from rallypoint.elastic.timer.pipe.writing import AgentTimers
    from rallypoint.worker.timers import PendingTimers

_client: TimerClient | None = None
_native: AgentTimers | None = None


class TimerRequest:
    """The request to start a timer, or to release it when `expiration_time` is negative.

    Client and server agree on the meaning of `worker_id`. The time is in seconds since the epoch.
    """

    __slots__ = ("expiration_time", "scope_id", "worker_id")

    def __init__(self, worker_id: object, scope_id: str, expiration_time: float) -> None:
        self.worker_id, self.scope_id = worker_id, scope_id
        self.expiration_time = expiration_time

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, TimerRequest):
            return NotImplemented
        return self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        worker_id, scope_id, expiration_time = self._fields()
        return (
            f"TimerRequest(worker_id={worker_id!r}, scope_id={scope_id!r}, "
            f"expiration_time={expiration_time!r})"
        )

    def _fields(self) -> tuple[object, str, float]:
        return self.worker_id, self.scope_id, self.expiration_time


class TimerClient(ABC):
    """The interface by which a worker sets timers.

    The server decides what happens to the worker when a timer expires.
    """

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this scope; it expires at `expiration_time`, in Unix seconds."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Release the timer of this scope, so that it does not expire."""


def configure(timer_client: TimerClient | None) -> None:
    """Set the default client of `expires`."""
    global _client
    _client = timer_client


class expires(ContextDecorator):  # noqa: N801
    """A deadline for a block: the worker is ended if it takes longer than `after` seconds.

    `scope` names the timer in messages; the default is the caller's `file#line`. Two blocks of one
    scope share one timer, so nested ones need different scopes. `client` replaces the one that
    `configure` has set. In a worker of `rallypoint run` no client is needed. May also decorate a
    function, and be entered again.

    Raises ValueError for an invalid number of seconds, TypeError for a scope that is not a text;
    RuntimeError at the beginning of the block if there is no client, and the client's errors:
    BrokenPipeError when its server can't be reached.
    """

    def __init__(
        self, after: float, scope: str | None = None, client: TimerClient | None = None
    ) -> None:
        if not math.isfinite(after):
            raise ValueError(f"after={after!r}: a timer needs a number of seconds")
        if scope is not None and not isinstance(scope, str):
            raise TypeError(f"scope={scope!r}: the name of a timer is a text")
        self._after_s, self._given = after, client
        self._scope = scope if scope is not None else _place(sys._getframe(1))
        self._used: list[TimerClient | AgentTimers] = []

    def __enter__(self) -> None:
        client = self._given or _client
        if client is not None:
            client.acquire(self._scope, time.time() + self._after_s)
            self._used.append(client)
        else:
            own = _own_client()
            own.begin(self._scope, self._after_s)
            self._used.append(own)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._used.pop().release(self._scope)


def _place(frame: object) -> str:
    code, line = frame.f_code, frame.f_lineno  # type: ignore[attr-defined]
    return f"{code.co_filename}#{line}"


def _own_client() -> AgentTimers:
    """Return the client that sets timers of this worker at its agent.

    Raises RuntimeError in a process that is no worker of `rallypoint run`.
    """
    global _native
    found = shm()
    if found is None:
        raise RuntimeError(
            "there is no timer client: call rallypoint.elastic.timer.configure before using "
            "a timer, or start the program with rallypoint run"
        )
    if _native is None:
        # A program that sets no timer does not pay for it.
        from rallypoint.elastic.timer.pipe.writing import AgentTimers

        _native = AgentTimers(found.wake_up_path)
    found.offer_stacks()
    return _native


class RequestQueue(ABC):
    """The queue from which a timer server takes its requests."""

    @abstractmethod
    def size(self) -> int:
        """Return the number of waiting requests."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return at most `size` requests, after waiting for at most `timeout` seconds."""


class TimerServer(ABC):
    """A thread that takes requests from a queue, and reaps workers whose timers have expired.

    Subclasses keep the timers and define how a worker is reaped. The thread wakes at each request,
    and otherwise after `max_interval` seconds at the latest.
    """

    def __init__(
        self, request_queue: RequestQueue, max_interval: float, daemon: bool = True
    ) -> None:
        import threading

        self._request_queue, self._max_interval, self._daemon = request_queue, max_interval, daemon
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Start timers, and release those whose time is negative."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[object]) -> None:
        """Release all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[object, list[TimerRequest]]:
        """Return the timers that expired by `deadline` (seconds since the epoch), by worker."""

    @abstractmethod
    def _reap_worker(self, worker_id: object) -> bool:
        """End a worker, and return whether it is gone.

        If so its timers are released; if not, this is called again later.
        """

    def start(self) -> None:
        """Start the thread; nothing is done when it runs already."""
        if self._thread is not None:
            return
        import threading

        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._watch, name=f"rallypoint-{type(self).__name__}", daemon=self._daemon
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it, for `max_interval` and a second at most.

        May be called again.
        """
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._max_interval + 1)

    def _next_look_s(self) -> float:
        """Return the seconds until the next look; a subclass that knows more may return less."""
        return self._max_interval

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except Exception:
                # A timer that is not kept must not be the end of all others.
                _log().exception("checking the timers failed")
                self._stopped.wait(0.1)

    def _look(self) -> None:
        requests = self._request_queue.get(max(1, self._request_queue.size()), self._next_look_s())
        self.register_timers(requests)
        reaped = set()
        for worker_id, timers in self.get_expired_timers(time.time()).items():
            scopes = ", ".join(repr(timer.scope_id) for timer in timers)
            _log().info("reaping worker %s: timer %s expired", worker_id, scopes)
            if self._reaped(worker_id):
                reaped.add(worker_id)
        self.clear_timers(reaped)

    def _reaped(self, worker_id: object) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception:
            _log().exception("could not reap worker %s: trying again", worker_id)
            return False


def _log() -> logging.Logger:
    import logging

    return logging.getLogger(__name__)


def register(pending: PendingTimers, requests: Iterable[TimerRequest]) -> None:
    """Start the requested timers in `pending`, a server's; release those whose time is negative."""
    from rallypoint.worker.timers import Countdown

    for request in requests:
        if request.expiration_time < 0:
            pending.release(request.worker_id, request.scope_id)
        else:
            number = getattr(request, "signal", 0)  # FileTimerRequest has one.
            ends_at = request.expiration_time
            pending.acquire(Countdown(request.worker_id, request.scope_id, ends_at, signal=number))
