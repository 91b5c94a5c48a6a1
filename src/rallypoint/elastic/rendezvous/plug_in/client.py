"""The calls of a rendezvous handler and of its rounds' stores, which block, for a loop.

Each runs in a thread that nothing waits for when the agent ends: a handler of another package may
block for as long as it likes. What it lacks of the newer methods is made up for.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rallypoint.config import RendezvousConfig
from rallypoint.core.model import EndKind, EndReason
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.plug_in.part import HandlerChange
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
from rallypoint.errors import RallypointError, RendezvousPlugInError
from rallypoint.threads import run_in_thread

T = TypeVar("T")

POLL_S = 1.0
"""A handler without `wait_for_change` is asked so often."""
WAIT_SLICE_S = 5.0
"""One that can is asked to wait for so long, since its thread can't be interrupted."""
_NEW_ROUND = "a new round began: a node was lost, joined, or restarts its workers"
_unnamed = itertools.count()


async def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, which may block for ever; see `run_in_thread`."""
    return await run_in_thread(call, "rallypoint-handler")


def own_name() -> str:
    """For a node without a given name; a program may run several."""
    host = socket.gethostname().partition(".")[0] or "node"
    number = next(_unnamed)
    return f"{host}.{os.getpid()}.{number}" if number else f"{host}.{os.getpid()}"


class AgreedRound:
    """A round that a handler has agreed on, and what its nodes tell each other by its store."""

    def __init__(
        self, store: Any, rank: int, size: int, bootstrap: tuple[str, int] | None = None
    ) -> None:
        """`bootstrap`: the handler's own store for the workers, if it has one."""
        self._store, self.rank, self.size, self.bootstrap = store, rank, size, bootstrap

    async def has(self, *keys: str) -> bool:
        """Whether all keys are there."""
        return bool(await in_thread(lambda: self._store.check(list(keys))))

    async def put(self, key: str, value: bytes) -> None:
        """One set."""
        await in_thread(lambda: self._store.set(key, value))

    async def read(self, *keys: str) -> list[bytes]:
        """The values of keys that are there; one request where the store can."""

        def read() -> list[bytes]:
            if hasattr(self._store, "multi_get"):
                return list(self._store.multi_get(list(keys)))
            return [self._store.get(key) for key in keys]

        return await in_thread(read)


class HandlerClient:
    """One handler. `store` is that of its newest round."""

    def __init__(self, handler: Any, name: str) -> None:
        self._handler, self.name = handler, name
        self.store: Any = None
        self._using, self._has_left = threading.Lock(), False

    @classmethod
    async def make(cls, rendezvous: RendezvousConfig) -> HandlerClient:
        """The handler of `rendezvous.handler`.

        Raises ParameterError for what it does not take, RendezvousPlugInError, and others of ours.
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
        """`next_rendezvous`. Raises what that raises, RendezvousPlugInError for no such tuple."""
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

    async def look(self) -> HandlerChange:
        """What the handler says now."""
        return await in_thread(self._look)

    async def wait_change(self) -> HandlerChange:
        """What it says when something may have changed, or after some seconds."""
        if not hasattr(self._handler, "wait_for_change"):
            await asyncio.sleep(POLL_S)
            return await self.look()
        await in_thread(lambda: self._handler.wait_for_change(WAIT_SLICE_S))
        return await self.look()

    def _look(self) -> HandlerChange:
        """Not once this node has left: a handler may begin anew when it is asked then."""
        with self._using:
            return HandlerChange.NONE if self._has_left else self._look_now()

    def _look_now(self) -> HandlerChange:
        if self._handler.is_closed():
            return HandlerChange.CLOSED
        return HandlerChange.OVER if self._handler.num_nodes_waiting() > 0 else HandlerChange.NONE

    @property
    def settings(self) -> Any:
        """What the handler was made with, or None if it does not say."""
        return getattr(self._handler, "settings", None)

    @property
    def run_id(self) -> str:
        """The job's, or nothing if the handler does not know."""
        ask = getattr(self._handler, "get_run_id", None)
        return str(ask()) if ask is not None else ""

    @property
    def node_id(self) -> str:
        """How the handler names this node to others, if it says."""
        return str(getattr(self._handler, "node_id", "") or "")

    @property
    def end_reason(self) -> EndReason:
        """Why the last round ended, as far as the handler says."""
        known = getattr(self._handler, "end_reason", None)
        if isinstance(known, EndReason):
            return known
        return EndReason(EndKind.GROWTH, str(getattr(self._handler, "why_over", "") or _NEW_ROUND))

    async def set_closed(self) -> None:
        """End the job for all nodes."""
        await in_thread(self._handler.set_closed)

    async def leave(self) -> None:
        """Go without ending the job; a handler that can't say so is just let alone."""
        if hasattr(self._handler, "leave"):
            await in_thread(lambda: self._part(self._handler.leave))

    async def shutdown(self) -> None:
        """End the job, and free everything."""
        way = getattr(self._handler, "shutdown", self._handler.set_closed)
        await in_thread(lambda: self._part(way))

    def _part(self, way: Callable[[], object]) -> None:
        with self._using:
            self._has_left = True
            way()
