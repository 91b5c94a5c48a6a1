"""A c10d store on loopback that does to each request what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from rallypoint.errors import ProtocolError
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_server import ServerSession


class Act(Enum):
    """What becomes of a request; bytes instead are sent as its reply."""

    SERVE = "as a store does"
    CLOSE = "the connection is closed, the request forgotten"
    SERVE_AND_CLOSE = "it is carried out, and the connection closed without a reply"


Script = Callable[[int, c10d.StoreRequest], Act | bytes]


def serve_all(connection: int, request: c10d.StoreRequest) -> Act | bytes:
    """The script of an honest store."""
    return Act.SERVE


class ScriptedStore:
    """`script` is given the number of the connection, from 0 on, and the request.

    `seen` has what was received on each connection. One thread per connection; all end with
    `close`.
    """

    def __init__(self, script: Script = serve_all) -> None:
        self.script = script
        self.seen: list[tuple[int, c10d.StoreRequest]] = []
        self._machine = KeyValueMachine()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)
        self._serving: list[threading.Thread] = []
        self._accepting.start()

    @property
    def connections(self) -> int:
        """How many have come so far."""
        return len(self._open)

    def requests(self, kind: type[c10d.StoreRequest]) -> list[tuple[int, c10d.StoreRequest]]:
        """Those of one kind, with the numbers of their connections."""
        with self._lock:
            return [(number, request) for number, request in self.seen if type(request) is kind]

    def close_connections(self) -> None:
        """Every client finds its connection closed."""
        for connection in tuple(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.close_connections()
        for thread in self._serving:
            thread.join()

    def __enter__(self) -> ScriptedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(len(self._open) - 1, connection))
            self._serving.append(thread)
            thread.start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        session = ServerSession()
        with connection, suppress(OSError, ProtocolError):
            while data := connection.recv(65536):
                session.receive(data)
                while (request := session.next_request()) is not None:
                    if not self._obey(number, connection, request):
                        return
        with self._lock:
            self._machine.drop(number)

    def _obey(self, number: int, connection: socket.socket, request: c10d.StoreRequest) -> bool:
        act = self.script(number, request)
        with self._lock:
            self.seen.append((number, request))
            if isinstance(act, bytes):
                connection.sendall(act)
            if act in (Act.SERVE, Act.SERVE_AND_CLOSE):
                for client, reply in self._machine.apply(number, request):
                    if client != number or act is Act.SERVE:
                        self._open[client].sendall(reply)
        return act not in (Act.CLOSE, Act.SERVE_AND_CLOSE)
