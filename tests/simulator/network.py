"""The network between simulated machines: delays, partitions, connections that break.

A connection is two pipes of chunks, each in its order; chunks of different connections overtake
each other. Where a direction is blocked its chunks wait, as TCP sends them again, and go on when it
is mended. A connection that is *cut silently* loses everything, and neither end is told.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tests.simulator.loop import ProcessLoop, Schedule

from rallypoint.coordinator.connection import FramedConnection

LOOPBACK_S = 0.00005
SYN_AGAIN_S = 1.0
HEARTBEAT_MAX = 33
"""So long is a frame with a heartbeat at most."""
FIN, RST = b"FIN", b"RST"


class Listener:
    """A socket of a process that accepts connections."""

    def __init__(self, loop: ProcessLoop, accept: Callable[[Transport], FramedConnection]) -> None:
        """`accept` returns what gets the data of a connection; its `connection_made` is called."""
        self.loop, self.accept = loop, accept


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: ProcessLoop, peer: tuple[str, int], own: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": own})
        self._loop = loop
        self._protocol: FramedConnection | None = None
        self.pipe: Pipe | None = None
        """To the other end."""
        self.is_open = True
        self.unread = 0
        """The number of chunks that have arrived, and that the process has not read."""

    @property
    def loop(self) -> ProcessLoop:
        """Of the process that has this end."""
        return self._loop

    def connect(self, protocol: FramedConnection, pipe: Pipe) -> None:
        """From now on `protocol` gets what arrives, and `pipe` what is sent."""
        self._protocol, self.pipe = protocol, pipe
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if self.is_open and self.pipe is not None and not self._loop.is_dead:
            self.pipe.send(bytes(data))

    def close(self) -> None:
        self._end(FIN, None)

    def abort(self) -> None:
        self._end(RST, None)

    def is_closing(self) -> bool:
        return not self.is_open

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever unsent for long enough."""

    def process_died(self) -> None:
        """Its kernel closes the connection."""
        if self.is_open and self.pipe is not None:
            self.is_open = False
            self.pipe.send(FIN, is_end=True)

    def arrived(self, data: bytes, *, is_end: bool) -> None:
        """This comes from the other end."""
        if self.is_open:
            self.unread += not is_end
            self._loop.call_soon(self._ended if is_end else self._received, data)

    def _received(self, data: bytes) -> None:
        self.unread -= 1
        if self.is_open and self._protocol is not None:
            self._protocol.data_received(data)

    def _ended(self, how: bytes) -> None:
        if not self.is_open or self._protocol is None:
            return
        if how is FIN:
            self._protocol.eof_received()
            self._end(FIN, None)
        else:
            self._end(b"", ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _end(self, say: bytes, error: Exception | None) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if say and self.pipe is not None and not self._loop.is_dead:
            self.pipe.send(say, is_end=True)
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, ends: tuple[str, str], to: Transport, name: str) -> None:
        self._network, self.ends, self.to = network, ends, to
        self._random = Random(name)
        self._chunks: deque[tuple[bytes, bool]] = deque()
        self._last_s = 0.0
        self.is_cut = False
        """Nothing that is sent arrives, and nobody is told."""

    def send(self, data: bytes, *, is_end: bool = False) -> None:
        """It arrives after everything that was sent before."""
        schedule = self._network.schedule
        if len(data) > HEARTBEAT_MAX:
            self._network.reports(self.ends[0])
        self._chunks.append((data, is_end))
        delay_s = self._network.delay_s(*self.ends, self._random)
        self._last_s = max(self._last_s, schedule.now_s + delay_s)
        schedule.at(self._last_s, self.deliver)

    def deliver(self) -> None:
        """The next chunk arrives, unless its way is blocked."""
        if self.is_cut or not self._chunks or self._network.is_blocked(*self.ends):
            return
        data, is_end = self._chunks.popleft()
        self.to.arrived(data, is_end=is_end)

    def mended(self) -> None:
        """The way is free again: everything that has waited arrives."""
        for _ in range(len(self._chunks)):
            self._network.schedule.after(
                self._network.delay_s(*self.ends, self._random), self.deliver
            )

    def drop(self) -> None:
        """What is on its way is lost."""
        self._chunks.clear()


class Connection:
    """Both ends, and both directions."""

    def __init__(self, number: int, client: Transport, server: Transport) -> None:
        self.number, self.client, self.server = number, client, server

    @property
    def is_open(self) -> bool:
        """One end at least takes it for open."""
        return self.client.is_open or self.server.is_open

    def pipes(self) -> list[Pipe]:
        """Up and down, once both are connected."""
        return [end.pipe for end in (self.client, self.server) if end.pipe is not None]

    def reset(self) -> None:
        """It breaks, with everything that is on its way, and both ends learn of it."""
        for pipe in self.pipes():
            pipe.drop()
        for end in (self.client, self.server):
            end.arrived(RST, is_end=True)

    def cut_silently(self) -> None:
        """It breaks, and neither end learns of it."""
        for pipe in self.pipes():
            pipe.is_cut = True
            pipe.drop()


class Network:
    """What connects the machines."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.schedule, self._seed = schedule, seed
        self._random = Random(f"{seed} network")
        self._listeners: dict[str, Listener] = {}
        self._answering: dict[str, str] = {}
        """Which machine has a name now; the others have their own."""
        self._blocked: Counter[tuple[str, str]] = Counter()
        self._vanished: set[str] = set()
        self._connections: list[Connection] = []
        self._made = 0
        self._on_report: Callable[[str], None] = lambda host: None
        self.slow_s = 0.0
        """Every chunk may take so much longer."""

    def follow(self, on_report: Callable[[str], None]) -> None:
        """Call this with the machine that is about to send more than a heartbeat."""
        self._on_report = on_report

    def reports(self, host: str) -> None:
        """A process of this machine does."""
        self._on_report(host)

    def listen(self, host: str, listener: Listener) -> None:
        """A process of this machine accepts connections."""
        self._listeners[host] = listener

    def shut(self, host: str, listener: Listener) -> None:
        """This one listens no more."""
        if self._listeners.get(host) is listener:
            del self._listeners[host]

    def direct(self, name: str, host: str) -> None:
        """Who dials this name reaches that machine from now on."""
        self._answering[name] = host

    def is_blocked(self, source: str, target: str) -> bool:
        """Nothing gets from one to the other now."""
        if source == target:
            return source in self._vanished
        if self._vanished and (source in self._vanished or target in self._vanished):
            return True
        return bool(self._blocked) and self._blocked[source, target] > 0

    def delay_s(self, source: str, target: str, rng: Random) -> float:
        """How long the next chunk takes."""
        if source == target:
            return LOOPBACK_S
        delay_s = 0.0002 + 0.001 * rng.random()
        if rng.random() < 0.01:
            delay_s += 0.1 * rng.random()
        return delay_s + self.slow_s * rng.random()

    def block(self, source: str, target: str) -> None:
        """From now on nothing gets from one to the other."""
        self._blocked[source, target] += 1

    def mend(self, source: str, target: str) -> None:
        """The opposite of one `block`."""
        self._blocked[source, target] -= 1
        if self._blocked[source, target] <= 0:
            del self._blocked[source, target]
            for connection in self.open_connections():
                for pipe in connection.pipes():
                    if pipe.ends == (source, target):
                        pipe.mended()

    def vanish(self, host: str) -> None:
        """The machine is gone; nobody is told."""
        self._vanished.add(host)

    def appear(self, host: str) -> None:
        """The machine is there again, and knows nothing of its old connections."""
        if host in self._vanished:
            self._vanished.remove(host)
            for connection in self.open_connections(host):
                connection.reset()

    def process_died(self, loop: ProcessLoop) -> None:
        """The kernel of its machine closes what it had open."""
        for host, listener in list(self._listeners.items()):
            if listener.loop is loop:
                del self._listeners[host]
        for connection in self.open_connections():
            for end in (connection.client, connection.server):
                if end.loop is loop:
                    end.process_died()

    def open_connections(self, host: str | None = None) -> list[Connection]:
        """Those of this machine's agent, or all; the oldest first."""
        self._connections = [each for each in self._connections if each.is_open]
        if host is None:
            return self._connections
        return [each for each in self._connections if each.client.loop.host == host]

    async def dial(
        self, loop: ProcessLoop, make: Callable[[], FramedConnection], host: str, port: int
    ) -> asyncio.Transport:
        """As `create_connection`: raises ConnectionRefusedError, or waits for ever."""
        answered: asyncio.Future[Transport] = loop.create_future()
        delay_s = self.delay_s(loop.host, host, self._random)
        self.schedule.after(delay_s, partial(self._syn, loop, make(), host, answered))
        return await answered

    def _syn(
        self,
        loop: ProcessLoop,
        protocol: FramedConnection,
        host: str,
        answered: asyncio.Future[Transport],
    ) -> None:
        if answered.done() or loop.is_dead or host in self._vanished:
            return
        there = self._answering.get(host, host)
        if self.is_blocked(loop.host, there) or self.is_blocked(there, loop.host):
            again = partial(self._syn, loop, protocol, host, answered)
            self.schedule.after(SYN_AGAIN_S, again)
            return
        listener = self._listeners.get(there)
        if listener is None or listener.loop.is_dead:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
            loop.call_soon(_settle, answered, refused)
            return
        self._connect(loop, protocol, listener, answered)

    def _connect(
        self,
        loop: ProcessLoop,
        protocol: FramedConnection,
        listener: Listener,
        answered: asyncio.Future[Transport],
    ) -> None:
        self._made += 1
        source, target = loop.host, listener.loop.host
        client = Transport(loop, (target, 29400), (source, 40000 + self._made))
        server = Transport(listener.loop, (source, 40000 + self._made), (target, 29400))
        name = f"{self._seed} connection {self._made}"
        up = Pipe(self, (source, target), server, f"{name} up")
        down = Pipe(self, (target, source), client, f"{name} down")
        self._connections.append(Connection(self._made, client, server))

        def accept() -> None:
            server.connect(listener.accept(server), down)

        def connect() -> None:
            if not answered.done():
                client.connect(protocol, up)
                answered.set_result(client)

        listener.loop.call_soon(accept)
        loop.call_soon(connect)


def _settle(future: asyncio.Future[Transport], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
