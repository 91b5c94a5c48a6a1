"""A server on a port of this machine that answers each request in small pieces, as long as the
client stays: `with server:`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Self

from tests.harness.limits import patience

PAUSE_S = 0.02
PIECES = 3000
"""The server ends an answer after so many, which take a minute at least."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LINE = b'{"result":{"created":true},"type":"BOOKMARK"}\n'


def first_and_then(kind: str) -> tuple[bytes, bytes]:
    """What comes at once, and each piece that follows it."""
    return {
        "status line": (b"HTTP/1.1 200 ", b"O"),
        "head": (HEAD + b"X-Pad: ", b"a"),
        "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        "body": (HEAD + b"Content-Length: 100000\r\n\r\n{", b" "),
        "body without length": (HEAD + b"\r\n{", b" "),
        "chunk size": (CHUNKED, b"0"),
        "chunk extension": (CHUNKED + b"1;", b"a"),
        "chunks": (CHUNKED + b"1\r\n{\r\n", b"1\r\n \r\n"),
        "trailer": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n"),
        "second line": (CHUNKED + b"%x\r\n%b\r\n" % (len(LINE), LINE), b"1\r\n{\r\n"),
        "TLS": (b"\x16\x03\x03\x40\x00\x02", b"\x00"),
    }[kind]


class DrippingServer:
    """Serves one connection after the other, from when it is entered until it is left.

    It sends a piece, pauses, and so on; `at_once` is how many make one that is sent.
    """

    def __init__(
        self, kind: str, pause_s: float = PAUSE_S, pieces: int = PIECES, at_once: int = 1
    ) -> None:
        self._first, then = first_and_then(kind)
        self._then = then * at_once
        self._pause_s, self._pieces = pause_s, pieces
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._outcomes: list[bool] = []
        self._changed = threading.Condition()
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def wait_hung_up(self, answers: int = 1) -> bool:
        """Whether the client has closed each of so many connections before its answer was over."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self._outcomes) >= answers, patience(PIECES * PAUSE_S)
            )
            return all(self._outcomes)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                was_hung_up = self._answer(connection)
            with self._changed:
                self._outcomes.append(was_hung_up)
                self._changed.notify_all()

    def _answer(self, connection: socket.socket) -> bool:
        try:
            connection.recv(65536)
            for piece in self._answered():
                connection.sendall(piece)
                time.sleep(self._pause_s)  # The drip is what is tested.
        except OSError:
            return True
        return False

    def _answered(self) -> Iterator[bytes]:
        yield self._first
        for _ in range(self._pieces):
            yield self._then
