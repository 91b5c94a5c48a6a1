"""A bounded queue with a thread that passes each item to a receiver.

`put` never waits: an item that does not fit is dropped and counted, as is one for which the
receiver raises. `close` waits a little for the rest, and returns a message about lost items.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

CAPACITY = 10_000
"""The most waiting items, unless a queue says otherwise; an event takes about 1 kB."""

_T = TypeVar("_T")


class BoundedQueue(Generic[_T]):
    """A queue whose own thread passes each item to a receiver, in order."""

    def __init__(
        self,
        receive: Callable[[_T], None],
        close_receiver: Callable[[], None] = lambda: None,
        *,
        capacity: int = CAPACITY,
    ) -> None:
        self._receive, self._close_receiver = receive, close_receiver
        self._capacity = capacity
        self._waiting: SimpleQueue[_T | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_receiving = False
        self._abandoned = threading.Event()
        self._dropped = self._failed = 0
        self._first_error = ""

    @property
    def lost(self) -> int:
        """The number of items so far that did not fit, or that the receiver failed at."""
        return self._dropped + self._failed

    def put(self, item: _T) -> None:
        """Pass the item to the receiver soon, or drop and count it if the queue is full or closed.

        It does so also while the system can't start the queue's thread, which the first call
        starts. Never blocks. May be called from any thread.
        """
        with self._lock:
            if self._is_closed or self._waiting.qsize() >= self._capacity:
                self._dropped += 1
                return
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="rallypoint-queue", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # The system can't start one now, perhaps later.
                    self._failed += 1
                    self._first_error = self._first_error or f"RuntimeError: {error}"
                    return
                self._thread = thread
            self._waiting.put(item)

    def close(self, timeout_s: float) -> str:
        """Pass the waiting items to the receiver within the time, and close it. Blocks.

        Returns a message about lost items and the cause; empty if there are none. May be called
        again.
        """
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if self._thread is None:
            if not was_closed:
                self._close()
        else:
            if not was_closed:
                self._waiting.put(None)
            self._thread.join(timeout_s)
            if self._thread.is_alive() and not self._abandoned.is_set():
                self._give_up()
        return self._what_was_lost()

    def _give_up(self) -> None:
        """Abandon a receiver that hangs, in its daemon thread, and count its items as lost."""
        self._abandoned.set()
        # The one that it hangs at, and what is behind it but for the mark of the end.
        self._dropped += max(0, self._waiting.qsize() - 1) + self._is_receiving
        if not self._dropped:
            self._first_error = self._first_error or "it did not close in time"

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None and not self._abandoned.is_set():
            self._is_receiving = True
            try:
                self._receive(item)
            except BaseException as error:  # SystemExit, too, would end this thread alone.
                self._fail(error)
            self._is_receiving = False
        self._close()

    def _close(self) -> None:
        try:
            self._close_receiver()
        except BaseException as error:
            self._first_error = self._first_error or _described(error)

    def _fail(self, error: BaseException) -> None:
        if not self._abandoned.is_set():
            self._failed += 1
            self._first_error = self._first_error or _described(error)

    def _what_was_lost(self) -> str:
        parts = []
        if self._dropped:
            parts.append(f"{self._dropped} dropped, as it was too slow")
        if self._failed:
            parts.append(f"{self._failed} failed: {self._first_error}")
        elif self._first_error:
            parts.append(self._first_error)
        return "; ".join(parts)


def _described(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Imported only where something has failed.
    from rallypoint.core.text import shown

    return f"{type(error).__name__}: {shown(str(error))}"
