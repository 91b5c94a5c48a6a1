"""A resolved place on the network: numbers only, so that using one never asks a name server."""

from __future__ import annotations

from msgspec import Struct


class Address(Struct, frozen=True):
    """A numeric IPv4 or IPv6 address and a port. `scope_id` is of a link-local IPv6 address."""

    host: str
    port: int
    scope_id: int = 0

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    @property
    def is_loopback(self) -> bool:
        return self.host.startswith(("127.", "::ffff:127.")) or self.host == "::1"

    @property
    def sockaddr(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """What the socket calls of this address's family take."""
        if self.is_ipv6:
            return (self.host, self.port, 0, self.scope_id)
        return (self.host, self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"
