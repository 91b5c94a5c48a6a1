"""The store's client for asyncio: tasks that wait, are cancelled, and lose their connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.integration.scripted_store import Act, ScriptedStore
from tests.limits import patience

from rallypoint.errors import StoreConnectionError, StoreQueueEmptyError, StoreTimeoutError
from rallypoint.store import AsyncTCPStore
from rallypoint.wire import c10d_requests as c10d

LIMIT_S = patience(60.0)


def play(
    body: Callable[[ScriptedStore, AsyncTCPStore], Coroutine[Any, Any, None]],
    timeout: float = LIMIT_S,
) -> None:
    async def run(server: ScriptedStore) -> None:
        async with asyncio.timeout(LIMIT_S):
            async with await AsyncTCPStore.connect("127.0.0.1", server.port, timeout) as store:
                await body(server, store)

    with ScriptedStore() as server:
        asyncio.run(run(server))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it is about happens in other threads
        await asyncio.sleep(0.005)


def test_the_vocabulary_is_that_of_a_store() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        await store.set("k", "v")
        assert await store.get("k") == b"v"
        await store.set("e", b"")
        assert await store.get("e") == b""
        assert (await store.add("n", 2), await store.add("n", -3)) == (2, -1)
        assert await store.compare_set("c", "", "1") == b"1"
        await store.append("k", "+")
        await store.multi_set(["a", "b"], ["1", ""])
        assert await store.multi_get(["b", "a", "k"]) == [b"", b"1", b"v+"]
        assert await store.check(["a", "b"])
        assert not await store.check(["a", "missing"])
        await store.queue_push("q", "item")
        assert await store.queue_len("q") == 1
        assert await store.queue_pop("q") == b"item"
        with pytest.raises(StoreQueueEmptyError):
            await store.queue_pop("q", block=False)
        assert sorted(await store.list_keys()) == ["a", "b", "c", "e", "k", "n"]
        assert await store.delete_key("a")
        assert not await store.delete_key("a")
        assert await store.num_keys() == 5
        await store.barrier("alone", 1)
        async with await store.clone() as clone:
            assert await clone.get("k") == b"v+"
        with pytest.raises(ValueError, match="2 keys and 1 values"):
            await store.multi_set(["a", "b"], ["1"])

    play(body)


def test_a_timeout_names_what_is_missing_and_the_store_goes_on() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        await store.set("k", "v")
        waits: list[Callable[[], Awaitable[object]]] = [
            lambda: store.wait(["k", "missing"]),
            lambda: store.get("missing"),
            lambda: store.multi_get(["missing", "k"]),
            lambda: store.queue_pop("missing"),
            lambda: store.barrier("missing", 2),
        ]
        for wait in waits:
            with pytest.raises(StoreTimeoutError) as error:
                await wait()
            assert error.value.missing == ("missing",)
            assert error.value.waited_s >= 0.02
        assert await store.get("k") == b"v"
        assert server.connections == 1

    play(body, timeout=0.02)


def test_tasks_that_wait_hold_nobody_up() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        waiting = [asyncio.create_task(store.get(f"late{n}")) for n in range(3)]
        await until(lambda: len(server.requests(c10d.Wait)) == 3)
        sums = await asyncio.gather(*(store.add("n", 1) for _ in range(50)))
        assert sums == list(range(1, 51))
        await store.multi_set([f"late{n}" for n in range(3)], ["0", "1", "2"])
        assert await asyncio.gather(*waiting) == [b"0", b"1", b"2"]
        assert server.connections == 4

    play(body)


def test_a_cancelled_wait_is_cancelled_at_the_server_and_its_connection_serves_on() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        for wait in (store.get("never"), store.barrier("b", 2), store.queue_pop("q")):
            task = asyncio.create_task(wait)
            started = len(server.requests(c10d.Wait)) + len(server.requests(c10d.Barrier))
            await until(
                lambda before=started: (  # type: ignore[misc]
                    len(server.requests(c10d.Wait)) + len(server.requests(c10d.Barrier)) > before
                )
            )
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await store.add("n", 1) > 0
        assert len(server.requests(c10d.CancelWait)) == 3
        assert await store.get("n") == b"3"
        assert server.connections == 1

    play(body)


def test_a_call_may_be_cancelled_at_any_moment() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        await store.set("k", "v")
        await store.set("e", "")
        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: store.get("k"),
            lambda: store.get("e"),
            lambda: store.multi_get(["k", "e"]),
            lambda: store.get("missing"),
            lambda: store.set("x", "y"),
            store.list_keys,
        ]
        for turns in range(12):
            for call in calls:
                task = asyncio.create_task(call())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert await store.get("k") == b"v"
        assert server.connections == 1

    play(body)


def test_only_what_does_no_harm_twice_is_asked_again() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        await store.set("k", "v")
        assert await store.num_keys() == 1

        def close_once(connection: int, request: c10d.Request) -> Act | bytes:
            hit = connection == 0 and isinstance(request, c10d.Get)
            return Act.SERVE_AND_CLOSE if hit or isinstance(request, c10d.Add) else Act.SERVE

        server.script = close_once
        assert await store.get("k") == b"v"
        with pytest.raises(StoreConnectionError, match="add of 'n'"):
            await store.add("n", 1)
        assert len(server.requests(c10d.Add)) == 1
        with pytest.raises(StoreConnectionError):
            await store.get("k")

    play(body)


def test_a_server_that_falls_silent_is_an_error() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        server.script = lambda connection, request: b""
        calls = (store.num_keys(), store.get("k"))
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in told] == [StoreConnectionError] * 2
        assert "no answer within 5.000 s" in str(told[0])

    play(body, timeout=0.1)


def test_closing_ends_a_wait_and_every_later_call() -> None:
    async def body(server: ScriptedStore, store: AsyncTCPStore) -> None:
        task = asyncio.create_task(store.get("never"))
        await until(lambda: len(server.requests(c10d.Wait)) == 1)
        await store.close()
        with pytest.raises(StoreConnectionError, match="it has been closed"):
            await task
        with pytest.raises(StoreConnectionError, match="it has been closed"):
            await store.set("k", "v")

    play(body)


def test_a_server_that_never_comes_is_an_error_when_the_timeout_is_over() -> None:
    with ScriptedStore() as gone:
        port = gone.port
    with pytest.raises(StoreConnectionError, match="connecting on the store"):
        asyncio.run(AsyncTCPStore.connect("127.0.0.1", port, 0.1))
