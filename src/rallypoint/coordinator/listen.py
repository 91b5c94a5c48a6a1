"""Listening sockets. The node that can bind the endpoint hosts (behaviour F6).

No host name is compared with another: the kernel knows best which addresses are this machine's.
Only local addresses that the endpoint resolved to are bound, never a wildcard unless a person
said that this node hosts and the address is not local (behind NAT, or a Kubernetes service).

Afterwards the caller dials the endpoint and must get its own server id; else it closes these
sockets and is a client. Nothing here asks a name server.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Sequence
from enum import Enum, auto

from msgspec import Struct

from rallypoint.core.text import named
from rallypoint.errors import InfrastructureError, UsageError
from rallypoint.wire.address import Address

_FALLBACK_BACKLOG = 4096
_OPEN_FILES_CAP = 1 << 20
_TRIES_FOR_A_COMMON_PORT = 16
_LEAST_ROOM = 8
KEEPALIVE_S = 60
"""The silence in seconds after which a connection is probed, and the time between two probes. After
nine probes without an answer (Linux's default) it ends."""
OWN_FILES = 64
"""The number of descriptors that a process with a coordinator may need besides connections: files,
pipes, and connections that are being closed."""


class ListenRefusal(Enum):
    """The reason why this node can't host."""

    NOT_MINE = auto()  # no address is local: another machine hosts
    IN_USE = auto()  # a process of this machine hosts already


class BindRefused(Struct, frozen=True):
    """The result if no address was bound: the reason why this node can't host there.

    `why` is the reason in half a line, for display.
    """

    refusal: ListenRefusal
    why: str


def try_bind(addresses: Sequence[Address], port: int) -> list[socket.socket] | BindRefused:
    """Listen on those of `addresses` that are local, all on `port`, whatever their own ports are.

    The caller closes the sockets. Port 0 lets the system choose one port for all. The sockets do
    not block. Safe to retry. Returns `BindRefused` when no address is local, or the port is in use.

    Raises UsageError when the port is not allowed to this user, or a link-local address lacks its
    interface. Raises InfrastructureError for other failures.
    """
    tries = 1 if port else _TRIES_FOR_A_COMMON_PORT
    while True:
        tries -= 1
        bound = _bind_all(addresses, port)
        if isinstance(bound, list) or bound.refusal is ListenRefusal.NOT_MINE or not tries:
            return bound


def bind_wildcard(port: int) -> list[socket.socket] | BindRefused:
    """Listen on every address of this machine, IPv4 and (where it has it) IPv6.

    Returns and raises as `try_bind` does.
    """
    return try_bind((Address("0.0.0.0", port), Address("::", port)), port)


def refuse_loopback_name(host: str, addresses: Sequence[Address], max_nodes: int) -> None:
    """Raise UsageError for a name that resolves to loopback on this machine.

    With such a name every node would be its own coordinator. Debian writes such a line (127.0.1.1)
    to /etc/hosts. A literal address or `localhost` is taken as written, and a job of one node can't
    be split: these pass.
    """
    literal = any(address.host == host for address in addresses)
    if max_nodes < 2 or literal or host == "localhost" or host.endswith(".localhost"):
        return
    for address in addresses:
        if address.is_loopback:
            raise UsageError(
                f"{named.rdzv_endpoint} {host!r} is {address.host} here, which other nodes can't "
                f"reach: remove {host} from the {address.host} line of /etc/hosts, or use this "
                "node's IP address"
            )


def raise_open_files_limit() -> int:
    """Allow as many open files as the hard limit permits (at most 2^20); return the soft limit.

    Children inherit the limit: code that starts workers restores theirs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_CAP if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_CAP)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def connection_room(reserved: int) -> int:
    """Return how many more connections the limit of open files permits; at least 8.

    The descriptors that are open now, and `reserved` more, are subtracted from the limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES_CAP if soft == resource.RLIM_INFINITY else min(soft, _OPEN_FILES_CAP)
    try:
        is_open = len(os.listdir("/proc/self/fd"))
    except OSError:
        is_open = 0
    return max(_LEAST_ROOM, limit - is_open - reserved)


def listen_backlog() -> int:
    """Return the longest queue of unaccepted connections that the kernel allows.

    4096 if unknown.
    """
    try:
        with open("/proc/sys/net/core/somaxconn", "rb") as setting:
            return int(setting.read())
    except (OSError, ValueError):
        return _FALLBACK_BACKLOG


def _bind_all(addresses: Sequence[Address], port: int) -> list[socket.socket] | BindRefused:
    sockets: list[socket.socket] = []
    backlog = listen_backlog()
    for address in addresses:
        try:
            sockets.append(_listen(address, port, backlog))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # another address of the endpoint may still be this machine's
            for opened in sockets:
                opened.close()
            if error.errno == errno.EADDRINUSE:
                return BindRefused(
                    ListenRefusal.IN_USE, f"{_text(address, port)} is in use already"
                )
            raise _explained(address, port, error) from error
        if port == 0:
            port = sockets[0].getsockname()[1]
    if sockets:
        return sockets
    where = ", ".join(address.host for address in addresses)
    return BindRefused(ListenRefusal.NOT_MINE, f"{where} is not an address of this machine")


def _listen(address: Address, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if address.is_ipv6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # A coordinator that restarts must not wait for old connections to time out. Two listeners
        # still exclude each other: the later one fails, at the latest in listen().
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it, and asyncio only sets it on sockets that were made with
        # an explicit protocol. Without it a push that follows a push waits 40 ms for Nagle.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Who asks about a job and is suspended or cut off takes a place until that is noticed.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
        if address.is_ipv6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(Address(address.host, port, address.scope_id).sockaddr)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def _explained(address: Address, port: int, error: OSError) -> UsageError | InfrastructureError:
    where = _text(address, port)
    if error.errno == errno.EACCES:
        return UsageError(
            f"can't listen on {where}: this user may not use port {port}; choose a port above "
            f"1023, like {named.rdzv_endpoint} HOST:29400"
        )
    if error.errno == errno.EINVAL and address.is_ipv6:
        return UsageError(
            f"can't listen on {where}: a link-local address needs its interface, like "
            f"[{address.host}%eth0]:{port}"
        )
    return InfrastructureError(f"can't listen on {where}: {error.strerror}")


def _text(address: Address, port: int) -> str:
    return str(Address(address.host, port))
