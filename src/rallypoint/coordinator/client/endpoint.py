"""Endpoints: from a host and port, as a person wrote them, to addresses to dial or bind.

A name that does not resolve is, in a cluster, mostly a name that does not resolve *yet*: the pod
or the machine that it means is still starting. That is data (`NotYet`), for a caller that retries
until its own timeout. A name that never can resolve is a `UsageError` at once.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from rallypoint.config import Endpoint
from rallypoint.errors import UsageError
from rallypoint.threads import run_in_thread
from rallypoint.wire.address import Address

_Found = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""One result of getaddrinfo: family, kind, protocol, canonical name, address."""

_MAY_RESOLVE_LATER = {
    socket.EAI_AGAIN,
    socket.EAI_NONAME,
    socket.EAI_NODATA,
    socket.EAI_FAIL,
    socket.EAI_SYSTEM,
    socket.EAI_MEMORY,
}


class Resolved(Struct, frozen=True):
    """The addresses of a name, at least one, in the resolver's order, without duplicates."""

    addresses: tuple[Address, ...]


class NotYet(Struct, frozen=True):
    """The result of a failed lookup that is worth a retry; `reason` is half a line for display."""

    reason: str


def numeric_address(endpoint: Endpoint) -> Address | None:
    """Return the numeric address of `endpoint`, or None for a name. No name server is asked."""
    try:
        found = socket.getaddrinfo(
            _plain(endpoint.host),
            endpoint.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_NUMERICHOST,
        )
    except (OSError, UnicodeError):
        return None
    return _addresses(found)[0]


async def resolve(endpoint: Endpoint) -> Resolved | NotYet:
    """Look `endpoint` up once, without blocking the loop; safe to retry.

    A name is looked up in a thread that has ended when this returns, because the caller forks.
    Only if this is cancelled may the thread live on, until the system's resolver gives up.

    Raises UsageError for a name that can never resolve, InfrastructureError when the system has no
    thread left.
    """
    numeric = numeric_address(endpoint)
    if numeric is not None:
        return Resolved((numeric,))
    found = await run_in_thread(partial(_look_up, endpoint), "rallypoint-resolve")
    if isinstance(found, UsageError):
        raise found
    return found


def meant_addresses(host: str, addresses: Sequence[Address], session_host: str) -> list[Address]:
    """Return the addresses of this node's own `host` by which peers may reach it.

    `session_host` is this node's address in its session with the coordinator, or empty. A name may
    be loopback on its own machine alone (127.0.1.1 of Debian): unless `session_host` is loopback,
    too, such an address is left out. A literal address and `localhost` are used as written.
    """
    as_written = host == "localhost" or host.endswith(".localhost")
    if as_written or Address(session_host, 0).is_loopback:
        return list(addresses)
    return [address for address in addresses if address.host == host or not address.is_loopback]


def _look_up(endpoint: Endpoint) -> Resolved | NotYet | UsageError:
    name = endpoint.host
    try:
        found = socket.getaddrinfo(_plain(name), endpoint.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _MAY_RESOLVE_LATER:
            return NotYet(f"{name!r} does not resolve yet ({error.strerror})")
        return UsageError(f"{name!r} can't be resolved to an IP address: {error.strerror}")
    except OSError as error:
        return NotYet(f"{name!r} does not resolve yet ({error.strerror})")
    except UnicodeError:
        return UsageError(f"{name!r} is not a host name: check its spelling")
    return Resolved(_addresses(found))


def _plain(name: str) -> str | bytes:
    """Return an ASCII name as bytes, so that Python's codec for other names is not loaded."""
    return name.encode() if name.isascii() else name


def _addresses(found: Sequence[_Found]) -> tuple[Address, ...]:
    unique: dict[Address, None] = {}
    for family, _, _, _, sockaddr in found:
        host, port = str(sockaddr[0]), int(sockaddr[1])
        scope_id = int(sockaddr[3]) if family == socket.AF_INET6 and len(sockaddr) == 4 else 0
        # A scope is also appended to the text by some resolvers: keep it in one place.
        unique[Address(host.partition("%")[0], port, scope_id)] = None
    return tuple(unique)
