"""SIGCHLD shared by all who want to know: an event loop has one handler per signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

_subscribers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = (
    WeakKeyDictionary()
)


def subscribe(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` in the loop after children changed state; returns the unsubscription.

    One call may stand for many children: look at all. The loop must run in the main thread, else
    RuntimeError is raised.
    """
    callbacks = _subscribers.setdefault(loop, [])
    if not callbacks:
        loop.add_signal_handler(signal.SIGCHLD, _notify, callbacks)
    callbacks.append(callback)
    return partial(_unsubscribe, loop, callback)


def _notify(callbacks: list[Callable[[], None]]) -> None:
    for callback in tuple(callbacks):
        callback()


def _unsubscribe(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    callbacks = _subscribers.get(loop, [])
    if callback not in callbacks:
        return
    callbacks.remove(callback)
    if not callbacks and not loop.is_closed():
        loop.remove_signal_handler(signal.SIGCHLD)
