"""Blocking calls in daemon threads, for an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rallypoint.core.text import carried
from rallypoint.errors import InfrastructureError

T = TypeVar("T")
_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


async def run_in_thread(call: Callable[[], T], name: str) -> T:
    """Return the result of `call`, which may block, from a daemon thread for this call alone.

    The end of the process does not wait for the thread, as it would for the threads of an executor.
    If the caller is cancelled, the call continues and its result is dropped; else the thread has
    ended when this returns. SystemExit, KeyboardInterrupt and StopIteration become a RuntimeError.
    Raises InfrastructureError when the system can't start a thread.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        result, error = _outcome_of(call)
        with suppress(RuntimeError):  # the loop was closed meanwhile: nothing waits for the result
            loop.call_soon_threadsafe(_settle, outcome, result, error)

    thread = threading.Thread(target=carried(run), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise InfrastructureError(
            "can't start a thread: raise ulimit -u (or pids.max of the container)"
        ) from error
    try:
        return await outcome
    finally:
        if outcome.done() and not outcome.cancelled():
            thread.join()  # the caller may fork, which wants no other thread


class CallThread:
    """A daemon thread that runs blocking calls for a loop, one after the other.

    It does not delay the exit of the process. Its methods are for the thread of one loop only. It
    starts with the first call, and ends with `close`.
    """

    def __init__(self, name: str) -> None:
        from queue import SimpleQueue  # `rallypoint run` has no such thread

        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._started = False
        self.is_closed = False
        """Whether no more calls are accepted."""

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run the call after earlier ones, and return a future of its result.

        Raises RuntimeError when closed, or when the system can't start the thread.
        """
        if self.is_closed:
            raise RuntimeError(f"the thread {self._name} is closed")
        if not self._started:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._started = True
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((carried(call), future))
        return future

    def close(self) -> None:
        """Cancel the calls that have not begun; a running one ends by itself."""
        self.is_closed = True
        while not self._calls.empty():
            waiting = self._calls.get()
            if waiting is not None:
                waiting[1].cancel()
        self._calls.put(None)

    def _run(self) -> None:
        while (waiting := self._calls.get()) is not None:
            call, future = waiting
            result, error = _outcome_of(call)
            with suppress(RuntimeError):  # the loop is closed: nothing waits for the result
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)


def _outcome_of(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result or the exception of the call, in a form that a future takes."""
    try:
        return call(), None
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        return None, RuntimeError(f"{type(error).__name__} was raised: {error}")
    except Exception as error:
        return None, error


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Set the result of a future, unless it was cancelled. For the thread of the loop."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
