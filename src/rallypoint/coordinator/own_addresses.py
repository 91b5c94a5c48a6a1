"""The addresses of this machine by which another one may reach it, and a port on all of them, for a
coordinator that no endpoint names. Nothing here asks a name server."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from rallypoint.config import DEFAULT_COORDINATOR_PORT
from rallypoint.coordinator.listen import BindRefused, try_bind
from rallypoint.errors import InfrastructureError, UsageError
from rallypoint.wire.address import Address

_ELSEWHERE = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
"""Of networks that no machine is in (RFC 5737, RFC 3849): the default route leads to them."""
_DISCARD = 9
_SIOCGIFADDR = 0x8915


def own_addresses() -> tuple[Address, ...]:
    """Those of the default route first, then those of the interfaces (IPv4); loopback if this
    machine has no other."""
    found: dict[str, None] = {}
    for family, elsewhere in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, _DISCARD))  # Sends nothing, but chooses a route.
            found[probe.getsockname()[0]] = None
    found.update(dict.fromkeys(_of_interfaces()))
    addresses = tuple(Address(host, 0) for host in found)
    return tuple(a for a in addresses if not a.is_loopback) or (Address("127.0.0.1", 0),)


def addresses_of(host: str) -> tuple[Address, ...]:
    """Of this machine's own name or address. May block for a name. Raises UsageError."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--local-addr {host!r} can't be resolved: {error}") from error
    unique = dict.fromkeys(str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found)
    return tuple(Address(each, 0) for each in unique)


def _of_interfaces() -> list[str]:
    from fcntl import ioctl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has no IPv4 address.
                answer = ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def bind_for_leader(
    addresses: tuple[Address, ...], ports: tuple[int, int], flag: str
) -> list[socket.socket]:
    """Listening sockets on all of these addresses that are this machine's, on one port of `ports`
    (the first and the last; (0, 0): 29400 if it is free, else any). `flag`: who chose the
    addresses.

    Raises UsageError for addresses that are not this machine's, InfrastructureError if no port is
    free.
    """
    first, last = ports
    wanted = [DEFAULT_COORDINATOR_PORT, 0] if not first else range(first, last + 1)
    why = ""
    for port in wanted:
        bound = try_bind(addresses, port)
        if not isinstance(bound, BindRefused):
            return bound
        why = bound.why
        if bound.refusal.name == "NOT_MINE":
            raise UsageError(f"{flag}: {why}: give an address of this machine")
    raise InfrastructureError(
        f"no port of {first}-{last} is free ({why}): give a larger --port-range"
    )
