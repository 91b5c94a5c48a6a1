"""The vocabulary of a rendezvous: what an agent asks, and what it gets.

    info = handler.next_rendezvous()        # blocks until the nodes have agreed
    info.rank, info.world_size, info.store
    handler.wait_for_change(timeout=60)     # something happened: a node was lost, or came
    handler.num_nodes_waiting()             # > 0: this round is over, call next_rendezvous again

Names and signatures are those of torch's `elastic.rendezvous`. Its oldest exceptions,
`RendezvousClosedException` and the like, are names of today's.
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

RendezvousClosedException = RendezvousClosedError
RendezvousTimeoutException = RendezvousTimeoutError
RendezvousNonRetryableError = RendezvousError

Unsubscribe = Callable[[], None]


class RendezvousStoreInfo:
    """Where the workers' own store of this round is: on the node of rank 0."""

    MASTER_ADDR_KEY = "MASTER_ADDR"
    MASTER_PORT_KEY = "MASTER_PORT"

    def __init__(self, master_addr: str, master_port: int) -> None:
        self.master_addr, self.master_port = master_addr, master_port

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Rank 0 publishes its address in `store`, and all return it; blocks until it is there.

        `local_addr`: this node's, else its full name. `server_port`: of a server that listens
        already, else a port that is free now, which another program may take before it is used.
        `store` is ours or torch's, and fresh for each round, as `RendezvousInfo.store` is: an
        address that is there already is what the others may return. Raises what the store raises,
        for example StoreTimeoutError, and RendezvousStateError for what is not a valid port.
        """
        addr_key = RendezvousStoreInfo.MASTER_ADDR_KEY
        port_key = RendezvousStoreInfo.MASTER_PORT_KEY
        if rank == 0:
            port = _free_port() if server_port is None else server_port
            store.set(addr_key, local_addr or socket.getfqdn())
            store.set(port_key, str(port))
        addr, found = bytes(store.get(addr_key)), bytes(store.get(port_key))
        try:
            return RendezvousStoreInfo(addr.decode(), int(found))
        except ValueError:
            raise RendezvousStateError(
                f"the store's {addr_key}={addr[:80]!r} and {port_key}={found[:80]!r} are not an "
                "address: give every round a store or a prefix of its own"
            ) from None

    def __repr__(self) -> str:
        return f"RendezvousStoreInfo({self.master_addr!r}, {self.master_port})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RendezvousStoreInfo):
            return NotImplemented
        return (self.master_addr, self.master_port) == (other.master_addr, other.master_port)

    def __hash__(self) -> int:
        return hash((self.master_addr, self.master_port))


def _free_port() -> int:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both) as probe:
        return int(probe.getsockname()[1])


class RendezvousInfo:
    """The outcome of a round for one node; unpacks as `(store, rank, world_size)`.

    `rank` and `world_size` count nodes, not workers. `store` is common to the nodes of this round
    and has no other keys.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo | None,
    ) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Any:
        """A store with the vocabulary of `rallypoint.store.Store`."""
        return self._store

    @property
    def rank(self) -> int:
        """This node's rank among the nodes."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many nodes take part."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        """Where the workers' store is; None if the handler has no opinion."""
        return self._bootstrap_store_info

    def __iter__(self) -> Iterator[Any]:
        return iter((self.store, self._rank, self._world_size))

    def __repr__(self) -> str:
        return f"RendezvousInfo(rank={self._rank}, world_size={self._world_size})"


class LazyRendezvousInfo(RendezvousInfo):
    """The same, with a store that is connected to when it is first asked for, which may block."""

    def __init__(
        self,
        connect: Callable[[], Any],
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo,
    ) -> None:
        super().__init__(None, rank, world_size, bootstrap_store_info)
        self._connect, self._lock = connect, threading.Lock()

    @property
    def store(self) -> Any:
        with self._lock:
            if self._store is None:
                self._store = self._connect()
            return self._store


class RendezvousHandler(ABC):
    """One node's part in the rounds of a job. Safe from several threads."""

    @abstractmethod
    def get_backend(self) -> str:
        """The name under which it is registered."""

    @property
    def use_agent_store(self) -> bool:
        """A store for the workers listens at `bootstrap_store_info`, for all of this round."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Block until the nodes have agreed, at most the join timeout.

        No process of an earlier round may live on this node. Raises RendezvousClosedError,
        RendezvousTimeoutError, RendezvousConnectionError, RendezvousStateError, and
        RendezvousGracefulExitError, which is no failure. May be called again after a timeout.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """The job is over: no node can join any more. Does not block for long."""

    @abstractmethod
    def set_closed(self) -> None:
        """End the job for all nodes. May be called again."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """More than 0: this node's round is over, and `next_rendezvous` is to be called again.

        Late nodes do not count before they are to be admitted. Does not block for long.
        """

    @abstractmethod
    def get_run_id(self) -> str:
        """The job."""

    @abstractmethod
    def shutdown(self) -> bool:
        """End the job and free everything; whether the job could be closed. Never raises for that.

        May be called again.
        """

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Block until this node's round is over or the job is closed, at most `timeout` seconds.

        Whether something happened. Handlers of others are polled.
        """
        import time

        ends_at = None if timeout is None else time.monotonic() + timeout
        while not (self.num_nodes_waiting() or self.is_closed()):
            left_s = 1.0 if ends_at is None else min(1.0, ends_at - time.monotonic())
            if left_s <= 0:
                return False
            time.sleep(left_s)
        return True

    def on_change(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call `callback` from some thread, soon after each change that ends `wait_for_change`.

        It must not block; what it raises is logged. Returns what ends the subscription. Raises
        NotImplementedError where a handler can only be polled.
        """
        raise NotImplementedError(f"{type(self).__name__} can only be polled")


__all__ = [
    "LazyRendezvousInfo",
    "RendezvousClosedError",
    "RendezvousClosedException",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousNonRetryableError",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "RendezvousTimeoutException",
]
