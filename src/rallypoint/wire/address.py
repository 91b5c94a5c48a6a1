"""Addresses, and how a person writes an endpoint.

Nothing here asks a name server.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from rallypoint.core.limits import MAX_PORT, is_host
from rallypoint.core.text import shown
from rallypoint.files import is_unset_variable

ANY_PORT = "port 0 is any free port, which other nodes can't know: give one, 1 to 65535"
"""The error message for port 0 in the endpoint of a job of several nodes. For one node, port 0 is
valid."""
_MAX_DIGITS = 18
"""The most digits of a text that is read as a port; Python refuses to parse very long numbers."""


class Address(Struct, frozen=True):
    """A host and a port: the host is a numeric IPv4 or IPv6 address, or a host name.

    `scope_id` is that of a link-local IPv6 address, else 0.
    """

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
        """The address as the tuple that socket calls of its family take."""
        if self.is_ipv6:
            return (self.host, self.port, 0, self.scope_id)
        return (self.host, self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"


def split_endpoint(text: str, default_port: int) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an endpoint.

    The text is `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`, or an IPv6 address alone; without a port,
    the result has `default_port`. Port 0 is accepted: the caller decides whether any port will do.

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
    """Parse an address, with its port, that another node has sent. Raises ValueError."""
    host, port = split_endpoint(text, 0)
    if not port:
        raise ValueError(_not_a_port("", 1))
    return Address(host, port)


def told_addresses(texts: Iterable[str]) -> list[Address]:
    """Parse several addresses that another node has sent, and leave out invalid ones."""
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(told_address(text))
    return found


def checked_host(host: str) -> str:
    """Return the host name or the address, without brackets around IPv6.

    Raises ValueError if the text is neither. Asks no name server.
    """
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not is_host(host) or (":" in host and not _is_ipv6(host)):
        hint = ", without a port" if ":" in host else ""
        hint = ": the variable was not expanded by a shell" if is_unset_variable(host) else hint
        raise ValueError(f"needs a host name or an address{hint}")
    return host


def read_port(text: str, least: int = 0) -> int:
    """Return the port that the text gives in plain ASCII digits.

    Raises ValueError if it is not one from `least` to 65535.
    """
    if not is_port(text, least):
        raise ValueError(_not_a_port(text, least))
    return int(text)


def _not_a_port(text: str, least: int) -> str:
    said = f"{shown(text)} is not a valid port" if text else "the port is missing"
    return f"{said} ({least}..{MAX_PORT})"


def is_port(text: str, least: int = 0) -> bool:
    """Return whether the text is a port in plain ASCII digits, from `least` to 65535."""
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return plain and least <= int(text) <= MAX_PORT


def _is_ipv6(text: str) -> bool:
    from ipaddress import IPv6Address

    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
