"""`rallypoint store` on loopback, and a client that says what it is told."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.harness.limits import patience
from tests.harness.prepared import processes
from tests.harness.store_client import VALIDATE as VALIDATE
from tests.harness.store_client import text as text

from rallypoint.wire.c10d_fields import Opcode

COMMAND = (sys.executable, "-m", "rallypoint", "store", "--host", "127.0.0.1", "--port", "0")
LIMIT_S = patience(60.0)

Field = bytes | int | Sequence[bytes] | Sequence[tuple[bytes, bytes]]


class RunningStore(NamedTuple):
    """Where it listens, and which process it is."""

    port: int
    process: subprocess.Popen[str]


@contextmanager
def store_process() -> Iterator[RunningStore]:
    """Up when this returns; ended on leaving, and it must have lived until then."""
    process = processes.start(COMMAND, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first_line = process.stderr.readline()
        found = re.search(r" listens on \S+:(\d+) for ", first_line)
        assert found, first_line
        yield RunningStore(int(found[1]), process)
        assert process.poll() is None, f"the store ended with {process.returncode}"
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def encode(opcode: Opcode, *fields: Field) -> bytes:
    """A request; a number is an i64, a sequence has its count before it."""
    encoded = bytes((opcode,))
    for field in fields:
        match field:
            case bytes():
                encoded += text(field)
            case int():
                encoded += struct.pack("<q", field)
            case _:
                parts = [part for item in field for part in _parts(item)]
                encoded += struct.pack("<Q", len(field)) + b"".join(map(text, parts))
    return encoded


def _parts(item: bytes | tuple[bytes, bytes]) -> tuple[bytes, ...]:
    return (item,) if isinstance(item, bytes) else item


class RawClient:
    """A connection, validated, that sends requests and reads what comes, byte by byte."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pings, self._pong = 0, b""
        self.send(VALIDATE)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ping(self) -> None:
        """For `read_answers`."""
        self._pings += 1
        self._pong = struct.pack("<I", 0xA5C30000 | self._pings & 0xFFFF)
        self.send(bytes((Opcode.PING,)) + self._pong)

    def read_answers(self) -> bytes:
        """What had come before the ping was answered."""
        found = b""
        while not found.endswith(self._pong) and (data := self._socket.recv(1 << 16)):
            found += data
        return found.removesuffix(self._pong)

    def read(self, size: int) -> bytes:
        """So many bytes; fewer if the connection ends."""
        found = bytearray()
        while len(found) < size and (data := self._socket.recv(size - len(found))):
            found += data
        return bytes(found)

    def ask(self, opcode: Opcode, *fields: Field) -> bytes:
        """One request and its answer."""
        self.send(encode(opcode, *fields))
        self.ping()
        return self.read_answers()

    def is_closed(self) -> bool:
        """Waits for the end of the connection; False if something else comes."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """The end, as the server sees it too."""
        self._socket.close()
