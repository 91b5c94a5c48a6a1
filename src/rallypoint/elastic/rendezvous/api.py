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
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from rallypoint.cli.values import read
from rallypoint.core.limits import MAX_PORT
from rallypoint.core.text import naming_parameters
from rallypoint.elastic.agent.embedded.parameters import OF_A_HANDLER
from rallypoint.core.settings import MAX_NODES, Setting
from rallypoint.elastic.agent.embedded.parameters import given_by, parameter_errors
from rallypoint.errors import (
    ParameterError,
    RendezvousClosedError as RendezvousClosedError,
    RendezvousConnectionError as RendezvousConnectionError,
    RendezvousError as RendezvousError,
    RendezvousGracefulExitError as RendezvousGracefulExitError,
    RendezvousPlugInError,
    RendezvousStateError as RendezvousStateError,
    RendezvousTimeoutError as RendezvousTimeoutError,
)
from rallypoint.register.engines import RENAMED, renamed_to

RendezvousClosedException = RendezvousClosedError
RendezvousTimeoutException = RendezvousTimeoutError
RendezvousNonRetryableError = RendezvousError

Unsubscribe = Callable[[], None]


class RendezvousStoreInfo:
    """The address of the workers' store of this round, on the node of rank 0."""

    MASTER_ADDR_KEY = "MASTER_ADDR"
    MASTER_PORT_KEY = "MASTER_PORT"

    def __init__(self, master_addr: str, master_port: int) -> None:
        self.master_addr, self.master_port = master_addr, master_port

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Return the address of the workers' store, which rank 0 publishes in `store`.

        Blocks until it is there. `local_addr` is this node's address; None: its full name.
        `server_port` is the port of a server that listens already; None: a port that is free now,
        which another program may take before it is used.
        `store` is ours or torch's, and fresh for each round, as `RendezvousInfo.store` is: an
        address that is there already is what the others may return. Raises what the store raises,
        for example StoreTimeoutError, and RendezvousStateError for a port that is not one.
        """
        addr_key = RendezvousStoreInfo.MASTER_ADDR_KEY
        port_key = RendezvousStoreInfo.MASTER_PORT_KEY
        if rank == 0:
            port = _free_port() if server_port is None else server_port
            store.set(addr_key, local_addr or socket.getfqdn())
            store.set(port_key, str(port))
        addr, found = bytes(store.get(addr_key)), bytes(store.get(port_key))
        try:
            if not 0 < (number := int(found)) <= MAX_PORT:
                raise ValueError(number)
            return RendezvousStoreInfo(addr.decode(), number)
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

    `rank` and `world_size` count nodes, not workers. Only the nodes of this round share `store`,
    which begins without keys.
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
        """The store that this round's nodes share, with the methods of `elastic.stores.Store`."""
        return self._store

    @property
    def rank(self) -> int:
        """The rank of this node among the nodes of the round."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of nodes in the round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        """The address of the workers' store; None if the handler does not provide one."""
        return self._bootstrap_store_info

    def __iter__(self) -> Iterator[Any]:
        return iter((self.store, self._rank, self._world_size))

    def __repr__(self) -> str:
        return f"RendezvousInfo(rank={self._rank}, world_size={self._world_size})"


class LazyRendezvousInfo(RendezvousInfo):
    """The outcome of a round, whose store connects at its first use, which may block."""

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
    """One node's part in the rounds of a job. Several threads may call its methods."""

    @abstractmethod
    def get_backend(self) -> str:
        """Return the name under which the handler is registered."""

    @property
    def use_agent_store(self) -> bool:
        """Whether a store for the workers listens at `bootstrap_store_info` in this round."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round, block until it has formed, and return its outcome.

        Blocks for the join timeout at most; the time that this node stands by, because a full round
        does not need it, has no limit. No process of an earlier round may live on this node.
        Raises RendezvousClosedError, RendezvousTimeoutError, RendezvousConnectionError,
        RendezvousStateError, and RendezvousGracefulExitError, which is no failure: this node is
        not needed. May be called again after a timeout.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the job is over: no node can join any more. Does not block for long."""

    @abstractmethod
    def set_closed(self) -> None:
        """End the job for all nodes. May be called again."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return a number above 0 if this node's round is over and the job is not, else 0.

        Above 0, the program is to call `next_rendezvous` again. Late nodes do not count before
        they are to be admitted. Does not block for long.
        """

    @abstractmethod
    def get_run_id(self) -> str:
        """Return the run id of the job."""

    @abstractmethod
    def shutdown(self) -> bool:
        """End the job, free everything, and return whether the job could be closed.

        Does not raise if it could not. May be called again.
        """

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Block until this node's round is over or the job is closed, at most `timeout` seconds.

        A `timeout` of None is no limit. Returns whether one of them has happened. A handler that
        does not override this method is polled once a second.
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
        """Have `callback` called, in some thread, after each change that may end `wait_for_change`.

        The callback must not block; an exception that it raises is logged. Returns a function that
        ends the subscription. Raises NotImplementedError where a handler can only be polled.
        """
        raise NotImplementedError(f"{type(self).__name__} can only be polled")


_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")


class RendezvousParameters:
    """The parameters of a handler.

    `config` has keys of particular backends.

    Raises ParameterError (a ValueError) for an empty backend name and for impossible node counts.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,
    ) -> None:
        if not backend:
            raise ParameterError("the rendezvous backend has no name: give one, for example 'tcp'")
        check_nodes(min_nodes, max_nodes)
        self.backend, self.endpoint, self.run_id = backend, endpoint, run_id
        self.min_nodes, self.max_nodes = min_nodes, max_nodes
        self.local_addr, self.config = local_addr, config

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of `config` as it was given; `default` if it is missing."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return the value of a key of `config` as a bool; `default` if it is missing.

        The value may be a bool, 0 or 1, or a word such as `yes`. Raises ParameterError for others.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, int | str) else ""
        if word not in (*_TRUE, *_FALSE):
            raise ParameterError(f"the rendezvous parameter {key}={value!r}: needs true or false")
        return word in _TRUE

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the value of a key of `config` as a whole number; `default` if it is missing.

        Raises ParameterError for a value that `int` refuses; a fraction is cut off.
        """
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            text = f"the rendezvous parameter {key}={value!r}: needs a whole number"
            raise ParameterError(text) from None

    def read(self, rows: Iterable[Setting]) -> dict[str, Any]:
        """Return the values in `config` of these settings, by name, without those that are missing.

        Raises ParameterError for a value that a setting can't have.
        """
        found = {}
        with parameter_errors():
            for row in rows:
                if (value := self.get(row.name)) is not None:
                    said = f"the rendezvous parameter {row.name}={value!r}"
                    found[row.name] = read(row, given_by(row, value, said))
        return found


def check_nodes(min_nodes: int, max_nodes: int) -> None:
    """Raise ParameterError unless 1 <= min_nodes <= max_nodes <= MAX_NODES."""
    if min_nodes < 1:
        raise ParameterError(f"min_nodes={min_nodes}: needs 1 or more")
    if max_nodes < min_nodes:
        raise ParameterError(f"max_nodes={max_nodes} is less than min_nodes={min_nodes}")
    if max_nodes > MAX_NODES:
        raise ParameterError(f"max_nodes={max_nodes}: needs {MAX_NODES} or less")


GROUP = "rallypoint.handlers"
RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]

_BUILT_IN = {
    "tcp": ("static_tcp_rendezvous", "create_handler_from"),
    "c10d": ("c10d_rendezvous_backend", "create_handler_from"),
    "file": ("c10d_rendezvous_backend", "create_handler_from"),
    "etcd": ("etcd_rendezvous_backend", "create_handler_from"),
    "static": ("static_tcp_rendezvous", "create_static_handler_from"),
}
"""The module and the function for each built-in backend; the module is imported on first use."""


class RendezvousHandlerRegistry:
    """A registry of creators by backend name: functions that make handlers.

    Threads must not use it while another one changes it. A package offers handlers as entry points
    of the group `rallypoint.handlers`, by the backend's name. An entry point loads a function
    without arguments that returns a creator, a callable that makes a handler from
    RendezvousParameters.
    """

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register `creator` for the backend of this name; again with the same one is allowed.

        Raises ParameterError for an empty name and for a name that another creator has.
        """
        if not backend:
            raise ParameterError("a rendezvous backend needs a name to be registered under")
        if self._creators.get(backend, creator) is not creator:
            raise ParameterError(
                f"the rendezvous backend {backend!r} is registered already, "
                f"by {self._creators[backend]!r}: choose another name"
            )
        self._creators[backend] = creator

    @naming_parameters(OF_A_HANDLER)
    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler of `params.backend`.

        Raises ParameterError for an unknown backend, with the known ones, RendezvousPlugInError for
        a plug-in that can't be loaded or makes a handler of another name, and what the creator
        raises.
        """
        creator = self._creators.get(params.backend) or _built_in(params.backend)
        creator = creator or self._plug_in(params.backend)
        handler = creator(params)
        # The oldest handlers do not know their name.
        if hasattr(handler, "get_backend") and handler.get_backend() != params.backend:
            raise RendezvousPlugInError(
                f"the handler that was made for the rendezvous backend {params.backend!r} says "
                f"that it is {handler.get_backend()!r}: its get_backend must return the first name"
            )
        return handler

    def _plug_in(self, backend: str) -> RendezvousHandlerCreator:
        offered = entry_points(group=GROUP)
        for entry in offered:
            if entry.name != backend:
                continue
            try:
                creator: RendezvousHandlerCreator = entry.load()()
            except Exception as error:
                raise RendezvousPlugInError(
                    f"the rendezvous backend {backend!r} of the package "
                    f"{entry.dist.name if entry.dist else '?'} ({entry.value}) could not be "
                    f"loaded: {type(error).__name__}: {error}"
                ) from error
            self._creators[backend] = creator
            return creator
        if backend in RENAMED:
            raise ParameterError(f"rendezvous backend {backend!r}: {renamed_to(backend)}")
        known = sorted({*known_backends(), *self._creators})
        raise ParameterError(
            f"unknown rendezvous backend {backend!r}: known are {', '.join(known)}"
        )

    def registered(self) -> list[str]:
        """Return the names of handlers that this process registered or loaded from packages."""
        return sorted(self._creators)


def known_backends() -> list[str]:
    """Return the names of all backends.

    Those that are built in, that installed packages offer, and that this process has registered.
    """
    offered = (entry.name for entry in entry_points(group=GROUP))
    return sorted({*_BUILT_IN, *offered, *rendezvous_handler_registry.registered()})


def _built_in(backend: str) -> RendezvousHandlerCreator | None:
    if backend not in _BUILT_IN:
        return None
    module, name = _BUILT_IN[backend]
    creator: RendezvousHandlerCreator = getattr(import_module(f"{__package__}.{module}"), name)
    return creator


rendezvous_handler_registry = RendezvousHandlerRegistry()
"""The registry of handlers in this process."""
handler_registry = rendezvous_handler_registry
"""Torch's second name of `rendezvous_handler_registry`."""
