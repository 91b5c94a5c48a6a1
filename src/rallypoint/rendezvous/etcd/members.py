"""One connection to one member of etcd: a POST of JSON at a time, by HTTP/1.1 with or without TLS.

What a member answers is read up to a limit, and no longer than a caller waits. A connection is kept
between calls; one that the member has closed meanwhile is replaced once. A request may then be
executed twice: `has_repeated` says so.
"""

from __future__ import annotations

import json
import socket
import time
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
)
from typing import TYPE_CHECKING, Any

from rallypoint.errors import ParameterError
from rallypoint.wire.address import split_endpoint
from rallypoint.wire.etcd_config import EtcdConfig

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_ANSWER = 64 << 20
"""Bytes."""
WATCH = "/v3/watch"
_PIECE = 1 << 16
_SHOWN = 60
_OF_A_PROXY = (502, 503, 504)
"""When the member behind it is away."""


class MemberError(Exception):
    """Why this member is of no use; another one may be."""

    def __init__(self, why: str, *, is_lasting: bool = False) -> None:
        """`is_lasting`: it is not worth trying again as it is."""
        super().__init__(why)
        self.is_lasting = is_lasting
        self.was_sent = True
        """It may have executed the request."""


def tls_context(config: EtcdConfig) -> SSLContext | None:
    """None: without TLS. Raises ParameterError for files that can't be used."""
    if config.protocol != "https":
        return None
    import ssl  # Costs more than all else that this imports.

    try:
        context = ssl.create_default_context(cafile=config.cacert or None)
    except (OSError, ssl.SSLError) as error:
        raise ParameterError(f"cacert={config.cacert}: can't be used: {_reason(error)}") from error
    if config.cert:
        try:
            context.load_cert_chain(config.cert, config.key or None)
        except (OSError, ssl.SSLError) as error:
            pair = f"cert={config.cert}" + (f" with key={config.key}" if config.key else "")
            raise ParameterError(f"{pair}: can't be used: {_reason(error)}") from error
    return context


class Member:
    """Blocks, for one thread at a time; `abort` from any."""

    def __init__(self, endpoint: str, tls: SSLContext | None) -> None:
        self._connection: HTTPConnection | None = None
        self._has_answered = False
        self.has_repeated = False
        """The last request was sent twice, and may have been executed twice."""
        self._address, self._tls = split_endpoint(endpoint, 0), tls

    def post(self, path: str, body: Any, token: str, limit_s: float) -> tuple[int, Any]:
        """The HTTP status, and the JSON of the answer. Raises MemberError."""
        ends_at = time.monotonic() + limit_s
        is_kept, self.has_repeated = self._connection is not None, False
        try:
            try:
                response = self._request(path, body, token, ends_at)
            except (ConnectionError, HTTPException):
                if not is_kept:
                    raise
                self.close()
                self.has_repeated = True
                response = self._request(path, body, token, ends_at)
            data = self._read(response, ends_at)
        except (OSError, HTTPException, ValueError) as error:
            failure = self._explained(error, limit_s)
            failure.was_sent = self.has_repeated or self._connection is not None
            self.close()
            raise failure from error
        return response.status, self._parsed(response.status, data)

    def watch(self, body: Any, token: str, limit_s: float) -> Any:
        """Yields the JSON lines of an answer that does not end, for so long. Raises MemberError."""
        ends_at = time.monotonic() + limit_s
        try:
            response = self._request(WATCH, body, token, ends_at)
            while True:
                self._limit(ends_at)
                line = response.readline(MAX_ANSWER)
                if not line.endswith(b"\n"):
                    raise MemberError("it has ended a watch")
                yield self._parsed(response.status, line)
        except TimeoutError:
            return
        except (OSError, HTTPException, ValueError, AttributeError) as error:
            raise self._explained(error, limit_s) from error
        finally:
            self.close()

    def abort(self) -> None:
        """Whoever waits for an answer has waited long enough."""
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def __del__(self) -> None:
        """Registers are not closed by those who use them."""
        self.close()

    def close(self) -> None:
        """The next request opens another connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, path: str, body: Any, token: str, ends_at: float) -> HTTPResponse:
        if self._connection is None:
            self._connection = self._connect(ends_at)
        self._limit(ends_at)
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = token
        if path == WATCH:  # One that is cut off from the other members would be silent for ever.
            headers["Grpc-Metadata-hasleader"] = "true"
        self._connection.request("POST", path, json.dumps(body).encode(), headers)
        return self._connection.getresponse()

    def _connect(self, ends_at: float) -> HTTPConnection:
        host, port = self._address
        left_s = max(ends_at - time.monotonic(), 0.001)
        connection = (
            HTTPConnection(host, port, timeout=left_s)
            if self._tls is None
            else HTTPSConnection(host, port, timeout=left_s, context=self._tls)
        )
        connection.connect()
        return connection

    def _limit(self, ends_at: float) -> None:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.settimeout(left_s)

    def _read(self, response: HTTPResponse, ends_at: float) -> bytes:
        data = bytearray()
        while piece := response.read1(_PIECE):
            data += piece
            if len(data) > MAX_ANSWER:
                self.close()
                raise MemberError(f"it answers with more than {MAX_ANSWER >> 20} MiB")
            self._limit(ends_at)
        response.close()  # With a length it does not know that it has ended; the next one waits.
        return bytes(data)

    def _parsed(self, status: int, data: bytes) -> Any:
        try:
            answer = json.loads(data)
            self._has_answered = True
        except ValueError:
            answer = None
        if isinstance(answer, dict) and (status != 404 or "code" not in answer):
            return answer
        self.close()
        if b"HTTPS server" in data:
            raise MemberError("it wants TLS: add protocol=https", is_lasting=True)
        if status == 404:
            raise MemberError(
                "there is no JSON gateway of etcd's version 3: it is no etcd, or is older than "
                "3.4, or was started without it (enable-grpc-gateway)",
                is_lasting=True,
            )
        begins = data[:_SHOWN].decode("utf-8", "replace")
        raise MemberError(
            f"it is no etcd: it answers {status}, {begins!r}", is_lasting=status not in _OF_A_PROXY
        )

    def _explained(self, error: Exception, limit_s: float) -> MemberError:
        if isinstance(error, TimeoutError):
            return MemberError(f"no answer within {limit_s:.2g} s")
        if isinstance(error, socket.gaierror):
            return MemberError(f"its name is not known ({error.strerror})")
        if type(error).__name__ == "SSLCertVerificationError":
            why = getattr(error, "verify_message", "") or _reason(error)
            return MemberError(f"its certificate is not trusted: {why}", is_lasting=True)
        if type(error).__module__ == "ssl":
            why = f"TLS with it fails: {_reason(error)} (does it want protocol=http?)"
            return MemberError(why, is_lasting=True)
        if isinstance(error, HTTPException) and not isinstance(error, ConnectionError):
            return MemberError("it is no etcd: it does not speak HTTP", is_lasting=True)
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            hint = self._tls is None and not self._has_answered
            why = " (does it want protocol=https?)" if hint else ""
            return MemberError(f"it closes the connection{why}")
        return MemberError(_reason(error))


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error).removeprefix("[Errno ").strip()
