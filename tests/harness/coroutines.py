"""Tests that are coroutines: each runs in an event loop of its own, and fails where a callback of
that loop raises.

    async def test_a_node_attaches(place: Place) -> None: ...

A fixture of such a test may return an asynchronous context manager: that is entered in the test's
loop before the test begins, and left when it has ended. The test gets what it yields.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

LIMIT_S = 120.0
"""A test that takes longer hangs, however busy the machine is."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_run(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


async def _run(test: Callable[..., Awaitable[None]], arguments: dict[str, object]) -> None:
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: unhandled.append(found))
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as entered:
        for name, value in arguments.items():
            if isinstance(value, AbstractAsyncContextManager):
                arguments[name] = await entered.enter_async_context(value)
        await test(**arguments)
    assert unhandled == []
