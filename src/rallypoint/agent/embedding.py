"""An agent inside another program: the thread that it runs in, and how the program stops it.

A program may run several agents at once, each in a thread. Signals are handled only for an agent
that runs in the main thread, and every handler is restored afterwards.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, TypeVar

from rallypoint.agent.workers import RoundWorkers
from rallypoint.core.text import carried
from rallypoint.process.signals import hold_what_handlers_raise, keep_dispositions

T = TypeVar("T")


class Embedding:
    """The connection of one agent with the program around it.

    `handler` is the client of the program's rendezvous handler
    (`rallypoint.elastic.rendezvous.plug_in`), if given. `round_workers` makes the workers of a
    round.
    """

    def __init__(
        self,
        handler: Any = None,
        round_workers: Callable[..., RoundWorkers] = RoundWorkers,
    ) -> None:
        self.handler, self.round_workers = handler, round_workers
        self._lock = threading.Lock()
        self._early: list[int] = []
        self._tell: Callable[[int], None] | None = None

    def attach(self, loop: asyncio.AbstractEventLoop, caught: Callable[[int], None]) -> None:
        """Pass signals to the agent that runs in this loop, from now on.

        `caught` is called in the loop with the number of each one, also of those that came before.
        """

        def tell(number: int) -> None:
            loop.call_soon_threadsafe(caught, number)

        with self._lock:
            self._tell = tell
            early, self._early = self._early, []
        for number in early:
            tell(number)

    def detach(self) -> None:
        """Note that the agent has ended: later signals are kept for the next `attach`."""
        with self._lock:
            self._tell = None

    def signal(self, number: int) -> None:
        """Act as if the agent had got this signal.

        SIGINT cancels the job; with other signals this node leaves. A second signal ends all waits
        and kills the workers; an equal one within a second counts as the same. May be called from
        any thread; does not block.
        """
        with self._lock:
            if self._tell is None:
                self._early.append(number)
            else:
                self._tell(number)


def gets_signals() -> bool:
    """Return whether an agent in this thread may handle signals: only the main thread's may."""
    return threading.current_thread() is threading.main_thread()


def run_embedded(embedding: Embedding, body: Callable[[], T]) -> T:
    """Return the result of `body`, which runs an agent to its end. Blocks.

    Raises what `body` raises. Where a loop runs already (a notebook) the agent gets its own thread.
    Then a KeyboardInterrupt here cancels the job, and this waits until the agent has stopped its
    workers.
    """
    if not _loop_runs_here():
        if not gets_signals():
            return body()
        with keep_dispositions():
            return body()
    wait, take = start_in_thread(body)
    while True:
        try:
            wait()
        except KeyboardInterrupt:
            embedding.signal(signal.SIGINT)
        else:
            return take()


def run_to_its_end(loop: asyncio.AbstractEventLoop, agent: Coroutine[Any, Any, T]) -> T:
    """Run the agent to its end and return its result.

    An exception of the program's signal handlers, wherever it interrupts, ends the agent first and
    is raised then.
    """
    task = loop.create_task(agent)
    raised: list[BaseException] = []

    def end(error: BaseException) -> None:
        raised.append(error)
        loop.call_soon_threadsafe(task.cancel)

    with hold_what_handlers_raise(end) if gets_signals() else nullcontext():
        try:
            loop.run_until_complete(asyncio.wait([task]))
        finally:
            if not task.done():
                task.cancel()
                loop.run_until_complete(asyncio.wait([task]))
    if raised:  # Also when the agent was about to end by itself, or has failed since.
        raise raised[0] from (None if task.cancelled() else task.exception())
    return task.result()


def start_in_thread(
    body: Callable[[], T], on_done: Callable[[], None] = lambda: None
) -> tuple[Callable[[], None], Callable[[], T]]:
    """Run `body` in a thread, and `on_done` after it.

    Returns a function that waits until the thread has ended, which takes a moment after `on_done`,
    and one that returns the result of `body`, or raises its exception.
    """
    done = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(body())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()
            on_done()

    def wait() -> None:
        done.wait()  # A KeyboardInterrupt in `join` would have the thread count as ended.
        thread.join()

    def take() -> T:
        if errors:
            raise errors[0]
        return results[0]

    thread = threading.Thread(target=carried(run), name="rallypoint-agent", daemon=True)
    thread.start()
    return wait, take


def random_run_id() -> str:
    """Return a random run id, for a job that others need not find."""
    return os.urandom(6).hex()


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
