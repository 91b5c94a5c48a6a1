"""The calls of a handler, which block, for the thread of a loop.

Each runs in a thread of its own that nobody waits for when the agent ends: a handler of somebody
else's may block for as long as it likes. What it lacks of the newer methods is made up for.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from msgspec import Struct

from rallypoint.config import RendezvousConfig
from rallypoint.core import handler_round
from rallypoint.core.model import EndKind, EndReason, Verdict
from rallypoint.errors import RallypointError, RendezvousPlugInError
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.registry import get_rendezvous_handler
from rallypoint.rendezvous.threads import run_in_thread

T = TypeVar("T")

_MEET_AGAIN = "the nodes meet again: one was lost, came, or restarts its workers"
POLL_S = 1.0
"""A handler that can't tell of a change is asked so often."""
_unnamed = itertools.count()
WAIT_SLICE_S = 5.0
"""One that can is asked to wait for so long, since its thread can't be interrupted."""


class Met(Struct, frozen=True):
    """What a handler has agreed on; `bootstrap`: its own store for the workers, if it has one."""

    store: Any
    rank: int
    size: int
    bootstrap: tuple[str, int] | None = None


class Change(Enum):
    """What a handler says of the round."""

    NONE = auto()
    OVER = auto()
    CLOSED = auto()


async def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, which may block for ever; see `run_in_thread`."""
    return await run_in_thread(call, "rallypoint-handler")


def own_name() -> str:
    """For a node that nobody named; a program may run several."""
    host = socket.gethostname().partition(".")[0] or "node"
    number = next(_unnamed)
    return f"{host}.{os.getpid()}.{number}" if number else f"{host}.{os.getpid()}"


class HandlerCalls:
    """One handler, and the store of its newest round."""

    def __init__(self, handler: Any, name: str) -> None:
        self._handler, self.name = handler, name
        self.store: Any = None
        """Of the newest round."""
        self._using, self._has_left = threading.Lock(), False

    @classmethod
    async def make(cls, rendezvous: RendezvousConfig) -> HandlerCalls:
        """The handler of `rendezvous.handler`.

        Raises ParameterError for what it does not take, RendezvousPlugInError, and others of ours.
        """
        name, conf = rendezvous.handler, dict(rendezvous.handler_conf)
        if name == "file":  # others need not know of it
            conf.setdefault("node_id", rendezvous.node_id or own_name())
        params = RendezvousParameters(
            name,
            rendezvous.handler_endpoint,
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
                f"the handler of the rendezvous backend {name!r} could not be made: "
                f"{type(error).__name__}: {error}"
            ) from error

    async def meet(self) -> Met:
        """`next_rendezvous`. Raises what that raises, RendezvousPlugInError for no such tuple."""
        return await in_thread(self._meet)

    def _meet(self) -> Met:
        info = self._handler.next_rendezvous()
        try:
            # Torch's own has these names; the oldest handlers return a plain tuple.
            named = hasattr(info, "bootstrap_store_info")
            store, rank, size = (info.store, info.rank, info.world_size) if named else info
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
            return Met(store, rank, size)
        return Met(store, rank, size, (own.master_addr, own.master_port))

    async def look(self) -> Change:
        """What the handler says now."""
        return await in_thread(self._look)

    async def wait_change(self) -> Change:
        """What it says when something may have changed, or after some seconds."""
        if not hasattr(self._handler, "wait_for_change"):
            await asyncio.sleep(POLL_S)
            return await self.look()
        await in_thread(lambda: self._handler.wait_for_change(WAIT_SLICE_S))
        return await self.look()

    def _look(self) -> Change:
        """Not after the farewell: a handler may begin anew when it is asked then."""
        with self._using:
            return Change.NONE if self._has_left else self._look_now()

    def _look_now(self) -> Change:
        if self._handler.is_closed():
            return Change.CLOSED
        return Change.OVER if self._handler.num_nodes_waiting() > 0 else Change.NONE

    @property
    def settings(self) -> Any:
        """What the handler was made with, or None if it does not tell."""
        return getattr(self._handler, "settings", None)

    @property
    def run_id(self) -> str:
        """The job's, or nothing if the handler does not know."""
        ask = getattr(self._handler, "get_run_id", None)
        return str(ask()) if ask is not None else ""

    @property
    def node_id(self) -> str:
        """How the handler names this node to others, if it tells."""
        return str(getattr(self._handler, "node_id", "") or "")

    @property
    def end_reason(self) -> EndReason:
        """Why the last round ended, as far as the handler tells."""
        known = getattr(self._handler, "end_reason", None)
        if isinstance(known, EndReason):
            return known
        return EndReason(EndKind.GROWTH, str(getattr(self._handler, "why_over", "") or _MEET_AGAIN))

    async def set_closed(self) -> None:
        """End the job for everybody."""
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

    # The store of a round

    async def has(self, store: Any, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return bool(await in_thread(lambda: store.check(list(keys))))

    async def put(self, store: Any, key: str, value: bytes) -> None:
        """One set."""
        await in_thread(lambda: store.set(key, value))

    async def get_all(self, store: Any, keys: Sequence[str]) -> list[bytes]:
        """The values of keys that are there; one request where the store can."""

        def read() -> list[bytes]:
            if hasattr(store, "multi_get"):
                return list(store.multi_get(list(keys)))
            return [store.get(key) for key in keys]

        return await in_thread(read)

    async def claim(self, store: Any, verdict: Verdict) -> Verdict:
        """Leaves the verdict for the other nodes; the first counts, and is returned."""

        def swap() -> Verdict:
            written = handler_round.encode(verdict)
            key = handler_round.VERDICT_KEY
            return handler_round.decode_verdict(store.compare_set(key, b"", written)) or verdict

        return await in_thread(swap)

    async def verdict(self, store: Any) -> Verdict | None:
        """What another node has left."""
        if not await self.has(store, [handler_round.VERDICT_KEY]):
            return None
        value = (await self.get_all(store, [handler_round.VERDICT_KEY]))[0]
        return handler_round.decode_verdict(value)
