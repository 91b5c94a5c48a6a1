"""What the stores make of arguments at the edge, or of the wrong kind: all of them the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.stores import LIMIT_S, await_blocked, tell_and

from rallypoint.errors import ParameterError
from rallypoint.store import ops
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
    with TCPStore("127.0.0.1", 0, is_master=True, timeout=timeout) as store:
        store.set("k", "v")
        with TCPStore("127.0.0.1", store.port, timeout=timeout) as client, client.clone() as clone:
            assert clone.get("k") == client.get("k") == b"v"


@pytest.mark.parametrize("key", [1, b"k", None], ids=repr)
def test_a_key_that_is_no_text_is_refused_by_name(store: Store, key: Any) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.set(key, "v"),
        lambda: store.get(key),
        lambda: store.check(["k", key]),
        lambda: store.queue_pop(key, block=False),
    )
    for call in calls:
        with pytest.raises(TypeError, match=f"key is str, not {type(key).__name__}"):
            call()
    store.set("k", "v")
    assert store.get("k") == b"v"


def test_one_text_in_the_place_of_a_list_is_no_key_per_letter(store: Store) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.check("ab"),
        lambda: store.wait("ab", 0),
        lambda: store.multi_get("ab"),
        lambda: store.multi_set("ab", ["1", "2"]),
    )
    for call in calls:
        with pytest.raises(TypeError, match=r"not one str: \['ab'\]"):
            call()
    assert not store.check(["a"])


@pytest.mark.parametrize("amount", [1.5, "1"], ids=repr)
def test_an_amount_that_is_no_integer_is_refused(store: Store, amount: Any) -> None:
    for call in (store.add, store.barrier):
        with pytest.raises(TypeError, match="interpreted as an integer"):
            call("n", amount)
    assert store.add("n", 1) == 1


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_what_is_no_port_is_refused_and_not_cut_to_16_bits(port: int) -> None:
    with pytest.raises(ValueError, match=f"port {port}: must be 0 to 65535"):
        TCPStore("127.0.0.1", port, is_master=True)
    with pytest.raises(ValueError, match=f"port {port}: must be 1 to 65535"):
        TCPStore("127.0.0.1", port)


def test_a_client_of_port_0_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="port 0: must be 1 to 65535"):
        TCPStore("127.0.0.1", 0)


def test_networks_are_a_list() -> None:
    with pytest.raises(TypeError, match=r"not one str: \['10.0.0.0/8'\]"):
        TCPStore("127.0.0.1", 0, is_master=True, allow="10.0.0.0/8")


@pytest.mark.parametrize("store", [None, "store", {}, HashStore], ids=repr)
def test_a_prefix_of_what_is_no_store_is_refused_where_it_is_made(store: Any) -> None:
    with pytest.raises(ParameterError) as refused:
        PrefixStore("p", store)
    words = re.escape(f"store={store!r}: is not a store, ") + ".*: give a rallypoint.store or torch"
    assert re.fullmatch(words + ".*", str(refused.value))
