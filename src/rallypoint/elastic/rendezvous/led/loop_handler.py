"""A handler with blocking calls and coroutines, whose work is done on one event loop.

All handlers of a process share one loop in one thread, so that a blocking call and its awaitable
form run the same coroutine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rallypoint.core.text import naming_parameters
from rallypoint.elastic.agent.embedded.parameters import OF_A_HANDLER
from rallypoint.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, Unsubscribe
from rallypoint.elastic.rendezvous.led.recorded import Steps
from rallypoint.errors import ParameterError, RendezvousError

if TYPE_CHECKING:
    from rallypoint.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings

T = TypeVar("T")
_log = logging.getLogger(__name__)


class LoopThread:
    """An event loop that runs in a daemon thread, from its first use on, and anew after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running event loop of the thread, which is started at first use."""
        if self._pid != os.getpid():
            self._start()
        assert self._loop is not None
        return self._loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the loop, wait for it, and raise what it raises.

        To be called from any other thread; raises RuntimeError in the loop's own. Ctrl-C while
        waiting cancels the coroutine.
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
        """Run the coroutine on this thread's loop for a caller in another loop; return its result.

        The caller's loop is not blocked.
        """
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
"""The loop thread that all handlers of this process share."""


def weakly(callback: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls this method, but does not keep the method's object alive."""
    method: weakref.WeakMethod[Callable[[], None]] = weakref.WeakMethod(callback)

    def call() -> None:
        found = method()
        if found is not None:
            found()

    return call


def when_dropped(handler: object, leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have `leave` run on the shared loop once nothing refers to `handler` any more.

    A handler that a program drops without `leave` or `shutdown` therefore leaves the job. `leave`
    must not refer to the handler.
    """
    weakref.finalize(handler, _run, leave).atexit = False


def _run(leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def quietly() -> None:
        with suppress(RendezvousError):
            await leave()

    with suppress(RuntimeError):  # the loop is closed: the process ends
        asyncio.run_coroutine_threadsafe(quietly(), SHARED.loop)


class LoopRendezvousHandler(RendezvousHandler):
    """A rendezvous handler that does its work on the shared loop, in a thread.

    A program calls `shutdown` when the job is over, and `leave` when the job continues without this
    node.
    """

    def __init__(self, settings: RendezvousSettings, name: str) -> None:
        """Make a handler; `name` is the result of `get_backend`."""
        self._settings, self._name = settings, name
        file = type(self).__module__.rpartition(".")[2]
        self._steps = Steps(f"{file}.py:{type(self).__name__}", settings.run_id)
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def settings(self) -> RendezvousSettings:
        """The settings of this handler."""
        return self._settings

    def get_backend(self) -> str:
        return self._name

    def get_run_id(self) -> str:
        return self._settings.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        with self._steps.failing("next_rendezvous"):
            self._steps.attempts()
            info = self._run(self._next)
        self._steps.joined(info)
        return info

    async def next_rendezvous_async(self) -> RendezvousInfo:
        """Do the same as `next_rendezvous`, without blocking the running event loop."""
        with self._steps.failing("next_rendezvous"):
            self._steps.attempts()
            info = await self._wait_for(self._next)
        self._steps.joined(info)
        return info

    def is_closed(self) -> bool:
        with self._steps.failing("is_closed"):
            return self._run(self._look)[1]

    async def is_closed_async(self) -> bool:
        """Do the same as `is_closed`, without blocking the running event loop."""
        with self._steps.failing("is_closed"):
            return (await self._wait_for(self._look))[1]

    def set_closed(self) -> None:
        with self._steps.failing("set_closed"):
            self._run(self._close)
        self._steps.closed("set_closed")

    async def set_closed_async(self) -> None:
        """Do the same as `set_closed`, without blocking the running event loop."""
        with self._steps.failing("set_closed"):
            await self._wait_for(self._close)
        self._steps.closed("set_closed")

    def num_nodes_waiting(self) -> int:
        with self._steps.failing("num_nodes_waiting"):
            return self._run(self._look)[0]

    async def num_nodes_waiting_async(self) -> int:
        """Do the same as `num_nodes_waiting`, without blocking the running event loop."""
        with self._steps.failing("num_nodes_waiting"):
            return (await self._wait_for(self._look))[0]

    def wait_for_change(self, timeout: float | None = None) -> bool:
        return self._run(partial(self._wait, timeout))

    async def wait_for_change_async(self, timeout: float | None = None) -> bool:
        """Do the same as `wait_for_change`, without blocking the running event loop."""
        return await self._wait_for(partial(self._wait, timeout))

    def on_change(self, callback: Callable[[], None]) -> Unsubscribe:
        key = object()
        self._callbacks[key] = callback
        return lambda: self._callbacks.pop(key, None) and None

    def leave(self) -> None:
        """Leave the job, which continues without this node. May be called again."""
        self._run(self._leave)

    def shutdown(self) -> bool:
        return self._was_shut_down(self._run(self._shut_down))

    async def shutdown_async(self) -> bool:
        """Do the same as `shutdown`, without blocking the running event loop."""
        return self._was_shut_down(await self._wait_for(self._shut_down))

    def _was_shut_down(self, done: bool) -> bool:
        if done:
            self._steps.closed("shutdown")
        else:
            run_id = self._settings.run_id
            self._steps.record("shutdown", "FAILED", f"The rendezvous {run_id!r} was not closed.")
        return done

    # On the loop

    @abstractmethod
    async def _next(self) -> RendezvousInfo: ...

    @abstractmethod
    async def _look(self) -> tuple[int, bool]:
        """Return the results of `num_nodes_waiting` and `is_closed`.

        The first is above 0 if this node's round is over and the job is not, the second is whether
        the job is over.
        """

    @abstractmethod
    async def _close(self) -> None: ...

    @abstractmethod
    async def _wait(self, timeout: float | None) -> bool: ...

    @abstractmethod
    async def _leave(self) -> None: ...

    @abstractmethod
    async def _shut_down(self) -> bool: ...

    # Within

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._before_call()
        with naming_parameters(OF_A_HANDLER):
            return SHARED.run(call())

    async def _wait_for(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._before_call()
        with naming_parameters(OF_A_HANDLER):
            return await SHARED.wait(call())

    def _before_call(self) -> None:
        """Do nothing; a subclass may prepare each call here, in the caller's thread."""

    def _changed(self) -> None:
        """Call the callbacks of `on_change`.

        An exception is logged and does not stop the others.
        """
        for callback in tuple(self._callbacks.values()):
            try:
                callback()
            except Exception:
                _log.exception("a callback of on_change failed")


def check_timeout(timeout: float | None) -> None:
    """Raise ParameterError unless `timeout` is None or a number of seconds."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout == timeout):
        raise ParameterError(f"timeout={timeout!r}: needs seconds, or None to wait for ever")
