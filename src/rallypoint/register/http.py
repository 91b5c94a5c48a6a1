"""One HTTP/1.1 connection, with or without TLS, for one request at a time.

The time limit of a call includes the connection, the TLS handshake, the request and the whole
answer. Only the time for a name server is unlimited. Heads, bodies and the lines between chunks are
limited in size.

A connection is kept between requests; one that the server has closed meanwhile is replaced once. A
request may then be executed twice: `has_repeated` says so.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Generator, Mapping
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPMessage,
    HTTPResponse,
    IncompleteRead,
)
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rallypoint.errors import ParameterError
from rallypoint.wire.address import split_endpoint

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_ANSWER = 64 << 20
"""The limit of a body, or of one line of an endless answer, in bytes."""
MAX_HEAD = 128 << 10
"""The limit of an answer's head, including `100 Continue` answers before it, in bytes."""
_PIECE = 1 << 16
_CUT_OFF = "its answer is cut off"


class HttpError(Exception):
    """The failure of a request at one server; another server may carry out the request."""

    def __init__(self, why: str, *, is_lasting: bool = False) -> None:
        """`is_lasting`: a retry fails as well, until somebody changes something."""
        super().__init__(why)
        self.is_lasting = is_lasting
        self.was_sent = True
        """Whether the server may have executed the request."""

    def when_sent(self, was_sent: bool) -> Self:
        """Set whether the server may have executed the request, and return this error."""
        self.was_sent = was_sent
        return self


class HttpRequest(NamedTuple):
    """A request, without the server's host."""

    method: str
    path: str
    """The path, with the query."""
    body: bytes | None
    headers: Mapping[str, str]


class HttpReply(NamedTuple):
    """A complete answer."""

    status: int
    headers: HTTPMessage
    data: bytes


class ServerKind(NamedTuple):
    """The words about a kind of server, such as etcd, for errors."""

    name: str
    """The text for a server that is not of this kind, such as `no etcd`."""
    plain: str
    """The option that chooses a connection without TLS, such as `protocol=http`."""
    by_tls: str
    """The option that chooses a connection with TLS, such as `protocol=https`."""


def tls_context(cacert: str, cert: str = "", key: str = "") -> SSLContext:
    """Return a client's TLS context: `cacert` is the file of authorities for the server.

    `cert` and `key` are the files of the client's certificate and key. Empty: the system's
    authorities; no client certificate; the key is in `cert`. Raises ParameterError for an unusable
    file.
    """
    import ssl  # Costs more than all else that this imports.

    try:
        context = ssl.create_default_context(cafile=cacert or None)
        # Python 3.13 began to refuse authorities without key usage or key identifier. Those of many
        # clusters have none, and the user has named them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
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
    """A connection to one server; it is opened when a request needs it.

    Blocks; for one thread at a time, except `abort`, which any thread may call.
    """

    def __init__(self, endpoint: str, tls: SSLContext | None, kind: ServerKind) -> None:
        """Prepare a connection to `endpoint`, HOST:PORT; `tls` None: without TLS. Does no I/O."""
        self._connection: HTTPConnection | None = None
        self._wire: _Wire | None = None
        self._has_answered = False
        self.has_repeated = False
        """Whether the last `ask` tried twice; its request may then have been executed twice."""
        self._address, self._tls, self._kind = split_endpoint(endpoint, 0), tls, kind

    @property
    def is_open(self) -> bool:
        """Whether a connection is kept for the next request."""
        return self._connection is not None

    def ask(self, request: HttpRequest, limit_s: float) -> HttpReply:
        """Send the request and return the whole answer. Raises HttpError.

        It ends within `limit_s` seconds, apart from a name server's time.
        """
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
            data = self._read(response)
        except (OSError, HTTPException, ValueError, HttpError) as error:
            was_sent = self.has_repeated or self._connection is not None
            self.close()
            # No name for it: a frame that holds its own error holds the connections, too.
            raise self._explained(error, limit_s).when_sent(was_sent) from error
        self._has_answered = True
        if b"HTTPS server" in data and self._tls is None:
            self.close()
            raise HttpError(f"it wants TLS: add {self._kind.by_tls}", is_lasting=True)
        return HttpReply(response.status, response.headers, data)

    def lines(
        self, request: HttpRequest, limit_s: float, line_limit_s: float
    ) -> Generator[tuple[int, bytes], None, None]:
        """Yield pairs of the status and a line of the answer, which may be endless.

        Ends after `limit_s` seconds. A line without a line feed is the last one: the server has
        ended the answer. Raises HttpError, also if the head, or the rest of a line that has begun,
        does not arrive within `line_limit_s` seconds.
        """
        now = time.monotonic()
        ends_at, patience_ends_at = now + limit_s, now + line_limit_s
        try:
            response = self._send(request, min(ends_at, patience_ends_at))
            wire = self._wire
            while wire is not None:
                wire.allow(MAX_ANSWER, "a line of its answer")
                wire.ends_at = patience_ends_at = ends_at
                if response.length != 0:
                    response.peek(1)  # Waits for the first byte of a line.
                patience_ends_at = time.monotonic() + line_limit_s
                wire.ends_at = min(ends_at, patience_ends_at)
                line = response.readline(MAX_ANSWER)
                yield response.status, line
                if not line.endswith(b"\n"):
                    return
        except TimeoutError as error:
            if patience_ends_at < ends_at:
                raise self._explained(error, line_limit_s) from error
        except (OSError, HTTPException, ValueError, AttributeError, HttpError) as error:
            raise self._explained(error, limit_s) from error
        finally:
            self.close()

    def abort(self) -> None:
        """End a call of another thread, which then fails or ends early."""
        if (wire := self._wire) is not None:
            wire.shutdown()

    def __del__(self) -> None:
        """Close the connection: registers are not closed by their users."""
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        connection, self._connection = self._connection, None
        wire, self._wire = self._wire, None
        if connection is not None:
            connection.close()
        if wire is not None:
            wire.disconnect()

    def _send(self, request: HttpRequest, ends_at: float) -> HTTPResponse:
        """Send the request, over a new connection if none is open, and return the answer's head.

        Raises TimeoutError when no head has come by `ends_at`.
        """
        if self._connection is None or self._wire is None:
            self._connection, self._wire = self._connect(ends_at)
        connection, wire = self._connection, self._wire
        wire.ends_at = ends_at
        wire.allow(MAX_HEAD, "the head of its answer")
        connection.request(request.method, request.path, request.body, {**request.headers})
        response = connection.getresponse()
        wire.allow(2 * MAX_ANSWER, "its answer")  # With the lines between chunks.
        return response

    def _connect(self, ends_at: float) -> tuple[HTTPConnection, _Wire]:
        host, port = self._address
        connected = _dial(host, port, ends_at)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connected.settimeout(_left_s(ends_at))
                connected = self._tls.wrap_socket(connected, server_hostname=host)
        except BaseException:
            connected.close()
            raise
        connection, wire = HTTPConnection(host, port), _Wire(connected)
        if self._tls is not None:
            connection.default_port = 443
        connection.auto_open = 0
        connection.sock = wire
        return connection, wire

    def _read(self, response: HTTPResponse) -> bytes:
        data = bytearray()
        while piece := response.read1(_PIECE):
            data += piece
            if len(data) > MAX_ANSWER:
                raise HttpError(f"it answers with more than {MAX_ANSWER >> 20} MiB")
        if response.length:
            raise HttpError(_CUT_OFF)
        response.close()  # With a length it does not know that it has ended; the next one waits.
        if response.will_close:
            self.close()
        return bytes(data)

    def _explained(self, error: Exception, limit_s: float) -> HttpError:
        if isinstance(error, HttpError):
            return error
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
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return self._closed(self._kind.by_tls if self._tls is None else self._kind.plain)
        if isinstance(error, BadStatusLine):
            return HttpError(f"it is {self._kind.name}: it does not speak HTTP", is_lasting=True)
        if isinstance(error, IncompleteRead):
            return HttpError(_CUT_OFF)
        if isinstance(error, HTTPException):
            return HttpError(f"its answer is not understood ({error})")
        if isinstance(error, ValueError):  # Its text would show a token.
            return HttpError("the request has a header that HTTP does not allow: see the token")
        return HttpError(_reason(error))

    def _closed(self, other: str) -> HttpError:
        """Return the error for a connection that the server closed.

        `other` is the option to suggest if the server never answered this client; empty: none.
        """
        hint = f" (does it want {other}?)" if other and not self._has_answered else ""
        return HttpError(f"it closes the connection{hint}")


class _Wire:
    """A connected socket, as `http.client` uses one. Each operation on it ends by `ends_at`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.ends_at = 0.0
        """The time on the monotonic clock by which an operation must end."""
        self._left, self._what = 0, ""

    def allow(self, size: int, what: str) -> None:
        """Limit the bytes that are received from now on. `what` names them in errors."""
        self._left, self._what = size, f"{what} has more than {size >> 10} KiB"

    def sendall(self, data: bytes) -> None:
        """Send all the data. Raises TimeoutError when that is not done by `ends_at`."""
        view = memoryview(data)
        while view:
            self._socket.settimeout(_left_s(self.ends_at))
            view = view[self._socket.send(view) :]

    def makefile(self, *_: object) -> io.BufferedReader:
        """Return a stream from which `http.client` reads an answer."""
        return io.BufferedReader(_Received(self))

    def receive_into(self, buffer: memoryview) -> int:
        """Receive bytes into the buffer, and return their number; 0: the server has closed.

        Raises TimeoutError after `ends_at`, and HttpError when all allowed bytes were received
        before.
        """
        self._socket.settimeout(_left_s(self.ends_at))
        if self._left <= 0:
            raise HttpError(self._what)
        size = self._socket.recv_into(buffer)
        self._left -= size
        return size

    def shutdown(self) -> None:
        """Shut the connection down, which ends an operation of another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Do nothing: `http.client` closes a socket before the answer is read."""

    def disconnect(self) -> None:
        """Close the socket."""
        self._socket.close()


class _Received(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._wire.receive_into(memoryview(buffer))


def _dial(host: str, port: int, ends_at: float) -> socket.socket:
    """Connect to the first address that accepts.

    Each gets an equal share of the time that is left to it and those after it, until the monotonic
    time `ends_at`.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.settimeout(_left_s(ends_at) / (len(found) - number))
            connecting.connect(address)
        except BaseException as error:
            connecting.close()
            if not isinstance(error, OSError) or number == len(found) - 1:
                raise
        else:
            return connecting
    raise OSError("its name has no address")


def _left_s(ends_at: float) -> float:
    """Return the seconds until a monotonic time. Raises TimeoutError when there are none."""
    if (left_s := ends_at - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error).removeprefix("[Errno ").strip()
