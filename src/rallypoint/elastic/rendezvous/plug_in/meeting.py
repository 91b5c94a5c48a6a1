"""How the nodes of a handler's round find its coordinator: the node of rank 0 listens for it, and
says where in the round's store. For the thread of the loop."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.config import RendezvousConfig
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.own_addresses import addresses_of, bind_for_leader, own_addresses
from rallypoint.core.text import named
from rallypoint.elastic.rendezvous.plug_in import exchange
from rallypoint.elastic.rendezvous.plug_in.client import AgreedRound, HandlerClient
from rallypoint.elastic.rendezvous.plug_in.exchange import NodeInfo
from rallypoint.elastic.rendezvous.plug_in.part import HandlerChange
from rallypoint.errors import (
    ForeignPeerError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousRefusedError,
    RendezvousTimeoutError,
)
from rallypoint.wire.address import Address, told_addresses

FIRST_POLL_S = 0.01
POLL_GROWTH = 1.5
LONGEST_POLL_S = 0.25
"""Between two looks at the store of a round, or two attempts to reach its coordinator."""
LOOK_S = 1.0
"""Meanwhile the handler is asked so often whether the round still is."""
SECRET_BYTES = 32


class HandlerRound(Struct, frozen=True):
    """A round whose nodes have told each other what they know."""

    agreed: AgreedRound
    infos: list[NodeInfo]
    """By rank."""
    listeners: list[socket.socket]
    """On the node of rank 0: for its coordinator."""

    @property
    def first(self) -> NodeInfo:
        """The node of rank 0."""
        return self.infos[0]

    @property
    def addresses(self) -> list[Address]:
        """Where its coordinator is."""
        return told_addresses(self.first.addresses)


class _Over(Exception):
    """The round ended before it had begun."""


class Meetings:
    """How this node gets into rounds."""

    def __init__(self, client: HandlerClient, config: RendezvousConfig) -> None:
        self.client, self._config = client, config

    async def next_round(self, info: NodeInfo) -> HandlerRound:
        """Join the next round, and exchange infos with its other nodes.

        Raises RendezvousTimeoutError when a node of the round gives no info, RendezvousClosedError,
        RendezvousStateError for a node of another version, UsageError for an address of no use.
        """
        while True:
            agreed = await self.client.next_round()
            listeners = [] if agreed.rank else self._listen()
            try:
                infos = await self._exchange(agreed, self._of_rank(agreed, info, listeners))
                return HandlerRound(agreed, infos, listeners)
            except BaseException as error:
                for listener in listeners:
                    listener.close()
                if not isinstance(error, _Over):
                    raise

    async def reach(self, round_: HandlerRound) -> ClientConnection | None:
        """The coordinator of this round. None: the node that was to host it is gone, or the round
        is over.

        Raises RendezvousConnectionError, RendezvousClosedError, AccessError or ProtocolError.
        """
        loop, config = asyncio.get_running_loop(), self._config
        deadline, pause_s = loop.time() + config.enrol_timeout_s, FIRST_POLL_S
        once = partial(dial, round_.addresses, config.run_id, round_.first.secret)
        while True:
            try:
                return await once()
            except (RendezvousRefusedError, ForeignPeerError):
                return None
            except RendezvousConnectionError as error:
                if loop.time() > deadline:
                    raise RendezvousConnectionError(
                        f"{error}: the coordinator of this round is on node "
                        f"{round_.first.node_id}: open that port there, or give the node an "
                        f"address that the others reach with {named.local_addr}"
                    ) from error
            with suppress(_Over):
                await self._check_round()
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * POLL_GROWTH, LONGEST_POLL_S)
                continue
            return None

    def _listen(self) -> list[socket.socket]:
        """On all addresses of this machine that may lead here. May block for a name."""
        given = self._config.local_addr
        if given is not None:
            addresses = addresses_of(given)
        elif self._config.max_nodes == 1:
            addresses = (Address("127.0.0.1", 0),)
        else:
            addresses = own_addresses()
        return bind_for_leader(addresses, (0, 0), f"{named.local_addr} {given}")

    def _of_rank(
        self, agreed: AgreedRound, info: NodeInfo, listeners: list[socket.socket]
    ) -> NodeInfo:
        """Rank 0 says where the coordinator is, and whether there is a store of the handler's."""
        if not listeners:
            return info
        addresses = [Address(*listener.getsockname()[:2]) for listener in listeners]
        own = self._config.store
        return replace(
            info,
            addresses=tuple(map(str, addresses)),
            secret=os.urandom(SECRET_BYTES),
            has_store=agreed.bootstrap is not None and not (own.host or own.port),
        )

    async def _exchange(self, agreed: AgreedRound, info: NodeInfo) -> list[NodeInfo]:
        """One set and one read for each node."""
        if agreed.size == 1:
            return [info]
        limit_s = self._config.join_timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._exchange_infos(agreed, info)
        except TimeoutError:
            if not limit.expired():
                raise  # The store's own.
            raise RendezvousTimeoutError(
                f"waited {limit_s:g} s for all {agreed.size} nodes of the round to publish their "
                "node info in its store"
            ) from None

    async def _exchange_infos(self, agreed: AgreedRound, info: NodeInfo) -> list[NodeInfo]:
        keys = [exchange.node_key(rank) for rank in range(agreed.size)]
        await agreed.put(keys[agreed.rank], exchange.encode(info))
        loop = asyncio.get_running_loop()
        pause_s, look_at = FIRST_POLL_S, loop.time() + LOOK_S
        while not await agreed.has(*keys):
            if loop.time() > look_at:
                await self._check_round()
                look_at = loop.time() + LOOK_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * POLL_GROWTH, LONGEST_POLL_S)
        values = await agreed.read(*keys)
        return [exchange.decode(value, rank) for rank, value in enumerate(values)]

    async def _check_round(self) -> None:
        change = await self.client.look()
        if change is HandlerChange.CLOSED:
            raise RendezvousClosedError("the job was closed during the rendezvous")
        if change is HandlerChange.OVER:
            raise _Over
