"""The listener of a round's store on the node of rank 0.

Every node listens on a fresh port before each round and reports the port when it joins. So no other
program can take the port that the workers get, no node waits for an address, and the store has no
key of an older round. The module also has the check by which another node finds out whether it can
reach the store.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rallypoint.config import Endpoint
from rallypoint.coordinator.client.endpoint import NotYet, meant_addresses, resolve
from rallypoint.core.model import Assignment
from rallypoint.elastic.stores.c10d_client import handshake
from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.errors import EnrolmentError, InfrastructureError, RendezvousTimeoutError
from rallypoint.wire.address import Address

RETRY_S = 0.2


class RoundListener:
    """A listening socket for the store of a round; `serve` starts the store, `close` ends both."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self._listener = listener
        self._store: TCPStore | None = None
        self.address = address
        self.port = int(listener.getsockname()[1])

    @classmethod
    async def bind(cls, address: str, session_host: str = "127.0.0.1") -> RoundListener:
        """Listen on `address` of this machine, on any free port. Raises InfrastructureError.

        If the machine is reached by an address that is not its own (behind NAT), the listener
        accepts connections on every interface. `session_host` is its address on the connection to
        the coordinator; unless that is loopback, no loopback address of a name is used.
        """
        found = await resolve(Endpoint(address, 0))
        known = () if isinstance(found, NotYet) else found.addresses
        hosts = [a.host for a in meant_addresses(address, known, session_host)]
        both = ["::"] if socket.has_dualstack_ipv6() else []
        for host in (*hosts, *both, "0.0.0.0"):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                listener = socket.create_server(
                    (host, 0), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=host == "::"
                )
            except OSError:
                continue
            return cls(listener, address)
        raise InfrastructureError(f"no port for the round's store on {address}")

    def serve(self, timeout: timedelta) -> None:
        """Start the round's store on this socket, on the node of rank 0."""
        self._store = TCPStore(
            self.address,
            self.port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            listen_socket=self._listener,
        )

    @property
    def store(self) -> TCPStore | None:
        """The store that this listener serves, for use here; None unless it serves one."""
        return self._store

    def close(self) -> None:
        """Close the socket and the store. May be called again."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._listener.close()


async def listen_here(local_addr: str | None, store: Any, timeout_s: float) -> RoundListener:
    """Return a new listener on this node, at `local_addr`.

    None: at the address from which this machine reaches `store`, else at its host name. Raises
    RendezvousTimeoutError if that is not found within `timeout_s` seconds, OSError if the name of
    the store's host is unknown, and InfrastructureError.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await RoundListener.bind(local_addr or await _local_address(store))
    except TimeoutError:
        raise RendezvousTimeoutError(
            f"this machine's address was not found within {timeout_s:g} s, since no name server "
            "answers: give the node's address as local_addr"
        ) from None


async def _local_address(store: Any) -> str:
    """Return the address of this machine that the store's connection comes from, else its name."""
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    loop = asyncio.get_running_loop()
    if isinstance(host, str) and isinstance(port, int):
        return await loop.run_in_executor(None, _source_address, host, port)
    return socket.getfqdn()


def _source_address(host: str, port: int) -> str:
    """Return the address from which the kernel would send to `host`, else this machine's name.

    Sends nothing to `host`. Blocks while its name is looked up; raises OSError if it is unknown.
    """
    for family, kind, proto, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, proto) as probe:
            try:
                probe.connect(address)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return socket.getfqdn()


async def reach_round_store(assignment: Assignment, timeout_s: float) -> None:
    """Test whether rank 0's store answers, so that a bad route shows before any worker starts.

    Each address of its host is tried once, within `timeout_s` seconds in all. Raises
    EnrolmentError if none answers.
    """
    endpoint = Endpoint(assignment.master_addr, assignment.master_port)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while isinstance(found := await resolve(endpoint), NotYet):
        if loop.time() > deadline:
            raise EnrolmentError(f"the round store's address {endpoint}: {found.reason}")
        await asyncio.sleep(RETRY_S)
    try:
        left_s = max(RETRY_S, deadline - loop.time())
        await _have_answer_of_any(found.addresses, left_s)
    except OSError as error:
        raise EnrolmentError(
            f"this node could not reach the round store at {endpoint} within {timeout_s:g} s: "
            f"{error.strerror or 'no answer'}. Open the port in the firewall, or give the "
            "store's node an address that the others reach (local_addr, or `--local-addr` on a "
            "command line)"
        ) from error


async def _have_answer_of_any(addresses: Sequence[Address], limit_s: float) -> None:
    """Try each of these addresses once, until one answers. Raises OSError if none does.

    `limit_s` is the time limit for all of them together, in seconds.
    """
    failure: OSError | None = None
    for address in addresses:
        try:
            async with asyncio.timeout(limit_s / len(addresses)):
                return await _have_answer(address)
        except OSError as error:  # TimeoutError is one
            failure = error
    assert failure is not None
    raise failure


async def _have_answer(address: Address) -> None:
    """Connect to the store at the address, greet it, and wait for the answer. Raises OSError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if address.is_ipv6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        await loop.sock_connect(probe, address.sockaddr)
        await loop.sock_sendall(probe, handshake(0))
        if not await loop.sock_recv(probe, 4):
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
