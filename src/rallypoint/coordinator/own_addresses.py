"""The addresses of this machine by which other machines may reach it.

And a port on all of them, for a coordinator without a given endpoint. Only a name given for this
machine is looked up.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter

from rallypoint.config import DEFAULT_COORDINATOR_PORT
from rallypoint.coordinator.client.endpoint import meant_addresses
from rallypoint.coordinator.listen import BindRefused, try_bind
from rallypoint.core.text import named
from rallypoint.errors import InfrastructureError, UsageError
from rallypoint.wire.address import Address

_ELSEWHERE = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
"""Two addresses that no machine has (RFC 5737, RFC 3849), so that the default route leads to
them."""
_DISCARD = 9
_SIOCGIFADDR = 0x8915
_IF_INET6 = "/proc/net/if_inet6"
_IPV6_SCOPES = (0x00, 0x40)
"""The scopes of usable IPv6 addresses: global, which includes private ones (fd00::/8), and the
older site scope."""
_IPV6_UNUSABLE = 0x40 | 0x08
"""The flags of an unusable address: tentative, or a duplicate (IFA_F_TENTATIVE,
IFA_F_DADFAILED)."""
_IPV6_PASSING = 0x01 | 0x20
"""The flags of a temporary or a deprecated address (IFA_F_TEMPORARY, IFA_F_DEPRECATED)."""


def own_addresses() -> tuple[Address, ...]:
    """Return the addresses of this machine: those of default routes first, then of interfaces.

    Returns loopback if this machine has no other address. Link-local IPv6 addresses are left out.
    """
    found: dict[str, None] = {}
    for family, elsewhere in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, _DISCARD))  # Sends nothing, but chooses a route.
            found[probe.getsockname()[0]] = None
    found.update(dict.fromkeys(_of_interfaces()))
    addresses = tuple(Address(host, 0) for host in found)
    return tuple(a for a in addresses if not a.is_loopback) or (Address("127.0.0.1", 0),)


def addresses_of(host: str) -> tuple[Address, ...]:
    """Return the addresses of a name or address that a person gave for this machine.

    A name's loopback addresses are left out if it has others. Raises UsageError if the name does
    not resolve. May block for a name.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{named.local_addr} {host!r} can't be resolved: {error}") from error
    unique = dict.fromkeys(str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found)
    known = [Address(each, 0) for each in unique]
    return tuple(meant_addresses(host, known, "")) or tuple(known)


def why_unreachable(addresses: Sequence[Address], local_addr: str | None) -> str:
    """Return why no other machine reaches a leader at these addresses; empty: others may.

    `local_addr` is the value of --local-addr; None: none was given. If it is `localhost` or a
    loopback address itself, that is intended, and the result is empty.
    """
    first = addresses[0].host
    if not all(address.is_loopback for address in addresses):
        return ""
    if local_addr is None:
        return (
            f"no other machine reaches this node, which leads the job: {first} is its only "
            f"address: check its network, or give its address by {named.local_addr}"
        )
    if local_addr == "localhost" or Address(local_addr, 0).is_loopback:
        return ""
    return (
        f"{named.local_addr} {local_addr} is {first} here, where no other machine reaches it: "
        "give this node's IP address"
    )


def ipv6_addresses(table: str) -> list[str]:
    """Return the interfaces' IPv6 addresses by which other machines may reach this one. Pure.

    `table` is the content of /proc/net/if_inet6. Temporary and deprecated addresses come last.
    """
    found: list[tuple[bool, str]] = []
    for line in table.splitlines():
        fields = line.split()
        try:
            scope, flags = int(fields[3], 16), int(fields[4], 16)
            host = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
        except (ValueError, IndexError):
            continue
        if scope in _IPV6_SCOPES and not flags & _IPV6_UNUSABLE:
            found.append((bool(flags & _IPV6_PASSING), host))
    return [host for _, host in sorted(found, key=itemgetter(0))]


def _of_interfaces() -> list[str]:
    from fcntl import ioctl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has no IPv4 address.
                answer = ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    with suppress(OSError), open(_IF_INET6) as table:  # The kernel may have no IPv6.
        found += ipv6_addresses(table.read())
    return found


def listen_as_leader(
    local_addr: str | None, ports: tuple[int, int] = (0, 0), *, is_alone: bool = False
) -> list[socket.socket]:
    """Return listening sockets on the address given for this node, else on all of this machine's.

    `ports` as for `bind_for_leader`. `is_alone`: no other machine has to reach it; then 127.0.0.1
    takes the place of all addresses. May block for a name. Raises as `addresses_of` and
    `bind_for_leader` do.
    """
    if local_addr is not None:
        addresses = addresses_of(local_addr)
    else:
        addresses = (Address("127.0.0.1", 0),) if is_alone else own_addresses()
    return bind_for_leader(addresses, ports, f"{named.local_addr} {local_addr}")


def bind_for_leader(
    addresses: tuple[Address, ...], ports: tuple[int, int], flag: str
) -> list[socket.socket]:
    """Return listening sockets on all of these addresses that are this machine's.

    They share one port of `ports` (the first and the last; (0, 0): 29400 if it is free, else any).
    `flag` is the option that chose the addresses, for error texts.

    Raises UsageError if none of the addresses is this machine's, InfrastructureError if no port is
    free, and either one as `try_bind` does.
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
        f"no port of {first}-{last} is free ({why}): give a larger {named.port_range}"
    )
