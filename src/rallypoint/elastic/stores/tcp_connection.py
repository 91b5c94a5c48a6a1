"""One blocking connection to a c10d store. For one thread at a time.

Every read and every write is bounded by the kernel (SO_RCVTIMEO and SO_SNDTIMEO, socket(7)), so a
plain request costs two system calls and no more. Once anything went wrong within a request, even an
interrupt by the user, the connection is closed: the next answer could belong to any request.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import TypeVar

from rallypoint.elastic.stores import c10d_client as wire
from rallypoint.errors import ProtocolError

LOST_BY_PEER = "the connection was closed by the store"
NOT_A_STORE = "the program that answers there is not a c10d store"
_RECEIVE_BYTES = 65536
_TIMEVAL = struct.Struct("@ll")
_MAX_POLL_S = 86400.0  # poll(2) takes 24 days at the most

T = TypeVar("T")


class ConnectionLostError(Exception):
    """The error that there is no connection, or no longer.

    `is_timeout`: a request was not answered in time.
    """

    def __init__(self, reason: str, *, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.is_timeout = is_timeout


class TCPConnection:
    """A connection to a store's server, after the handshake.

    `owes_answer`: a request without an answer was written, and no later answer has shown that it
    arrived.
    """

    def __init__(self, host: str, port: int, attempt_s: float, reply_s: float) -> None:
        """Connect once; each address of the host, and the handshake, has `attempt_s` seconds.

        Raises ConnectionLostError if that fails. Later requests wait `reply_s` seconds for an
        answer.
        Both are above 0.
        """
        self.owes_answer = False
        self._buffer = wire.ReplyBuffer()
        self._reply_s = attempt_s
        try:
            self._socket = socket.create_connection((host, port), timeout=attempt_s)
        except OSError as error:
            raise _lost_by(error) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setblocking(True)
            self._poller = select.poll()
            self._poller.register(self._socket, select.POLLIN)
            self.bound(attempt_s)
            nonce = os.getpid() & 0xFFFFFFFF
            if self.exchange(wire.handshake(nonce), wire.read_ping) != nonce:
                raise ConnectionLostError(NOT_A_STORE)
            self.bound(reply_s)
        except BaseException:
            self._socket.close()
            raise

    def bound(self, reply_s: float) -> None:
        """Set the time limit of each later answer or write, after which the connection ends."""
        self._reply_s = reply_s
        whole = int(reply_s)
        timeval = _TIMEVAL.pack(whole, max(int((reply_s - whole) * 1e6), 0 if whole else 1))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def exchange(self, request: bytes, read: wire.Read[T]) -> T:
        """Send a request and return its answer. Raises ConnectionLostError."""
        whole = wire.WHOLE.get(read)
        try:
            self._socket.sendall(request)
            if whole is None:
                answer = self._read(read)
            else:
                data = self._socket.recv(_RECEIVE_BYTES)
                answer = whole(data)
                if answer is None:
                    self._receive(data)
                    answer = self._read(read)
        except BaseException as error:
            self._fail(error)
            raise
        self.owes_answer = False
        return answer

    def send(self, request: bytes) -> None:
        """Send a request that has no answer. Raises ConnectionLostError."""
        try:
            self._socket.sendall(request)
        except BaseException as error:
            self._fail(error)
            raise
        self.owes_answer = True

    def wait(self, request: bytes, deadline: float) -> bool:
        """Send a request whose answer is delayed, and return whether it came before the deadline.

        Otherwise the request is cancelled, and the connection stays usable. The deadline is of the
        monotonic clock. Raises ConnectionLostError.
        """
        try:
            self._socket.sendall(request)
            if self._is_readable_before(deadline):
                is_answered = self._read(wire.read_check)
            else:
                self._socket.sendall(wire.CANCEL_WAIT)
                is_answered = not self._read(wire.read_is_cancelled)
        except BaseException as error:
            self._fail(error)
            raise
        self.owes_answer = False
        return is_answered

    def is_gone(self) -> bool:
        """Return whether the peer is known to have closed the connection. Sends nothing."""
        if not self._poller.poll(0):  # in one call, and without an exception
            return False
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def interrupt(self) -> None:
        """Interrupt another thread's use of the connection; that thread then has to close it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # gone already

    def close(self) -> None:
        """Close the connection. May be called again."""
        self._socket.close()

    def _read(self, read: wire.Read[T]) -> T:
        reading = read(self._buffer)
        try:
            while True:
                next(reading)
                self._receive(self._socket.recv(_RECEIVE_BYTES))
        except StopIteration as end:
            answer: T = end.value
        except ProtocolError as error:
            raise ConnectionLostError(str(error)) from error
        if not self._buffer.is_empty:
            raise ConnectionLostError("the store sent more than it was asked for")
        return answer

    def _receive(self, data: bytes) -> None:
        if not data:
            raise ConnectionLostError(LOST_BY_PEER)
        self._buffer.receive(data)

    def _is_readable_before(self, deadline: float) -> bool:
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if self._poller.poll(min(left_s, _MAX_POLL_S) * 1000):
                return True
            if left_s <= _MAX_POLL_S:
                return False

    def _fail(self, error: BaseException) -> None:
        """Close the connection, and raise ConnectionLostError if `error` is an OSError."""
        self.close()
        if isinstance(error, BlockingIOError):
            reason = f"no answer within {self._reply_s:.3f} s"
            raise ConnectionLostError(reason, is_timeout=True) from error
        if isinstance(error, OSError):
            raise _lost_by(error) from error


def _lost_by(error: OSError) -> ConnectionLostError:
    is_timeout = isinstance(error, TimeoutError)
    return ConnectionLostError("no answer" if is_timeout else error.strerror or str(error))
