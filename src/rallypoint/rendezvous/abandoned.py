"""Handlers that a program drops without a word: they have left, and nothing counts on for them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from rallypoint.errors import RendezvousError
from rallypoint.rendezvous.loop_thread import SHARED


def weakly(callback: Callable[[], None]) -> Callable[[], None]:
    """The same, without keeping the object alive whose method it is."""
    method: weakref.WeakMethod[Callable[[], None]] = weakref.WeakMethod(callback)

    def call() -> None:
        found = method()
        if found is not None:
            found()

    return call


def when_dropped(handler: object, leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `leave` on the shared loop once nobody refers to `handler`; it must not refer to it."""
    weakref.finalize(handler, _run, leave).atexit = False


def _run(leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def quietly() -> None:
        with suppress(RendezvousError):
            await leave()

    with suppress(RuntimeError):  # the loop is closed: the process ends
        asyncio.run_coroutine_threadsafe(quietly(), SHARED.loop)
