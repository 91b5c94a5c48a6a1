"""What a person writes as the endpoint of a store: `HOST`, `HOST:PORT`, `[IPV6]:PORT`. Pure."""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from rallypoint.errors import ParameterError

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?", re.ASCII)
_MAX_PORT = 65535


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """The host, without brackets, and the port. Nothing at all means localhost.

    Raises ParameterError.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ParameterError(f"the endpoint {text!r}: needs [ADDRESS]:PORT")
        rest = rest[1:] if rest else ""
        has_port = bool(rest) or text.endswith(":")
    elif text.count(":") > 1:
        host, rest, has_port = text, "", False
    else:
        host, colon, rest = text.partition(":")
        has_port = bool(colon)
    _check_host(text, host)
    return host, _port(text, rest) if has_port else default_port


def _check_host(text: str, host: str) -> None:
    if ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            raise ParameterError(
                f"the endpoint {text!r}: {host!r} is no IPv6 address; one with a port is "
                "written [ADDRESS]:PORT"
            ) from None
    elif not _NAME.fullmatch(host):
        raise ParameterError(f"the endpoint {text!r}: {host!r} is no host name or address")


def _port(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit()) or int(digits) > _MAX_PORT:
        raise ParameterError(
            f"the endpoint {text!r}: {digits!r} is no port, it is 0 to {_MAX_PORT}"
        )
    return int(digits)
