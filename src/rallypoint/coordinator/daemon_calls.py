"""Blocking calls in daemon threads, for a loop that must not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rallypoint.errors import InfrastructureError

T = TypeVar("T")


async def run_in_thread(call: Callable[[], T], name: str) -> T:
    """The result of `call`, which may block, from a daemon thread for this call alone: nothing
    waits for it when the process ends, as it would for the threads of an executor.

    If this is cancelled, the call goes on and its result is dropped; else its thread has ended when
    this returns. SystemExit, KeyboardInterrupt and StopIteration become a RuntimeError.

    Raises InfrastructureError when the system has no thread left.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        result, error = outcome_of(call)
        with suppress(RuntimeError):  # the loop was closed meanwhile: nothing waits for the result
            loop.call_soon_threadsafe(settle, outcome, result, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
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


def outcome_of(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What it returned or raised, in a form that a future takes."""
    try:
        return call(), None
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        return None, RuntimeError(f"{type(error).__name__} was raised: {error}")
    except Exception as error:
        return None, error


def settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """For the thread of the loop. A future that was cancelled meanwhile stays so."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
