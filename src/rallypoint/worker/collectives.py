"""A store and barriers for the workers of a round, without any framework."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

from rallypoint.worker.environ import Context, context

if TYPE_CHECKING:
    from rallypoint.elastic.stores.store import Store

PREFIX = "rallypoint.worker"
CONNECT_S = 300.0
"""The time limit in seconds for reaching the store, when a script asks for it."""
MIN_CONNECT_S = 5.0
"""The least time limit in seconds for reaching the store at a barrier."""

_lock = threading.Lock()
_store: Store | None = None
_barriers: Counter[str] = Counter()


def store() -> Store:
    """Return a store that all workers of this round share, with its own key prefix.

    It is a client of MASTER_ADDR:MASTER_PORT, made at the first call; the same object for all
    threads. Its content does not outlive the round. Outside of a launcher it is a store in this
    process alone. Blocks until the store is reached. Raises StoreConnectionError when it is not, or
    ValueError for an invalid environment.
    """
    return _shared(CONNECT_S)


def barrier(name: str = "", timeout_s: float = 300.0) -> None:
    """Wait until every worker of the round has reached this barrier. Blocks.

    A name may be used again: the n-th use on one rank is the n-th on the others. Raises
    StoreTimeoutError, which names the missing ranks; then the rank may call again. Raises
    StoreConnectionError if the store can't be reached or went away, and ValueError for an invalid
    time or environment.
    """
    if not timeout_s >= 0:
        raise ValueError(f"timeout_s={timeout_s!r}: needs a number of seconds, 0 or more")
    place = context()
    if place.world_size == 1:
        return
    from rallypoint.elastic.utils import store as ops

    shared = _shared(max(timeout_s, MIN_CONNECT_S))
    with _lock:
        turn = _barriers[name]
    key = f"barrier/{name}/{turn}"
    ops.barrier(shared, place.world_size, key, timeout_s, rank=place.rank)
    with _lock:
        _barriers[name] = turn + 1


def _shared(connect_s: float) -> Store:
    global _store
    with _lock:
        if _store is None:
            _store = _connect(context(), connect_s)
        return _store


def _connect(place: Context, timeout_s: float) -> Store:
    from rallypoint.elastic.stores import HashStore, PrefixStore, TCPStore
    from rallypoint.elastic.stores.store import DEFAULT_TIMEOUT

    if not place.launched or not place.master_addr:
        return HashStore()
    # A store with fixed ranks serves several rounds.
    prefix = f"{PREFIX}/{place.round}/"
    shared = TCPStore(place.master_addr, place.master_port, timeout=timeout_s)
    shared.set_timeout(DEFAULT_TIMEOUT)
    return PrefixStore(prefix, shared)


def _forget() -> None:
    """Forget the connection in a forked process."""
    global _store, _lock
    _store, _lock = None, threading.Lock()
    _barriers.clear()


os.register_at_fork(after_in_child=_forget)
