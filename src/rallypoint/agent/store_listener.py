"""Where the round store of this node listens."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from rallypoint.config import Endpoint
from rallypoint.coordinator.listen import BindRefused, Refusal, try_bind
from rallypoint.errors import InfrastructureError, UsageError
from rallypoint.rendezvous.endpoint import NotYet, meant_addresses, resolve
from rallypoint.wire.address import Address


async def listen_for_peers(local_addr: str, session_host: str, port: int) -> socket.socket:
    """A listening socket on the address that peers are told, `local_addr`, which may be of another
    network than the session's; on `session_host`, where this node's session comes from, when none
    was given or when it is not this node's own (NAT). `port` 0: the system chooses one.

    Raises UsageError when the port can't be had, InfrastructureError when there is none left.
    """
    addresses = [Address(session_host, 0)]
    if local_addr:
        found = await resolve(Endpoint(local_addr, 0))
        known = () if isinstance(found, NotYet) else found.addresses
        addresses = [*meant_addresses(local_addr, known, session_host), *addresses]
    return listen_on(addresses, port)


def listen_on(addresses: Sequence[Address], port: int) -> socket.socket:
    """A listening socket on the first of these that is this node's own. Raises as above."""
    why = ""
    for address in addresses:
        bound = try_bind((address,), port)
        if not isinstance(bound, BindRefused):
            return bound[0]
        why = bound.why
        if bound.refusal is Refusal.IN_USE:
            break
    if port:
        raise UsageError(f"--master-port {port}: {why}: choose another")
    raise InfrastructureError(f"no port for the round store: {why}")
