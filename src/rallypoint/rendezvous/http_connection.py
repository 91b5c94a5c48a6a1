"""One connection to a server of HTTP/1.1, with or without TLS, for a request at a time.

An answer is read up to a limit, and no longer than a caller waits. A connection is kept between
requests; one that the server has closed meanwhile is replaced once. A request may then be executed
twice: `has_repeated` says so.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator, Mapping
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPMessage,
    HTTPResponse,
    HTTPSConnection,
)
from typing import TYPE_CHECKING, NamedTuple, Self

from rallypoint.errors import ParameterError
from rallypoint.wire.address import split_endpoint

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_ANSWER = 64 << 20
"""Bytes."""
_PIECE = 1 << 16


class HttpError(Exception):
    """Why a server is of no use; another one may be."""

    def __init__(self, why: str, *, is_lasting: bool = False) -> None:
        """`is_lasting`: it is not worth trying again as it is."""
        super().__init__(why)
        self.is_lasting = is_lasting
        self.was_sent = True
        """The server may have executed the request."""

    def when_sent(self, was_sent: bool) -> Self:
        """The same, of a request that was sent to it, or was not."""
        self.was_sent = was_sent
        return self


class Request(NamedTuple):
    """What is asked, without the host."""

    method: str
    path: str
    """With the query."""
    body: bytes | None
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """A whole one."""

    status: int
    headers: HTTPMessage
    data: bytes


class Kind(NamedTuple):
    """What a person reads of servers of this kind."""

    name: str
    """Like `no etcd`."""
    plain: str
    """How to say that it has no TLS."""
    by_tls: str
    """How to say that it has."""


def tls_context(cacert: str, cert: str = "", key: str = "") -> SSLContext:
    """By these files; an empty name is none. Raises ParameterError for one that can't be used."""
    import ssl  # Costs more than all else that this imports.

    try:
        context = ssl.create_default_context(cafile=cacert or None)
    except (OSError, ssl.SSLError) as error:
        raise ParameterError(f"cacert={cacert}: can't be used: {_reason(error)}") from error
    if cert:
        try:
            context.load_cert_chain(cert, key or None)
        except (OSError, ssl.SSLError) as error:
            pair = f"cert={cert}" + (f" with key={key}" if key else "")
            raise ParameterError(f"{pair}: can't be used: {_reason(error)}") from error
    return context


class HttpConnection:
    """Blocks, for one thread at a time; `abort` from any."""

    def __init__(self, endpoint: str, tls: SSLContext | None, kind: Kind) -> None:
        """`endpoint`: HOST:PORT. Does no I/O."""
        self._connection: HTTPConnection | None = None
        self._has_answered = False
        self.has_repeated = False
        """The last request was sent twice, and may have been executed twice."""
        self._address, self._tls, self._kind = split_endpoint(endpoint, 0), tls, kind

    @property
    def is_open(self) -> bool:
        """A connection is kept for the next request."""
        return self._connection is not None

    def ask(self, request: Request, limit_s: float) -> Answer:
        """Raises HttpError."""
        ends_at = time.monotonic() + limit_s
        is_kept, self.has_repeated = self._connection is not None, False
        try:
            try:
                response = self._send(request, ends_at)
            except (OSError, HTTPException) as error:
                if not is_kept or isinstance(error, TimeoutError):
                    raise
                self.close()
                self.has_repeated = True
                response = self._send(request, ends_at)
            data = self._read(response, ends_at)
        except (OSError, HTTPException, ValueError) as error:
            was_sent = self.has_repeated or self._connection is not None
            self.close()
            # No name for it: a frame that holds its own error holds the connections, too.
            raise self._explained(error, limit_s).when_sent(was_sent) from error
        self._has_answered = True
        if b"HTTPS server" in data and self._tls is None:
            self.close()
            raise HttpError(f"it wants TLS: add {self._kind.by_tls}", is_lasting=True)
        return Answer(response.status, response.headers, data)

    def lines(self, request: Request, limit_s: float) -> Generator[tuple[int, bytes], None, None]:
        """The status, and the lines of an answer that may not end, for so long. A line without its
        end is the last: the server has ended it. Raises HttpError."""
        ends_at = time.monotonic() + limit_s
        try:
            response = self._send(request, ends_at)
            while True:
                self._limit(ends_at)
                line = response.readline(MAX_ANSWER)
                yield response.status, line
                if not line.endswith(b"\n"):
                    return
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

    def _send(self, request: Request, ends_at: float) -> HTTPResponse:
        if self._connection is None:
            self._connection = self._connect(ends_at)
        self._limit(ends_at)
        self._connection.request(request.method, request.path, request.body, {**request.headers})
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
                raise HttpError(f"it answers with more than {MAX_ANSWER >> 20} MiB")
            self._limit(ends_at)
        response.close()  # With a length it does not know that it has ended; the next one waits.
        if response.will_close:
            self.close()
        return bytes(data)

    def _explained(self, error: Exception, limit_s: float) -> HttpError:
        if isinstance(error, TimeoutError):
            return HttpError(f"no answer within {limit_s:.2g} s")
        if isinstance(error, socket.gaierror):
            return HttpError(f"its name is not known ({error.strerror})")
        if type(error).__name__ == "SSLCertVerificationError":
            why = getattr(error, "verify_message", "") or _reason(error)
            return HttpError(f"its certificate is not trusted: {why}", is_lasting=True)
        if type(error).__name__ in ("SSLEOFError", "SSLZeroReturnError"):
            return self._closed(self._kind.plain)
        if type(error).__module__ == "ssl":
            why = f"TLS with it fails: {_reason(error)} (does it want {self._kind.plain}?)"
            return HttpError(why, is_lasting=True)
        if isinstance(error, HTTPException) and not isinstance(error, ConnectionError):
            return HttpError(f"it is {self._kind.name}: it does not speak HTTP", is_lasting=True)
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return self._closed(self._kind.by_tls if self._tls is None else "")
        return HttpError(_reason(error))

    def _closed(self, other: str) -> HttpError:
        """`other`: how to say what else it may want, if it has never answered; empty: nothing."""
        hint = f" (does it want {other}?)" if other and not self._has_answered else ""
        return HttpError(f"it closes the connection{hint}")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error).removeprefix("[Errno ").strip()
