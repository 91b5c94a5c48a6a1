"""The server of metrics or health of this agent or coordinator, over HTTP.

Within fixed limits of connections, bytes and time.

`GET` and `HEAD` of a few paths, as `/metrics` or `/health`; every other request is refused. A
connection serves one request and is closed after a few seconds; only a few are open at a time. When
all places are taken, a new connection takes one from the address that has most of them, which loses
its oldest connection. So strangers that keep connections open keep no request out. Connections
without a whole request, answers to health checks and other answers have separate places.

On loopback only requests to a name or address of loopback are served: a page in a browser on this
machine could else read the metrics, under a host name that it has pointed to 127.0.0.1 (DNS
rebinding). The port does not matter, as it may be a forwarded one.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto
from itertools import count
from typing import Any, NamedTuple

from rallypoint.config import Endpoint
from rallypoint.core.admission import AdmissionLimits
from rallypoint.core.text import shown
from rallypoint.errors import UsageError
from rallypoint.observe.faults import describe_fault
from rallypoint.observe.printing import printed
from rallypoint.observe.prometheus import CONTENT_TYPE
from rallypoint.store.accept_loop import AcceptLoop, Connector, source_of
from rallypoint.wire.address import Address

PATH, HEALTH_PATH = "/metrics", "/health"
PLAIN_TEXT = "text/plain; charset=utf-8"
REQUEST_BYTES = 8192
CONNECTION_S = 5.0
CONNECTIONS = 64
"""The most open connections of each `PlaceKind`."""
BACKLOG = 128
SHOWN_CHARACTERS = 80
LAG_EVERY_S = 1.0
LAG_SAMPLES = 15


def bind_metrics(endpoint: Endpoint) -> socket.socket:
    """Return the listening socket for metrics at this endpoint. Raises UsageError.

    Blocks while a name is looked up.
    """
    try:
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return _listen(*found[0])
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"--metrics-port {endpoint}: {why}: choose another") from error


def _listen(family: int, kind: int, protocol: int, _: str, address: Any) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


async def open_health_server(endpoint: Endpoint) -> MetricsServer:
    """Serve health checks at the endpoint while the loop runs; return the server.

    An agent that is stopped or hangs answers nobody. Raises OSError.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listener = _listen(*found[0])
    server = MetricsServer(listener, endpoint.host, {HEALTH_PATH: HEALTH})
    await server.open()
    return server


class Page(NamedTuple):
    """A page that is served under one path."""

    text: Callable[[float], str]
    """Returns the text; gets the largest recent delay of the loop, in seconds."""
    kind: str = CONTENT_TYPE


HEALTH = Page(lambda _lag_s: "alive\n", PLAIN_TEXT)


class PlaceKind(Enum):
    """The kinds of places for connections; there are `CONNECTIONS` places of each kind."""

    ASKING = auto()  # no whole request has come
    HEALTH = auto()  # reads the answer of a health check
    OTHER = auto()  # reads any other answer


class MetricsServer:
    """The HTTP server of a few pages.

    For the loop's thread: `open`, then `close`.
    """

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        pages: Mapping[str, Page],
    ) -> None:
        """Make the server; `pages` has the pages by path.

        `name` is the host that a person gave: requests to it are served too.
        """
        self.pages = pages
        self._listener, self._name = listener, name
        host, port = listener.getsockname()[:2]
        self._is_local = Address(host, port).is_loopback
        self._accepting: AcceptLoop | None = None
        self._connector: Connector | None = None
        self._places = {
            place: AdmissionLimits(CONNECTIONS, CONNECTION_S, patience_s=0.0) for place in PlaceKind
        }
        self._connections: dict[int, _Connection] = {}
        """The connections by their numbers."""
        self._numbers = count()
        self._lags: deque[float] = deque(maxlen=LAG_SAMPLES)
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """The URL of the first page."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{Endpoint(host, port)}{next(iter(self.pages))}"

    def text(self, page: Page) -> str:
        """Return the present text of the page."""
        return page.text(max(self._lags, default=0.0))

    async def open(self) -> None:
        """Start to accept connections, and to measure the delays of the loop."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._connector = Connector(loop)
        self._accepting = AcceptLoop(loop, self._listener, self._arrived)
        self._tick(loop, None)

    def close(self) -> None:
        """Stop listening, and close every connection.

        Safe to call again, and without `open`.
        """
        if self._ticker is not None:
            self._ticker.cancel()
        if self._accepting is not None:
            self._accepting.close()
        self._listener.close()
        for connection in list(self._connections.values()):
            connection.abort()

    def next_number(self) -> int:
        """Return the number for a new connection."""
        return next(self._numbers)

    def serves(self, host: str) -> bool:
        """Return whether a request with this Host header is answered.

        A server at a loopback address answers only for names of loopback, and for the name that a
        person gave; any other server answers all.
        """
        if not self._is_local:
            return True
        name = _without_port(host).lower()
        return name in ("localhost", self._name.lower()) or _is_loopback(name)

    def take_place(self, connection: _Connection, place: PlaceKind, source: str) -> None:
        """Give a connection a place of this kind, and free its other one.

        If all are taken, one of the connections there is closed.
        """
        self.forget(connection)
        places, now = self._places[place], asyncio.get_running_loop().time()
        if not places.has_free_slot and (number := places.victim(now)) is not None:
            victim = self._connections[number]
            self.forget(victim)
            victim.abort()
        self._connections[connection.number] = connection
        places.arrived(connection.number, source, now)

    def forget(self, connection: _Connection) -> None:
        """Forget a connection that has gone, and free its place."""
        self._connections.pop(connection.number, None)
        for places in self._places.values():
            places.gone(connection.number)

    def _arrived(self, accepted: socket.socket, _: tuple[str, int]) -> None:
        assert self._connector is not None
        self._connector.connect(accepted, lambda: _Connection(self))

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float | None) -> None:
        now = loop.time()
        if due is not None:
            self._lags.append(max(now - due, 0.0))
        due = now + LAG_EVERY_S
        self._ticker = loop.call_at(due, self._tick, loop, due)


class _Connection(asyncio.Protocol):
    def __init__(self, server: MetricsServer) -> None:
        self._server, self.number = server, server.next_number()
        self._head = b""
        self._answered = False
        self._source = ""
        self._transport: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # A client that sends or reads too slowly is cut off, whatever is unwritten.
        self._limit = asyncio.get_running_loop().call_later(CONNECTION_S, self.abort)
        self._source = source_of(transport.get_extra_info("peername")[0])
        self._server.take_place(self, PlaceKind.ASKING, self._source)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._head += data
        head, blank, _ = self._head.replace(b"\r\n", b"\n").partition(b"\n\n")
        if blank and len(head) <= REQUEST_BYTES:
            line, *fields = head.decode("latin-1").split("\n")
            self._serve(line, fields)
        elif len(self._head) > REQUEST_BYTES:
            self._answer("431 Request Header Fields Too Large", "the request is too large\n")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _serve(self, line: str, fields: list[str]) -> None:
        words, stranger = line.split(" "), self._foreign_host(fields)
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._answer("400 Bad Request", "this is not an HTTP/1 request\n")
        elif stranger is not None:
            flag = "--metrics-port HOST:PORT" if PATH in self._server.pages else "--local-addr"
            text = f"this port serves localhost and 127.0.0.1, not {stranger}: "
            text += f"{flag} with another address serves other names\n"
            self._answer("421 Misdirected Request", text, to=words[0])
        elif (page := self._server.pages.get(words[1].partition("?")[0])) is None:
            there = " and ".join(self._server.pages)
            self._answer("404 Not Found", f"there is only {there}\n", to=words[0])
        elif words[0] not in ("GET", "HEAD"):
            self._answer("405 Method Not Allowed", "GET or HEAD\n", "Allow: GET, HEAD\r\n")
        else:
            try:
                text = self._server.text(page)
            except OSError as error:
                self._answer("500 Internal Server Error", printed(str(error)), to=words[0])
            except Exception as error:
                self._answer("500 Internal Server Error", f"{describe_fault(error)}\n", to=words[0])
            else:
                place = PlaceKind.HEALTH if page is HEALTH else PlaceKind.OTHER
                self._answer("200 OK", text, to=words[0], kind=page.kind, place=place)

    def _foreign_host(self, fields: list[str]) -> str | None:
        """Return the Host header for which a request must be refused; None: there is none."""
        for field in fields:
            name, _, value = field.partition(":")
            if name.strip().lower() == "host" and not self._server.serves(value.strip()):
                return shown(value.strip()[:SHOWN_CHARACTERS])
        return None

    def _answer(
        self,
        status: str,
        text: str,
        more: str = "",
        *,
        to: str = "GET",
        kind: str = PLAIN_TEXT,
        place: PlaceKind = PlaceKind.OTHER,
    ) -> None:
        assert self._transport is not None
        self._answered = True
        self._server.take_place(self, place, self._source)
        body = text.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        head += f"{more}Connection: close\r\n\r\n"
        self._transport.write(head.encode() + (b"" if to == "HEAD" else body))
        self._transport.close()


def _without_port(host: str) -> str:
    """Return the name or the address in the value of a Host header."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(text: str) -> bool:
    from ipaddress import ip_address  # Few agents serve metrics.

    try:
        return ip_address(text).is_loopback
    except ValueError:
        return False
