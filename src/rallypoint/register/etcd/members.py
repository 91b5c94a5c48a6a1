"""One connection to one member of etcd: a POST of JSON at a time."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rallypoint.core.json_reader import UnreadableJsonError, read_object
from rallypoint.register import http as http_connection
from rallypoint.register.http import HttpConnection, HttpError, HttpRequest, ServerKind
from rallypoint.wire.etcd_config import EtcdConfig

if TYPE_CHECKING:
    from ssl import SSLContext

_KIND = ServerKind("no etcd", "protocol=http", "protocol=https")
_WATCH = "/v3/watch"
_SHOWN = 60
_OWN = "etcdserver: "
"""What etcd does not find, like a lease, it tells with 404, too, and in words that begin so."""
_OF_A_PROXY = (502, 503, 504)
"""When the member behind it is away."""


def tls_context(config: EtcdConfig) -> SSLContext | None:
    """None: without TLS. Raises ParameterError for files that can't be used."""
    if config.protocol != "https":
        return None
    return http_connection.tls_context(config.cacert, config.cert, config.key)


class EtcdMember(HttpConnection):
    """Blocks, for one thread at a time; `abort` from any."""

    def __init__(self, endpoint: str, tls: SSLContext | None) -> None:
        super().__init__(endpoint, tls, _KIND)

    def post(self, path: str, body: Any, token: str, limit_s: float) -> tuple[int, dict[str, Any]]:
        """The HTTP status, and the JSON of the answer. Raises HttpError."""
        answer = self.ask(_request(path, body, token), limit_s)
        return answer.status, self._parsed(answer.status, answer.data)

    def watch(
        self, body: Any, token: str, limit_s: float, line_limit_s: float
    ) -> Generator[dict[str, Any], None, None]:
        """Yields the JSON lines of an answer that does not end, for `limit_s`; see
        `HttpConnection.lines`. Raises HttpError."""
        request = _request(_WATCH, body, token)
        with closing(self.lines(request, limit_s, line_limit_s)) as lines:
            for status, line in lines:
                if not line.endswith(b"\n"):
                    raise HttpError("it has ended a watch")
                yield self._parsed(status, line)

    def not_understood(self, why: UnreadableJsonError) -> HttpError:
        """The error for an answer that etcd would not give. Closes the connection."""
        self.close()
        return HttpError(f"its answer is not understood: it {why}")

    def _parsed(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            answer = read_object(data)
        except UnreadableJsonError as error:
            if status != 404:
                raise self._foreign(status, data, error) from None
            answer = {}
        if status != 404 or _OWN in str(answer.get("message")):
            return answer
        self.close()
        raise HttpError(
            "there is no JSON gateway of etcd's version 3: it is no etcd, or is older than "
            "3.4, or was started without it (enable-grpc-gateway)",
            is_lasting=True,
        )

    def _foreign(self, status: int, data: bytes, why: UnreadableJsonError) -> HttpError:
        if not why.is_text:
            return self.not_understood(why)
        self.close()
        begins = data[:_SHOWN].decode("utf-8", "replace")
        return HttpError(
            f"it is no etcd: it answers {status}, {begins!r}", is_lasting=status not in _OF_A_PROXY
        )


def _request(path: str, body: Any, token: str) -> HttpRequest:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = token
    if path == _WATCH:  # A member that is cut off from the others would be silent for ever.
        headers["Grpc-Metadata-hasleader"] = "true"
    return HttpRequest("POST", path, json.dumps(body).encode(), headers)
