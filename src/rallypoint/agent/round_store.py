"""The access of this node to the round store: its own, if it is rank 0, and enrolment."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial

from rallypoint.config import AgentConfig, Endpoint
from rallypoint.coordinator.client.endpoint import NotYet, meant_addresses, resolve
from rallypoint.coordinator.listen import BindRefused, ListenRefusal, try_bind
from rallypoint.core.messages import Prove
from rallypoint.core.model import Assignment, Stamp
from rallypoint.core.text import named
from rallypoint.errors import EnrolmentError, InfrastructureError, UsageError
from rallypoint.store.enrol import LookUp, enrol, reach
from rallypoint.store.round_store import RoundStore
from rallypoint.wire.address import Address
from rallypoint.wire.keys import round_store_key

NO_SECRET = b"rallypoint --insecure"


class StoreAccess:
    """The means to open and close this node's round store, and to enrol with that of rank 0."""

    def __init__(self, config: AgentConfig, on_lost: Callable[[int, str], None]) -> None:
        """Open nothing yet.

        `on_lost` is called from the loop when the store of a round has ended early, with the round
        and the reason.
        """
        self._networks = config.access.store_networks
        """The networks that may use this node's store without enrolling."""
        rendezvous = config.rendezvous
        self._run_id, self._timeout_s = rendezvous.run_id, rendezvous.enrol_timeout_s
        self._secret: bytes | None = None
        self._store: RoundStore | None = None
        self._shared: Endpoint | None = None
        self._on_lost = on_lost

    def use(
        self, secret: bytes | None, store: RoundStore | None, shared: Endpoint | None = None
    ) -> None:
        """Set what is known once a coordinator was found: the secret, and this node's store.

        `shared` is the endpoint, if the store uses the coordinator's port.
        """
        self._secret, self._store, self._shared = secret, store, shared

    def open(self, stamp: Stamp) -> None:
        """Open the store of a round in which this node is rank 0, if this node has a store."""
        if self._store is not None:
            self._store.open(
                stamp.round,
                self._key(stamp),
                open_access=self._secret is None,
                networks=self._networks,
                on_lost=partial(self._on_lost, stamp.round),
            )

    def close(self) -> None:
        """Close the store of a round that has ended. May be called again."""
        if self._store is not None:
            self._store.close()

    async def enrol(self, stamp: Stamp, assignment: Assignment, node_id: str) -> None:
        """Reach the round store of rank 0, and enrol this node there.

        Raises EnrolmentError, which names both addresses, when the time is over.
        """
        port = assignment.master_port
        look_up = self._look_up(assignment.master_addr, port)
        await enrol(look_up, port, self._key(stamp), node_id, self._timeout_s)

    async def reach(self, order: Prove, node_id: str) -> None:
        """Reach the store of a round in which this node has no part, without enrolling.

        Raises EnrolmentError, which names both addresses, when the time is over.
        """
        port = order.master_port
        look_up = self._look_up(order.master_addr, port)
        await reach(look_up, port, node_id, order.limit_s)

    def _look_up(self, host: str, port: int) -> LookUp:
        return partial(_look_up, self._shared or Endpoint(host, port))

    def _key(self, stamp: Stamp) -> bytes:
        secret = self._secret or NO_SECRET
        return round_store_key(secret, self._run_id, stamp.incarnation, stamp.round)


async def _look_up(endpoint: Endpoint) -> list[str]:
    """Return the endpoint's numeric addresses. Raises EnrolmentError if there are none yet."""
    found = await resolve(endpoint)
    if isinstance(found, NotYet):
        raise EnrolmentError(found.reason)
    return [address.host for address in found.addresses]


async def listen_for_peers(local_addr: str, session_host: str, port: int) -> socket.socket:
    """Return a listening socket for the round store, on the address that peers get.

    It is `local_addr`, which may be on another network than the session's. If that was not given or
    is not this node's own (NAT), it is `session_host`, the local address of the session. With
    `port` 0 the system chooses one. Raises UsageError when the port is not available,
    InfrastructureError when no port is free.
    """
    addresses = [Address(session_host, 0)]
    if local_addr:
        found = await resolve(Endpoint(local_addr, 0))
        known = () if isinstance(found, NotYet) else found.addresses
        addresses = [*meant_addresses(local_addr, known, session_host), *addresses]
    return listen_on(addresses, port)


def listen_on(addresses: Sequence[Address], port: int) -> socket.socket:
    """Return a listening socket on the first of the addresses that is this node's own.

    Raises UsageError if the given port can't be had, InfrastructureError if no port is free.
    """
    why = ""
    for address in addresses:
        bound = try_bind((address,), port)
        if not isinstance(bound, BindRefused):
            return bound[0]
        why = bound.why
        if bound.refusal is ListenRefusal.IN_USE:
            break
    if port:
        raise UsageError(f"{named.store_port} {port}: {why}: choose another")
    raise InfrastructureError(f"no port for the round store: {why}")
