"""What the stores make of arguments at the edge, or of the wrong kind: all of them the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from tests.conformance.stores import LIMIT_S, await_blocked, tell_and

from rallypoint.store import ops
from rallypoint.store.async_tcp_store import AsyncTCPStore
from rallypoint.store.file_store import FileStore
from rallypoint.store.hash_store import HashStore
from rallypoint.store.prefix_store import PrefixStore
from rallypoint.store.store import Store, Timeout
from rallypoint.store.tcp_store import TCPStore

FOR_EVER = (timedelta(days=365), timedelta.max, 10**20, float("inf"))


@pytest.fixture(params=["hash", "file", "tcp", "prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with ExitStack() as opened:
        match request.param:
            case "hash":
                yield HashStore(LIMIT_S)
            case "file":
                yield opened.enter_context(FileStore(tmp_path / "store", timeout=LIMIT_S))
            case _:
                tcp = opened.enter_context(TCPStore("127.0.0.1", 0, is_master=True))
                tcp.set_timeout(LIMIT_S)
                yield tcp if request.param == "tcp" else PrefixStore("p", tcp)


@pytest.mark.parametrize("timeout", FOR_EVER, ids=repr)
def test_a_timeout_of_years_or_for_ever_waits_until_the_value_comes(
    store: Store, timeout: Timeout
) -> None:
    store.set_timeout(timeout)
    waiter = store.clone()
    assert waiter.timeout == store.timeout >= timedelta(days=365)
    reader = tell_and(waiter, "reader", waiter.get, "late")
    await_blocked(store, "reader")
    store.set("late", "1")
    assert reader.result() == b"1"
    assert ops.synchronize(store, b"data", 0, 1, "sync", float("inf")) == [b"data"]


@pytest.mark.parametrize("timeout", FOR_EVER, ids=repr)
def test_a_connection_can_be_made_with_a_timeout_of_years_or_for_ever(timeout: Timeout) -> None:
    async def talk(port: int) -> bytes:
        async with await AsyncTCPStore.connect("127.0.0.1", port, timeout) as store:
            clone = await store.clone()
            await clone.close()
            return await store.get("k")

    with TCPStore("127.0.0.1", 0, is_master=True, timeout=timeout) as store:
        store.set("k", "v")
        assert asyncio.run(talk(store.port)) == b"v"
