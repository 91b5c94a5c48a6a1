"""Addresses, in numbers only, and how a person writes an endpoint.

Using one never asks a name server.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from rallypoint.core.limits import MAX_PORT, is_host
from rallypoint.core.text import shown
from rallypoint.files import is_unset_variable

ANY_PORT = "port 0 is any free port, which other nodes can't know: give one, 1 to 65535"
"""The error line about port 0 for several nodes; a job of one node may have it."""
_MAX_DIGITS = 18
"""The most digits of a port; Python refuses to parse very long numbers."""


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
        """The address in the form of socket calls of its family."""
        if self.is_ipv6:
            return (self.host, self.port, 0, self.scope_id)
        return (self.host, self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"


def split_endpoint(text: str, default_port: int) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an endpoint.

    `HOST`, `HOST:PORT`, `[V6]:PORT`, or an IPv6 address alone. Port 0 is read: whether any port
    will do is for the caller to know.

    Raises ValueError, whose text says what is needed.
    """
    text = text.strip()
    if "://" in text or "," in text:
        raise ValueError("needs one HOST:PORT, without a scheme")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("needs [ADDRESS]:PORT")
    elif text.count(":") > 1:
        head, _, tail = text.rpartition(":")
        if tail.isdigit() and len(tail) == 5:  # no part of an address has five digits
            raise ValueError(f"an IPv6 address with a port needs brackets: [{head}]:{tail}")
        if not _is_ipv6(text):
            raise ValueError("is not an IPv6 address; one with a port is written [ADDRESS]:PORT")
        host, rest = text, ""
    else:
        host, colon, digits = text.partition(":")
        rest = colon + digits
    if rest and not is_port(rest[1:]):
        raise ValueError(_not_a_port(rest[1:], 1))  # 0 would be read, but is for one node alone
    return checked_host(host), int(rest[1:]) if rest else default_port


def told_address(text: str) -> Address:
    """Parse an address that another node has sent. Raises ValueError."""
    host, port = split_endpoint(text, 0)
    if not port:
        raise ValueError(_not_a_port("", 1))
    return Address(host, port)


def told_addresses(texts: Iterable[str]) -> list[Address]:
    """Parse several addresses, and leave out invalid ones."""
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(told_address(text))
    return found


def checked_host(host: str) -> str:
    """Return a name or an address, without brackets around IPv6. Raises ValueError.

    Looks nothing up.
    """
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not is_host(host) or (":" in host and not _is_ipv6(host)):
        hint = ", without a port" if ":" in host else ""
        hint = ": the variable was not expanded by a shell" if is_unset_variable(host) else hint
        raise ValueError(f"needs a host name or an address{hint}")
    return host


def read_port(text: str, least: int = 0) -> int:
    """Return a port in plain digits. Raises ValueError."""
    if not is_port(text, least):
        raise ValueError(_not_a_port(text, least))
    return int(text)


def _not_a_port(text: str, least: int) -> str:
    said = f"{shown(text)} is not a valid port" if text else "the port is missing"
    return f"{said} ({least}..{MAX_PORT})"


def is_port(text: str, least: int = 0) -> bool:
    """Return whether a number in plain digits, in the range of ports."""
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return plain and least <= int(text) <= MAX_PORT


def _is_ipv6(text: str) -> bool:
    from ipaddress import IPv6Address

    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
