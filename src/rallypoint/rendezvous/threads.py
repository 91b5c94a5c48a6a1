"""Threads for what blocks: one for a single call, and one that runs a loop for blocking callers."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from rallypoint.errors import RendezvousError

T = TypeVar("T")


class LoopThread:
    """A running loop in a daemon thread, started when first needed and again in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, running."""
        if self._pid != os.getpid():
            self._start()
        assert self._loop is not None
        return self._loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for it; what it raises is raised here. From any other thread.

        Ctrl-C while waiting cancels it.
        """
        if threading.current_thread().name == _NAME:
            coroutine.close()
            raise RuntimeError("a blocking call was made on the rendezvous loop; use the async one")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        finally:
            future.cancel()  # does nothing once it has ended; Ctrl-C may come before

    async def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same from a running loop, which goes on meanwhile."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def _start(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                return
            self._loop = asyncio.new_event_loop()
            self._pid = os.getpid()
            threading.Thread(target=self._loop.run_forever, name=_NAME, daemon=True).start()


_NAME = "rallypoint-rendezvous"
SHARED = LoopThread()
"""Shared by all handlers of this process."""


def weakly(callback: Callable[[], None]) -> Callable[[], None]:
    """The same, without keeping the object alive whose method it is."""
    method: weakref.WeakMethod[Callable[[], None]] = weakref.WeakMethod(callback)

    def call() -> None:
        found = method()
        if found is not None:
            found()

    return call


def when_dropped(handler: object, leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `leave` on the shared loop once nothing refers to `handler`; it must not refer to it.

    So a handler that a program drops without `leave` or `shutdown` leaves the job all the same.
    """
    weakref.finalize(handler, _run, leave).atexit = False


def _run(leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def quietly() -> None:
        with suppress(RendezvousError):
            await leave()

    with suppress(RuntimeError):  # the loop is closed: the process ends
        asyncio.run_coroutine_threadsafe(quietly(), SHARED.loop)
