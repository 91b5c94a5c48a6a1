"""The operations of a group of ranks through a store: exchange data, wait for each other.

Everything here works with any object of the `Store` vocabulary, torch's own included. Each rank
makes a fixed number of requests, whatever the size of the group. What is written stays in the
store: a prefix serves once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any, NamedTuple

from rallypoint.elastic.stores.store import to_seconds
from rallypoint.errors import StoreError, StoreTimeoutError

DistStoreError = StoreError
"""Torch's name of the class of a store's errors; stores of torch's raise a class of their own."""
MAX_NAMED = 16
"""The most missing ranks that the error of a wait names."""

Name = Callable[[int], str]


@contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:
    """Set a store's timeout in seconds within the block, and restore the old one after it."""
    before = store.timeout
    store.set_timeout(timedelta(seconds=to_seconds(timeout)))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """Return the values of `<prefix><rank>` for every rank, in order, once all are there.

    Rank 0, which may host the store, returns last. Blocks, each time up to the store's timeout.
    Raises StoreTimeoutError, which names the ranks that were missing, and ValueError for a rank
    that the group does not have.
    """
    return _get_all(store, rank, prefix, world_size, store.timeout.total_seconds())


def synchronize(
    store: Any, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> list[bytes]:
    """Store this rank's `data`, and return the data of all ranks, in order, once all are there.

    Each wait takes `timeout` seconds at most. Otherwise as `get_all`.
    """
    _check_rank(rank, world_size)
    store.set(f"{key_prefix}{rank}", data)
    return _get_all(store, rank, key_prefix, world_size, timeout)


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Name | None = None,
    trace_timeout: float = 10,
) -> None:
    """Return when `world_size` ranks have come. Blocks.

    Raises StoreTimeoutError; where all give their rank it names those that are missing, each as
    `rank_tracing_decoder` calls it. `trace_timeout` has no effect: to ask who has come needs no
    wait, and every rank that timed out names the others, not only rank 0 as with torch. A rank that
    timed out may come again if it gives its rank: it is counted once.
    """
    if rank is not None:
        _check_rank(rank, world_size)
    last = f"{key_prefix}/last_member"
    is_new = rank is None or store.add(f"{key_prefix}/arrived/{rank}", 1) == 1
    if is_new and store.add(f"{key_prefix}/num_members", 1) >= world_size:
        store.set(last, "1")
    arrived = [f"{key_prefix}/arrived/{other}" for other in range(world_size)]
    waited = _Wait("barrier", arrived, rank_tracing_decoder)
    _wait(store, [last], barrier_timeout, waited)


def _get_all(store: Any, rank: int, prefix: str, world_size: int, timeout_s: float) -> list[bytes]:
    _check_rank(rank, world_size)
    keys = [f"{prefix}{other}" for other in range(world_size)]
    _wait(store, keys, timeout_s, _Wait("get_all", keys))
    values = list(store.multi_get(keys))
    finished = [f"{prefix}/finished/{other}" for other in range(1, world_size)]
    if rank > 0:
        store.set(finished[rank - 1], "1")
    elif finished:
        _wait(store, finished, timeout_s, _Wait("get_all", ["", *finished]))
    return values


class _Wait(NamedTuple):
    """The data for the error of a wait, which names the ranks that have not set their keys."""

    doing: str
    by_rank: Sequence[str]
    """The key that each rank sets, by rank; empty for a rank that sets none."""
    name: Name | None = None


def _wait(store: Any, keys: list[str], timeout_s: float, told: _Wait) -> None:
    """Wait for keys. Raises StoreTimeoutError, which names the ranks that have not set theirs."""
    start = monotonic()
    try:
        store.wait(keys, timedelta(seconds=to_seconds(timeout_s)))
    except Exception as error:
        if not _is_timeout(error):
            raise
        waited_s = monotonic() - start
        expected = [rank for rank, key in enumerate(told.by_rank) if key]
        ranks = _absent(store, expected, told.by_rank)
        named = [told.name(rank) if told.name else f"rank {rank}" for rank in ranks[:MAX_NAMED]]
        raise StoreTimeoutError(told.doing, named or keys, waited_s) from error


def _absent(store: Any, ranks: list[int], keys: Sequence[str]) -> list[int]:
    """Return those of these ranks whose keys are missing, from the first on.

    They are found by bisection, and the search ends once there are enough to be named.
    """
    if not ranks or store.check([keys[rank] for rank in ranks]):
        return []
    if len(ranks) == 1:
        return ranks
    half = len(ranks) // 2
    found = _absent(store, ranks[:half], keys)
    return found if len(found) >= MAX_NAMED else found + _absent(store, ranks[half:], keys)


def _is_timeout(error: Exception) -> bool:
    """Return whether the error is a timeout, even of torch's stores.

    They raise a class of their own, or an error that only its text distinguishes.
    """
    theirs = any(cls.__name__ == "DistStoreError" for cls in type(error).__mro__)
    return isinstance(error, TimeoutError) or theirs or "timeout" in str(error).lower()


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not among the {world_size} ranks of the group")
