"""The store of one round on the node of rank 0: its listener, bound before the node joins.

Every node listens on a fresh port before each round and says so when it joins. So the port that
the workers get is one that is theirs already, nobody waits for an address, and no key of an older
round can be in it.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from rallypoint.config import Endpoint
from rallypoint.errors import InfrastructureError
from rallypoint.rendezvous.endpoint import NotYet, resolve
from rallypoint.store.tcp_store import TCPStore


class RoundListener:
    """A bound socket; `serve` makes a store of it, `close` ends both."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self._listener = listener
        self._store: TCPStore | None = None
        self.address = address
        self.port = int(listener.getsockname()[1])

    @classmethod
    async def bind(cls, address: str) -> RoundListener:
        """Listen on `address`, which is this machine's, and on any free port.

        An address by which others reach this machine though it is not its own (behind NAT) is
        answered on every interface. Raises InfrastructureError.
        """
        found = await resolve(Endpoint(address, 0))
        hosts = [] if isinstance(found, NotYet) else [a.host for a in found.addresses]
        for host in (*hosts, "0.0.0.0"):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                listener = socket.create_server(
                    (host, 0), family=family, backlog=socket.SOMAXCONN, reuse_port=False
                )
            except OSError:
                continue
            return cls(listener, address)
        raise InfrastructureError(f"no port for the round's store on {address}")

    def serve(self, timeout: timedelta) -> None:
        """This node is rank 0: start the store."""
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
        """A client of the store that is served here."""
        return self._store

    def close(self) -> None:
        """Nothing listens any more. May be called again."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._listener.close()
