"""The blocking calls of a rendezvous handler and of its rounds' stores, for an event loop.

Each runs in a daemon thread, which the exit of the agent does not wait for, because a handler of
another package may block indefinitely. Newer methods that a handler lacks are emulated.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rallypoint.config import RendezvousConfig
from rallypoint.core.model import EndKind, EndReason
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.plug_in import exchange
from rallypoint.elastic.rendezvous.plug_in.exchange import NodeInfo
from rallypoint.elastic.rendezvous.plug_in.part import HandlerState
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
from rallypoint.errors import (
    RallypointError,
    RendezvousClosedError,
    RendezvousPlugInError,
    RendezvousTimeoutError,
)
from rallypoint.threads import run_in_thread

T = TypeVar("T")

POLL_S = 1.0
"""The interval, in seconds, at which a handler without `wait_for_change` is polled."""
WAIT_SLICE_S = 5.0
"""The timeout of one call of `wait_for_change`, in seconds: its thread can't be interrupted."""
FIRST_POLL_S = 0.01
POLL_GROWTH = 1.5
LONGEST_POLL_S = 0.25
"""The longest pause, in seconds, between two looks at the store of a round."""
LOOK_S = 1.0
"""The interval, in seconds, at which the handler is asked about the round while infos are
missing."""
_NEW_ROUND = "a new round began: a node was lost, joined, or restarts its workers"
_unnamed = itertools.count()


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call`, which may block indefinitely, in a thread, and return its result."""
    return await run_in_thread(call, "rallypoint-handler")


def own_name() -> str:
    """Return a new name for a node that was given none; a program may run several nodes."""
    host = socket.gethostname().partition(".")[0] or "node"
    number = next(_unnamed)
    return f"{host}.{os.getpid()}.{number}" if number else f"{host}.{os.getpid()}"


class RoundOver(Exception):
    """The handler reports that its round is over before all its nodes have published their info."""


class AgreedRound:
    """A round that a handler has formed, and the exchange of infos through its store."""

    def __init__(
        self, store: Any, rank: int, size: int, bootstrap: tuple[str, int] | None = None
    ) -> None:
        """Make a round of `size` nodes in which this node has `rank`.

        `bootstrap` is the address and port of the handler's own store for the workers, if it has
        one.
        """
        self._store, self.rank, self.size, self.bootstrap = store, rank, size, bootstrap

    async def exchange(
        self, info: NodeInfo, limit_s: float, check: Callable[[], Awaitable[None]]
    ) -> list[NodeInfo]:
        """Publish this node's info in the round's store, and return the infos of all nodes by rank.

        Polls until all are there, for `limit_s` seconds at most. `check` is called about once a
        second meanwhile, and may raise. A node that is alone uses no store.

        Raises RendezvousTimeoutError, RendezvousStateError for a node of another version, and what
        the store raises.
        """
        if self.size == 1:
            return [info]
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._exchange(info, check)
        except TimeoutError:
            if not limit.expired():
                raise  # The store's own.
            raise RendezvousTimeoutError(
                f"waited {limit_s:g} s for all {self.size} nodes of the round to publish their "
                "node info in its store"
            ) from None

    async def _exchange(
        self, info: NodeInfo, check: Callable[[], Awaitable[None]]
    ) -> list[NodeInfo]:
        store, keys = self._store, [exchange.node_key(rank) for rank in range(self.size)]
        await in_thread(lambda: store.set(keys[self.rank], exchange.encode(info)))
        loop = asyncio.get_running_loop()
        pause_s, look_at = FIRST_POLL_S, loop.time() + LOOK_S
        while not await in_thread(lambda: store.check(keys)):
            if loop.time() > look_at:
                await check()
                look_at = loop.time() + LOOK_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * POLL_GROWTH, LONGEST_POLL_S)
        values = await in_thread(lambda: _read(store, keys))
        return [exchange.decode(value, rank) for rank, value in enumerate(values)]


def _read(store: Any, keys: list[str]) -> list[bytes]:
    """Return the values of the keys, by one request if the store can."""
    if hasattr(store, "multi_get"):
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]


class HandlerClient:
    """A client of a plug-in's or a program's rendezvous handler; blocking calls run in threads.

    `store` is the store of the handler's newest round; None before the first.
    """

    def __init__(self, handler: Any, name: str) -> None:
        self._handler, self.name = handler, name
        self.store: Any = None
        self._using, self._has_left = threading.Lock(), False

    @classmethod
    async def make(cls, rendezvous: RendezvousConfig) -> HandlerClient:
        """Make the handler that `rendezvous.handler` names, and return its client.

        Raises ParameterError for parameters that the handler does not take, RendezvousPlugInError
        if it can't be made, and Rallypoint's other errors as the handler raises them.
        """
        assert rendezvous.handler is not None
        name, conf = rendezvous.handler.backend, dict(rendezvous.handler.conf)
        params = RendezvousParameters(
            name,
            rendezvous.handler.endpoint,
            rendezvous.run_id,
            rendezvous.min_nodes,
            rendezvous.max_nodes,
            rendezvous.local_addr,
            **conf,
        )
        try:
            return cls(await in_thread(lambda: get_rendezvous_handler(params)), name)
        except RallypointError:
            raise
        except Exception as error:
            raise RendezvousPlugInError(
                f"the handler of the rendezvous backend {name!r} could not be created: "
                f"{type(error).__name__}: {error}"
            ) from error

    async def next_round(self) -> AgreedRound:
        """Call the handler's `next_rendezvous`, wait for it, and return the round.

        Raises what that raises, and RendezvousPlugInError if its result is not a store, a rank and
        a world size.
        """
        return await in_thread(self._next_round)

    def _next_round(self) -> AgreedRound:
        info = self._handler.next_rendezvous()
        try:
            # Torch's own has these names; the oldest handlers return a plain tuple.
            is_named = hasattr(info, "bootstrap_store_info")
            store, rank, size = (info.store, info.rank, info.world_size) if is_named else info
            is_place = 0 <= rank < size
        except (TypeError, ValueError):
            is_place = False
        if not is_place:
            raise RendezvousPlugInError(
                f"next_rendezvous of the rendezvous backend {self.name!r} returned "
                f"{info!r:.80}: it needs (store, rank, world_size)"
            )
        self.store = store
        own = getattr(info, "bootstrap_store_info", None)
        if own is None or not getattr(self._handler, "use_agent_store", False):
            return AgreedRound(store, rank, size)
        return AgreedRound(store, rank, size, (own.master_addr, own.master_port))

    async def look(self) -> HandlerState:
        """Return the present state of the handler's round."""
        return await in_thread(self._look)

    async def check_round(self) -> None:
        """Raise RoundOver or RendezvousClosedError if the handler's round or job is over."""
        match await self.look():
            case HandlerState.CLOSED:
                raise RendezvousClosedError("the job was closed during the rendezvous")
            case HandlerState.OVER:
                raise RoundOver

    async def wait_change(self) -> HandlerState:
        """Wait until the handler's round may have changed, at most 5 s, and return its state.

        A handler without `wait_for_change` is asked after 1 s.
        """
        if not hasattr(self._handler, "wait_for_change"):
            await asyncio.sleep(POLL_S)
            return await self.look()
        await in_thread(lambda: self._handler.wait_for_change(WAIT_SLICE_S))
        return await self.look()

    def _look(self) -> HandlerState:
        """Return the state of the handler's round.

        Once this node has left the handler or shut it down, it is GOES_ON, without asking.
        """
        with self._using:
            if self._has_left:
                return HandlerState.GOES_ON
            if self._handler.is_closed():
                return HandlerState.CLOSED
            is_over = self._handler.num_nodes_waiting() > 0
            return HandlerState.OVER if is_over else HandlerState.GOES_ON

    @property
    def settings(self) -> Any:
        """The settings of the handler; None if it has no such attribute."""
        return getattr(self._handler, "settings", None)

    @property
    def run_id(self) -> str:
        """The run id of the handler; empty if it has none."""
        ask = getattr(self._handler, "get_run_id", None)
        return str(ask()) if ask is not None else ""

    @property
    def node_id(self) -> str:
        """The name that the handler has for this node; empty if it has none."""
        return str(getattr(self._handler, "node_id", "") or "")

    @property
    def end_reason(self) -> EndReason:
        """The reason why the last round ended; a general one if the handler gives none."""
        known = getattr(self._handler, "end_reason", None)
        if isinstance(known, EndReason):
            return known
        return EndReason(EndKind.GROWTH, str(getattr(self._handler, "why_over", "") or _NEW_ROUND))

    async def set_closed(self) -> None:
        """End the job for all nodes, by the handler."""
        await in_thread(self._handler.set_closed)

    async def leave(self) -> None:
        """Call the handler's `leave`, if it has one: the job continues without this node."""
        if hasattr(self._handler, "leave"):
            await in_thread(lambda: self._part(self._handler.leave))

    async def shutdown(self) -> None:
        """Call the handler's `shutdown`, which ends the job; `set_closed` if it has none."""
        way = getattr(self._handler, "shutdown", self._handler.set_closed)
        await in_thread(lambda: self._part(way))

    def _part(self, way: Callable[[], object]) -> None:
        with self._using:
            self._has_left = True
            way()
