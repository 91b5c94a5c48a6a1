"""A thread that runs blocking calls for a loop, one after the other, and holds up nobody's exit.

The threads of an executor are waited for when the interpreter ends; one that waits for a store
that is gone would hold it up for as long as that store is waited for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DaemonThread:
    """For the thread of one loop. Starts with the first call, ends with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._started = self._closed = False

    @property
    def is_closed(self) -> bool:
        """It takes no calls any more."""
        return self._closed

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run it after those before it. Raises RuntimeError when closed."""
        if self._closed:
            raise RuntimeError(f"the thread {self._name} is closed")
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        """Calls that have not begun are cancelled; one that has ends by itself."""
        self._closed = True
        while not self._calls.empty():
            waiting = self._calls.get()
            if waiting is not None:
                waiting[1].cancel()
        self._calls.put(None)

    def _run(self) -> None:
        while (waiting := self._calls.get()) is not None:
            call, future = waiting
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:  # it is raised again where it is waited for
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
