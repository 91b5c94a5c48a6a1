"""A name server for pods: it knows what a test has told it, and no more."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

_HEADER = struct.Struct("!6H")
_ANSWER, _NO_SUCH_NAME = 0x8580, 0x8583
_A, _AAAA = 1, 28


class NameServer:
    """Answers questions for addresses of IPv4 over UDP, in a thread. Other names do not exist."""

    def __init__(self, address: str) -> None:
        """Bound in the network namespace of the calling thread."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self.names: dict[str, str] = {}
        """Addresses by names; may change at any time."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):  # It is connected to nobody; the thread wakes all the same.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> NameServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                asked, peer = self._socket.recvfrom(512)
            except OSError:
                return
            if not asked:
                return
            self._socket.sendto(self._answered(asked), peer)

    def _answered(self, asked: bytes) -> bytes:
        number = _HEADER.unpack_from(asked)[0]
        at, labels = _HEADER.size, []
        while length := asked[at]:
            labels.append(asked[at + 1 : at + 1 + length].decode())
            at += 1 + length
        (kind,) = struct.unpack_from("!H", asked, at + 1)
        question = asked[_HEADER.size : at + 5]
        address = self.names.get(".".join(labels))
        if address is None:
            return _HEADER.pack(number, _NO_SUCH_NAME, 1, 0, 0, 0) + question
        if kind != _A:
            return _HEADER.pack(number, _ANSWER, 1, 0, 0, 0) + question
        record = struct.pack("!HHHIH", 0xC00C, _A, 1, 0, 4) + socket.inet_aton(address)
        return _HEADER.pack(number, _ANSWER, 1, 1, 0, 0) + question + record
