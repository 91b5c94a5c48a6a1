"""Parsing of endpoints."""

from __future__ import annotations

from rallypoint.errors import ParameterError
from rallypoint.wire.address import split_endpoint


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Return the host and the port of `HOST`, `HOST:PORT` or `[IPV6]:PORT`.

    Without a port it is `default_port`. An empty text is localhost. Raises ParameterError.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    try:
        return split_endpoint(text, default_port)
    except ValueError as error:
        raise ParameterError(f"the endpoint {text!r}: {error}") from None
