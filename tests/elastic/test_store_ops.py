"""Groups that meet in a store: ours and torch's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from tests.harness.limits import patience

from rallypoint.elastic.stores.hash_store import HashStore
from rallypoint.elastic.utils.store import barrier, get_all, store_timeout, synchronize
from rallypoint.errors import StoreTimeoutError

dist: Any = torch.distributed
LIMIT_S = patience(30.0)
STORES: dict[str, Callable[[Path], Any]] = {
    "ours": lambda _: HashStore(LIMIT_S),
    "torch-hash": lambda _: dist.HashStore(),
    "torch-file": lambda folder: dist.FileStore(str(folder / "store"), -1),
    "torch-tcp": lambda _: dist.TCPStore("127.0.0.1", 0, None, True),
}


class Counting:
    """Counts the requests that are made of a store."""

    def __init__(self, store: Any) -> None:
        self.store, self.requests = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.requests[name] += 1
        return getattr(self.store, name)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return STORES[request.param](tmp_path)


def on_every_rank(world_size: int, work: Callable[[int], object]) -> dict[int, object]:
    with ThreadPoolExecutor(world_size) as pool:
        return dict(enumerate(pool.map(work, range(world_size))))


def test_every_rank_gets_the_data_of_all(store: Any) -> None:
    clones = [store.clone() for _ in range(4)]

    def work(rank: int) -> object:
        return synchronize(clones[rank], b"%d" % rank, rank, 4, "data/", LIMIT_S)

    assert on_every_rank(4, work) == {rank: [b"0", b"1", b"2", b"3"] for rank in range(4)}


def test_who_sends_no_data_is_named(store: Any) -> None:
    with pytest.raises(StoreTimeoutError) as raised:
        synchronize(store, b"1", 1, 4, "data/", 0.05)
    assert raised.value.missing == ("rank 0", "rank 2", "rank 3")


def test_rank_0_waits_until_all_have_read(store: Any) -> None:
    store.set("k0", "0")
    store.set("k1", "1")
    with store_timeout(store, 0.05), pytest.raises(StoreTimeoutError, match="'rank 1'"):
        get_all(store, 0, "k", 2)
    assert get_all(store, 1, "k", 2) == [b"0", b"1"]
    assert get_all(store, 0, "k", 2) == [b"0", b"1"]


def test_a_barrier_holds_until_all_have_come(store: Any) -> None:
    clones = [store.clone() for _ in range(4)]

    def work(rank: int) -> object:
        clones[rank].add("came", 1)
        barrier(clones[rank], 4, "b", LIMIT_S, rank)
        return clones[rank].add("came", 0)

    assert on_every_rank(4, work) == dict.fromkeys(range(4), 4)


def test_a_barrier_names_who_is_missing_and_counts_nobody_twice(store: Any) -> None:
    for _ in range(3):
        with pytest.raises(StoreTimeoutError) as raised:
            barrier(store, 3, "b", 0.05, 1, lambda rank: f"host {rank}", trace_timeout=0.01)
        assert raised.value.missing == ("host 0", "host 2")


def test_the_requests_of_a_rank_do_not_grow_with_the_group() -> None:
    def requests(world_size: int) -> int:
        stores = [Counting(HashStore(LIMIT_S))]
        stores += [Counting(stores[0].store.clone()) for _ in range(world_size - 1)]

        def work(rank: int) -> object:
            barrier(stores[rank], world_size, "b", LIMIT_S, rank)
            return synchronize(stores[rank], b"x", rank, world_size, "d/", LIMIT_S)

        assert len(on_every_rank(world_size, work)) == world_size
        return max(sum(store.requests.values()) for store in stores)

    assert requests(32) <= requests(2) + 1


def test_a_timeout_is_put_back_whatever_happens() -> None:
    store = HashStore(7)
    with pytest.raises(KeyError), store_timeout(store, 1):
        raise KeyError
    assert store.timeout == timedelta(seconds=7)


def test_a_rank_out_of_the_group_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 4 is not among the 4 ranks"):
        synchronize(HashStore(), b"", 4, 4, "k")
