"""What the nodes that met by a handler do through their round's store: cards, and the farewell."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from rallypoint.agent.handler_calls import Change, HandlerCalls, Met
from rallypoint.config import Endpoint, RendezvousConfig
from rallypoint.core import handler_round as rounds
from rallypoint.core.handler_round import NodeCard
from rallypoint.core.model import EndReason
from rallypoint.errors import RendezvousClosedError, RendezvousTimeoutError, UsageError
from rallypoint.rendezvous.endpoint import NotYet, resolve
from rallypoint.store.round_store import RoundStore

FIRST_POLL_S = 0.01
LONGEST_POLL_S = 0.25
REASON_S = 1.0
"""A store that does not answer for so long is asked no more why the round ended."""
LOOK_S = 1.0
"""While cards are missing the handler is asked so often whether the round still is."""


class _Over(Exception):
    """The round ended before it had begun."""


class HandlerMeeting:
    """Of one node; for the thread of the loop."""

    def __init__(
        self,
        calls: HandlerCalls,
        config: RendezvousConfig,
        make_store: Callable[[str], RoundStore],
    ) -> None:
        """`make_store(host)`: the round store of this node, listening at that address."""
        self._calls, self._config, self._make_store = calls, config, make_store
        self._address = ""
        self.store: RoundStore | None = None
        """That of this node, once it was of rank 0 without a store of the handler's."""

    async def meet(self, card: NodeCard) -> tuple[Met, list[NodeCard]]:
        """Meet, and tell the others of this node. Until a round has begun, or the handler raises.

        Raises RendezvousTimeoutError when a node that was met does not tell of itself,
        RendezvousClosedError, RendezvousStateError, UsageError for an address of no use.
        """
        while True:
            met = await self._calls.meet()
            mine = card if met.rank else await self._with_store(met, card)
            try:
                return met, await self._exchange(met, mine)
            except _Over:
                continue

    async def _with_store(self, met: Met, card: NodeCard) -> NodeCard:
        """Rank 0 says where the workers' store is, its own or the handler's."""
        if met.bootstrap is not None:
            return replace(card, address=met.bootstrap[0], port=met.bootstrap[1])
        if self.store is None:
            alone = self._config.max_nodes == 1
            name = self._config.local_addr or ("127.0.0.1" if alone else socket.gethostname())
            found = await resolve(Endpoint(name, 0))
            if isinstance(found, NotYet):
                raise UsageError(f"{found.reason}: give this node's address by --local-addr")
            host = found.addresses[0].host
            self.store, self._address = self._make_store(host), self._config.local_addr or host
        return replace(card, address=self._address, port=self.store.port, secret=os.urandom(32))

    async def _exchange(self, met: Met, card: NodeCard) -> list[NodeCard]:
        """One set and one read for each node."""
        if met.size == 1:
            return [card]
        limit_s = self._config.join_timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._exchange_cards(met, card)
        except TimeoutError:
            if not limit.expired():
                raise  # the store's own
            raise RendezvousTimeoutError(
                f"waited {limit_s:g} s for all {met.size} nodes of the round to tell of "
                "themselves in its store"
            ) from None

    async def _exchange_cards(self, met: Met, card: NodeCard) -> list[NodeCard]:
        keys = [rounds.node_key(rank) for rank in range(met.size)]
        await self._calls.put(met.store, keys[met.rank], rounds.encode(card))
        loop = asyncio.get_running_loop()
        pause_s, look_at = FIRST_POLL_S, loop.time() + LOOK_S
        while not await self._calls.has(met.store, keys):
            if loop.time() > look_at:
                await self._check_round()
                look_at = loop.time() + LOOK_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)
        return [rounds.decode_card(card) for card in await self._calls.get_all(met.store, keys)]

    async def _check_round(self) -> None:
        change = await self._calls.look()
        if change is Change.CLOSED:
            raise RendezvousClosedError("the job was closed while its nodes met")
        if change is Change.OVER:
            raise _Over

    async def are_all_done(self, met: Met) -> bool:
        """Whether every node has said that its workers succeeded.

        A store that can't be asked does not say so.
        """
        keys = [rounds.done_key(rank) for rank in range(met.size)]
        try:
            return await self._calls.has(met.store, keys)
        except Exception:
            return False

    async def leave_reason(self, met: Met, reason: EndReason) -> None:
        """This node ends the round: tell the others why, before the handler tells them that."""
        with suppress(Exception):
            async with asyncio.timeout(REASON_S):
                await self._calls.put(met.store, rounds.END_KEY, rounds.encode(reason))

    async def end_reason(self, met: Met) -> EndReason:
        """Why the round is over: what a node has left, else what the handler knows."""
        with suppress(Exception):
            async with asyncio.timeout(REASON_S):
                if await self._calls.has(met.store, [rounds.END_KEY]):
                    (left,) = await self._calls.get_all(met.store, [rounds.END_KEY])
                    return rounds.decode_reason(left) or self._calls.end_reason
        return self._calls.end_reason

    async def let_others_read(self, met: Met) -> None:
        """The store may live on the node of rank 0: that goes last."""
        if met.rank:
            await self._calls.put(met.store, rounds.left_key(met.rank), b"1")
            return
        left = [rounds.left_key(rank) for rank in range(1, met.size)]
        pause_s = FIRST_POLL_S
        while not await self._calls.has(met.store, left):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)
