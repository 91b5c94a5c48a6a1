"""What the stores make of arguments at the edge, or of the wrong kind: all of them the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.stores import LIMIT_S, await_blocked, tell_and

from rallypoint.elastic.stores.file_store import FileStore
from rallypoint.elastic.stores.hash_store import HashStore
from rallypoint.elastic.stores.prefix_store import PrefixStore
from rallypoint.elastic.stores.store import Store, StoreValue, Timeout, to_bytes
from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.elastic.utils import store as ops
from rallypoint.errors import InfrastructureError, ParameterError, StoreConnectionError, StoreError

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
    with pytest.raises(ValueError, match=f"port {port}: must be 0 to 65535"):
        TCPStore("127.0.0.1", port)


def test_a_client_of_port_0_is_refused_at_once() -> None:
    """As torch's by its kind, a RuntimeError; torch's comes when the timeout is over."""
    with pytest.raises(StoreConnectionError, match="no server has the port 0: needs that of"):
        TCPStore("127.0.0.1", 0, timeout=0.05)


def test_errors_of_stores_are_runtime_errors_as_torchs_are() -> None:
    with pytest.raises(RuntimeError) as timed_out:
        HashStore().wait(["missing"], 0.0)
    assert isinstance(timed_out.value, TimeoutError)
    with TCPStore("127.0.0.1", 0, is_master=True) as server, pytest.raises(RuntimeError) as taken:
        TCPStore("127.0.0.1", server.port, is_master=True)
    assert isinstance(taken.value, ConnectionError)
    assert issubclass(StoreError, InfrastructureError)


def test_a_store_that_a_program_derives_has_clones_whatever_it_is_made_with(
    tmp_path: Path,
) -> None:
    class Tcp(TCPStore):
        def __init__(self, job: str) -> None:
            super().__init__("127.0.0.1", 0, is_master=True)

    class File(FileStore):
        def __init__(self, job: str) -> None:
            super().__init__(tmp_path / job, 1)

    class Hash(HashStore):
        def __init__(self, job: str) -> None:
            super().__init__()

    class Prefix(PrefixStore):
        def __init__(self, job: str) -> None:
            super().__init__(job, HashStore())

    with Tcp("job") as tcp, File("job") as file:
        for store in (tcp, file, Hash("job"), Prefix("job")):
            store.set("k", "v")
            clone = store.clone()
            assert type(clone) is type(store).__base__
            assert clone.get("k") == b"v"
            assert PrefixStore("p", store).clone().compare_set("k", "", "1") == b"1"
            assert store.get("p/k") == b"1"


class Few(Store):
    """Defines only some methods, and does not call the constructor of its base."""

    def __init__(self) -> None:
        self.values: dict[str, StoreValue] = {}

    def set(self, key: str, value: StoreValue) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return to_bytes(self.values[key])


def test_a_store_of_a_program_needs_only_the_methods_that_are_used() -> None:
    store = Few()
    PrefixStore("p", store).multi_set(["a", "b"], ["1", "2"])
    assert store.values == {"p/a": b"1", "p/b": b"2"}
    assert store.multi_get(["p/b", "p/a"]) == [b"2", b"1"]
    assert not store.has_extended_api()
    assert HashStore().has_extended_api()
    assert store.timeout == Store().timeout == HashStore().timeout
    with pytest.raises(RuntimeError, match="the store Few has no queue_pop: define it"):
        store.queue_pop("a")


class Own:
    """A program's store that is none of our classes; it takes bytes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        assert type(value) is bytes
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        number = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(number).encode()
        return number

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        assert self.check(keys)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        assert (type(expected), type(desired)) == (bytes, bytes)
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        return self.values.get(key, expected)


class Racing(Own):
    """Another process appends once between a look and a change."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if b"other" not in self.values.get(key, b""):
            self.values[key] = self.values.get(key, b"") + b"other"
        return super().compare_set(key, expected, desired)


def test_a_prefix_of_a_programs_store_passes_bytes_and_falls_back_for_what_it_lacks() -> None:
    own = Own()
    part = PrefixStore("p", own)  # type: ignore[arg-type]
    part.set("a", "1")
    part.append("a", "2")
    part.append("new", b"\xff")
    part.multi_set(["b", "c"], ["3", b"4"])
    assert part.multi_get(["a", "new", "b", "c"]) == [b"12", b"\xff", b"3", b"4"]
    assert part.compare_set("b", "3", "5") == b"5"
    part.barrier("all", 1, 1)
    with pytest.raises(AssertionError):
        part.barrier("two", 2, 1)
    assert set(own.values) == {
        *("p/a", "p/new", "p/b", "p/c"),
        *("p/all/num_members", "p/all/last_member", "p/two/num_members"),
    }


def test_what_another_appends_meanwhile_is_kept() -> None:
    racing = Racing()
    PrefixStore("p", racing).append("k", "mine")  # type: ignore[arg-type]
    assert racing.values == {"p/k": b"othermine"}


@pytest.mark.parametrize("kind", [HashStore, FileStore, TCPStore, PrefixStore])
def test_every_store_of_the_package_defines_all_methods(kind: type[Store]) -> None:
    of_base = {"__init__", "_lacks", "_wait_s", "timeout", "set_timeout", "has_extended_api"}
    names = [name for name, value in vars(Store).items() if callable(value)]
    assert not [n for n in names if n not in of_base and getattr(kind, n) is getattr(Store, n)]


def test_networks_are_a_list() -> None:
    with pytest.raises(TypeError, match=r"not one str: \['10.0.0.0/8'\]"):
        TCPStore("127.0.0.1", 0, is_master=True, allow="10.0.0.0/8")


@pytest.mark.parametrize("store", [None, "store", {}, HashStore], ids=repr)
def test_a_prefix_of_what_is_no_store_is_refused_where_it_is_made(store: Any) -> None:
    with pytest.raises(ParameterError) as refused:
        PrefixStore("p", store)
    words = (
        re.escape(f"store={store!r}: is not a store, ")
        + ".*: give a rallypoint.elastic.stores or torch"
    )
    assert re.fullmatch(words + ".*", str(refused.value))
