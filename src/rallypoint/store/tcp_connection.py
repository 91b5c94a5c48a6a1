"""One blocking connection to a c10d store, for one thread at a time; and when one that was lost may
be replaced.

Every read and every write is bounded by the kernel (SO_RCVTIMEO and SO_SNDTIMEO, socket(7)), so a
plain request costs two system calls and no more. Once anything went wrong within a request, even an
interrupt by the user, the connection is closed: nobody could tell whose answer comes next.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rallypoint.errors import ProtocolError, StoreConnectionError
from rallypoint.store.backoff import uniform
from rallypoint.wire import c10d_client as wire
from rallypoint.wire.c10d_operations import Exchange, Wait

MIN_REPLY_S = 5.0
"""However short the timeout is, a plain answer may take as long before the store counts as lost."""
MAX_LOSSES = 5
"""One call survives so many losses of a connection that had worked: a request may be to blame."""
_MIN_ATTEMPT_S, _MAX_ATTEMPT_S = 0.5, 10.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
_SHOWN_KEYS = 3

CLOSED = "it has been closed"
LOST_BY_PEER = "the connection was closed by the store"
NOT_A_STORE = "the program that answers there is not a c10d store"
_RECEIVE_BYTES = 65536
_TIMEVAL = struct.Struct("@ll")
_MAX_POLL_S = 86400.0  # poll(2) takes 24 days at the most

T = TypeVar("T")


class ConnectionLostError(Exception):
    """The connection is closed. `is_silence` tells that the peer did not answer in time."""

    def __init__(self, reason: str, *, is_silence: bool = False) -> None:
        super().__init__(reason)
        self.is_silence = is_silence


def silence(reply_s: float) -> ConnectionLostError:
    """Nothing came for so long."""
    return ConnectionLostError(f"no answer within {reply_s:.3f} s", is_silence=True)


def said_by(error: OSError) -> str:
    """What an error of the system means, in its own words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error)


class TCPConnection:
    """A connection after its handshake.

    `owes_answer` tells that something was written that is not answered itself, and no answer to
    anything later has shown that it arrived.
    """

    def __init__(self, host: str, port: int, attempt_s: float, reply_s: float) -> None:
        """Connects once. Raises ConnectionLostError after `attempt_s` seconds at the latest, or so.

        Afterwards an answer is waited for `reply_s` seconds. Both are above 0.
        """
        self.owes_answer = False
        self._buffer = wire.ReplyBuffer()
        self._reply_s = attempt_s
        try:
            self._socket = socket.create_connection((host, port), timeout=attempt_s)
        except OSError as error:
            raise ConnectionLostError(said_by(error)) from error
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
        """From now on a silence of so many seconds is the end of the connection."""
        self._reply_s = reply_s
        whole = int(reply_s)
        timeval = _TIMEVAL.pack(whole, max(int((reply_s - whole) * 1e6), 0 if whole else 1))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def exchange(self, request: bytes, read: wire.Read[T]) -> T:
        """Sends a request and returns its answer. Raises ConnectionLostError."""
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
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:
            self.close()
            raise
        self.owes_answer = False
        return answer

    def send(self, request: bytes) -> None:
        """Sends a request that is not answered. Raises ConnectionLostError."""
        try:
            self._socket.sendall(request)
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:
            self.close()
            raise
        self.owes_answer = True

    def wait(self, request: bytes, deadline: float) -> bool:
        """Sends a request that is answered late; whether the answer came before the deadline.

        If not, it is cancelled, and the connection can be used further: the deadline is of the
        monotonic clock. Raises ConnectionLostError.
        """
        try:
            self._socket.sendall(request)
            if self._is_readable_before(deadline):
                is_answered = self._read(wire.read_check)
            else:
                self._socket.sendall(wire.CANCEL_WAIT)
                is_answered = not self._read(wire.read_is_cancelled)
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:
            self.close()
            raise
        self.owes_answer = False
        return is_answered

    def is_gone(self) -> bool:
        """Whether the peer has closed the connection, as far as can be told without asking it."""
        if not self._poller.poll(0):  # in one call, and without an exception
            return False
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def interrupt(self) -> None:
        """Ends whatever another thread is doing with it; that thread has to close it then."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # gone already

    def close(self) -> None:
        """Safe to call again."""
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

    def _lost(self, error: OSError) -> ConnectionLostError:
        self.close()
        if isinstance(error, BlockingIOError):
            return silence(self._reply_s)
        return ConnectionLostError(said_by(error))


class Recovery:
    """What happens to one connected program's requests when connections are lost.

    The first failure that nothing could be done about is the last: all later calls fail like it.
    """

    def __init__(self, peer: str, pid: int) -> None:
        self.peer, self.pid = peer, pid
        self.failure: str | None = None

    def check_usable(self, pid: int, doing: str, keys: Sequence[str]) -> None:
        """Raises StoreConnectionError in a process that has been forked, and after a failure."""
        if pid != self.pid:
            reason = (
                f"it was opened by process {self.pid}, and a forked process can't share its "
                "connection: open another with clone()"
            )
            raise StoreConnectionError(self.peer, described(doing, keys), reason)
        if self.failure is not None:
            raise StoreConnectionError(self.peer, described(doing, keys), self.failure)

    def judge(
        self,
        lost: ConnectionLostError,
        losses: int,
        doing: str,
        keys: Sequence[str],
        *,
        may_repeat: bool,
        owes_answer: bool,
    ) -> None:
        """Returns if the request may be sent again; raises StoreConnectionError if not.

        `losses` is how many connections this call has lost. `owes_answer` tells that something was
        written before which may have got lost with the connection, and nobody would be told.
        """
        is_harmless = may_repeat and not owes_answer and not lost.is_silence
        if is_harmless and losses <= MAX_LOSSES and self.failure is None:
            return
        reason = str(lost) + (", and what was written before may be lost" if owes_answer else "")
        self.failure = self.failure or reason
        raise StoreConnectionError(self.peer, described(doing, keys), self.failure) from lost

    def give_up_connecting(
        self, lost: ConnectionLostError, doing: str, keys: Sequence[str], tried_s: float
    ) -> StoreConnectionError:
        """The error for having tried for so long."""
        self.failure = self.failure or str(lost)
        reason = f"{self.failure} (tried for {tried_s:.3f} s)"
        return StoreConnectionError(self.peer, described(doing, keys), reason)


def looks_first(step: Exchange | Wait) -> bool:
    """Whether to see that the connection is alive first: too late is when the request got lost."""
    return not step.is_repeatable or (isinstance(step, Exchange) and step.read is None)


def attempt_s(left_s: float) -> float:
    """How long one attempt to connect may take; the first one is made with no time left, too."""
    return min(max(left_s, _MIN_ATTEMPT_S), _MAX_ATTEMPT_S)


def pauses() -> Iterator[float]:
    """Seconds between attempts to connect: growing, and different for each of many clients."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def described(doing: str, keys: Sequence[str]) -> str:
    """An operation and its first keys, for a message."""
    if not keys:
        return doing
    shown = ", ".join(map(repr, keys[:_SHOWN_KEYS]))
    more = len(keys) - _SHOWN_KEYS
    return f"{doing} of {shown}" + (f" and {more} more" if more > 0 else "")


def peer_name(host: str, port: int) -> str:
    """Host and port as one writes them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
