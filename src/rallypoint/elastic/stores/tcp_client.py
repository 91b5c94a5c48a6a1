"""The client of a c10d store for threads: one connection that heals itself, where that is safe.

Threads take turns on the main connection. One that has to wait takes it away for as long, so that
the next thread opens another; a process has as many connections as threads that wait, plus one.

A connection that was lost is replaced, and what was asked is asked again, only if that can't do
harm: when the request has the same effect done twice, and nothing unanswered may have got lost
before it. Everything else is reported, and then the client is of no more use.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from rallypoint.elastic.stores import c10d_client as wire
from rallypoint.elastic.stores.c10d_operations import Exchange, MissingError, Operation, Wait
from rallypoint.elastic.stores.tcp_connection import (
    LOST_BY_PEER,
    ConnectionLostError,
    TCPConnection,
)
from rallypoint.errors import InvariantError, StoreConnectionError, StoreTimeoutError
from rallypoint.store.access import peer_name
from rallypoint.store.backoff import growing_pauses, uniform

MAX_LOSSES = 5
"""The number of connection losses that one call survives: the request itself may be the cause."""
_MIN_REPLY_S = 5.0
"""The least time, in seconds, that an answer which needs no waiting may take until the store counts
as lost."""
_MIN_ATTEMPT_S, _MAX_ATTEMPT_S = 0.5, 10.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0
_SHOWN_KEYS = 3

T = TypeVar("T")


class _Call(NamedTuple):
    """The name of a thread's request and its keys, for error messages."""

    doing: str
    keys: Sequence[str]

    def __str__(self) -> str:
        if not self.keys:
            return self.doing
        shown = ", ".join(map(repr, self.keys[:_SHOWN_KEYS]))
        more = len(self.keys) - _SHOWN_KEYS
        return f"{self.doing} of {shown}" + (f" and {more} more" if more > 0 else "")


class _Lease:
    """The right of one thread to use a connection, which is None until it is opened."""

    __slots__ = ("connection", "is_main")

    def __init__(self, connection: TCPConnection | None) -> None:
        self.connection = connection
        self.is_main = True


class TCPClient:
    """Connections to one server, for all threads of one process; a forked child needs its own.

    Blocks, at construction too, until the server has answered. Every method may raise
    StoreConnectionError, after which there is no more use in calling any; timeouts are in seconds.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host, self._port = host, port
        self._reply_s = max(timeout_s, _MIN_REPLY_S)
        self._pid = os.getpid()
        self._failure: str | None = None
        """The reason why a connection was lost for good; all later calls fail with it."""
        self._lock = threading.Lock()  # held while the main connection is used, never during a wait
        self._spare: list[TCPConnection] = []
        self._lent: set[_Lease] = set()
        deadline = time.monotonic() + timeout_s
        self._main: TCPConnection | None = self._connect(_Call("connecting", ()), deadline)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the time limit of each answer that needs no waiting: 5 s at least. Does not block."""
        self._reply_s = max(timeout_s, _MIN_REPLY_S)
        main = self._main
        if main is not None and os.getpid() == self._pid:
            try:
                main.bound(self._reply_s)
            except OSError:
                pass  # another thread has just lost it

    def ask(
        self, doing: str, keys: Sequence[str], request: bytes, read: wire.Read[T], *, again: bool
    ) -> T:
        """Send one request and return its answer; `again` allows sending it twice."""
        answer: T = self._once(doing, keys, request, read, again)
        return answer

    def tell(self, doing: str, keys: Sequence[str], request: bytes, *, again: bool) -> None:
        """Send one request that has no answer, and that can be lost after this has returned.

        If it is lost, the next call raises StoreConnectionError.
        """
        self._once(doing, keys, request, None, again)

    def run(self, doing: str, keys: Sequence[str], operation: Operation[T], timeout_s: float) -> T:
        """Carry out an operation that may have to wait. Raises StoreTimeoutError."""
        call = _Call(doing, keys)
        self._check_usable(call)
        started = time.monotonic()
        lease = self._take()
        answer: Any = None
        try:
            while True:
                step = operation.send(answer)
                if isinstance(step, Wait) and lease.is_main:
                    self._take_away(lease)
                    # `close` has either seen this connection or been seen here.
                    self._check_usable(call)
                answer = self._perform(call, lease, step, started + timeout_s)
        except StopIteration as end:
            result: T = end.value
            return result
        except MissingError as error:
            missing = [wire.key_shown(key) for key in error.keys]
            raise StoreTimeoutError(doing, missing, time.monotonic() - started) from None
        finally:
            self._give_back(lease)

    def close(self) -> None:
        """Close all connections; running calls end with StoreConnectionError.

        May be called again.
        """
        if os.getpid() != self._pid:
            # The other process goes on using them: here are only copies of its descriptors.
            for connection in (self._main, *self._spare, *self._lent_now()):
                if connection is not None:
                    connection.close()
            return
        self._failure = self._failure or "it has been closed"
        # `_take_away` goes the other way round: so none is missed between the two.
        for busy in (self._main, *self._lent_now()):
            if busy is not None:
                busy.interrupt()
        with self._lock:
            idle, self._main, self._spare = [self._main, *self._spare], None, []
            for connection in idle:
                if connection is not None:
                    connection.close()

    def _lent_now(self) -> list[TCPConnection | None]:
        return [lease.connection for lease in tuple(self._lent)]

    # Taking turns

    def _take(self) -> _Lease:
        self._lock.acquire()
        if self._main is None and self._spare:
            self._main = self._spare.pop()
        return _Lease(self._main)

    def _take_away(self, lease: _Lease) -> None:
        """Reserve the main connection for this lease's wait, so that other threads get another one.

        Nothing that was written to it before is still unanswered: an operation asks before it
        waits.
        """
        lease.is_main = False
        self._lent.add(lease)
        self._main = None
        self._lock.release()

    def _give_back(self, lease: _Lease) -> None:
        if not lease.is_main:
            self._lock.acquire()
            self._lent.discard(lease)
        try:
            connection = lease.connection
            if self._failure is not None and connection is not None:
                connection.close()
                connection = None
            if lease.is_main or self._main is None:
                self._main = connection
            elif connection is not None:
                self._spare.append(connection)
        finally:
            self._lock.release()

    # Sending

    def _once(
        self,
        doing: str,
        keys: Sequence[str],
        request: bytes,
        read: wire.Read[Any] | None,
        may_repeat: bool,
    ) -> Any:
        """Send one request and return its answer, on the main connection if that works.

        That usual case makes no objects for the operation, to be fast. Else the request is sent as
        any other operation, on a new connection if need be.
        """
        losses = 0
        if os.getpid() == self._pid:
            with self._lock:
                main = self._main
                if (
                    main is not None
                    and self._failure is None
                    and not ((read is None or not may_repeat) and main.is_gone())
                ):
                    owes_answer = main.owes_answer
                    try:
                        return main.send(request) if read is None else main.exchange(request, read)
                    except ConnectionLostError as lost:
                        self._main, losses = None, 1
                        call = _Call(doing, keys)
                        self._judge(
                            call, lost, losses, may_repeat=may_repeat, owes_answer=owes_answer
                        )
                    except BaseException:
                        self._main = None
                        raise
        call = _Call(doing, keys)
        self._check_usable(call)
        lease = self._take()
        try:
            step = Exchange(request, read, may_repeat)
            return self._perform(call, lease, step, 0.0, losses)
        finally:
            self._give_back(lease)

    def _perform(
        self, call: _Call, lease: _Lease, step: Exchange | Wait, deadline: float, losses: int = 0
    ) -> Any:
        # Some requests may not be sent twice, and the loss of others would never be noticed.
        looks_first = not step.is_repeatable or (isinstance(step, Exchange) and step.read is None)
        while True:
            connection = lease.connection or self._reconnect(call, lease, deadline)
            owes_answer = connection.owes_answer
            is_sent = False
            try:
                if looks_first and connection.is_gone():
                    raise ConnectionLostError(LOST_BY_PEER)
                is_sent = True
                return _step(connection, step, deadline)
            except ConnectionLostError as lost:
                lease.connection = None
                connection.close()
                losses += 1
                may_repeat = step.is_repeatable or not is_sent
                self._judge(call, lost, losses, may_repeat=may_repeat, owes_answer=owes_answer)
            except BaseException:
                lease.connection = None
                raise

    # Lost connections

    def _check_usable(self, call: _Call) -> None:
        """Check that the client can be used.

        Raises StoreConnectionError in a process that has been forked, and after a failure.
        """
        reason = self._failure
        if os.getpid() != self._pid:
            reason = (
                f"it was opened by process {self._pid}, and a forked process can't share its "
                "connection: open another with clone()"
            )
        if reason is not None:
            raise self._error(call, reason)

    def _judge(
        self,
        call: _Call,
        lost: ConnectionLostError,
        losses: int,
        *,
        may_repeat: bool,
        owes_answer: bool,
    ) -> None:
        """Return if the request may be sent again; raise StoreConnectionError if not.

        `losses` is how many connections this call has lost. `owes_answer`: a request without an
        answer was written before, and may have got lost with the connection unnoticed.
        """
        is_harmless = may_repeat and not owes_answer and not lost.is_timeout
        if is_harmless and losses <= MAX_LOSSES and self._failure is None:
            return
        reason = str(lost) + (", and what was written before may be lost" if owes_answer else "")
        self._failure = self._failure or reason
        raise self._error(call, self._failure) from lost

    def _reconnect(self, call: _Call, lease: _Lease, deadline: float) -> TCPConnection:
        self._check_usable(call)
        patience = max(deadline, time.monotonic() + self._reply_s)
        lease.connection = self._connect(call, patience)
        # `close` may have come too early to see it.
        self._check_usable(call)
        return lease.connection

    def _connect(self, call: _Call, deadline: float) -> TCPConnection:
        started = time.monotonic()
        for pause_s in growing_pauses(_FIRST_PAUSE_S, _LAST_PAUSE_S, growth=2):
            # The first attempt is made even if there is no time left.
            left_s = deadline - time.monotonic()
            limit_s = min(max(left_s, _MIN_ATTEMPT_S), _MAX_ATTEMPT_S)
            try:
                return TCPConnection(self._host, self._port, limit_s, self._reply_s)
            except ConnectionLostError as error:
                lost = error
            now = time.monotonic()
            if now >= deadline or self._failure is not None:
                self._failure = self._failure or str(lost)
                reason = f"{self._failure} (tried for {now - started:.3f} s)"
                raise self._error(call, reason) from lost
            time.sleep(min(pause_s * uniform(0.5, 1.0), deadline - now))
        raise InvariantError("there is always one more pause")

    def _error(self, call: _Call, reason: str) -> StoreConnectionError:
        return StoreConnectionError(peer_name(self._host, self._port), str(call), reason)


def _step(connection: TCPConnection, step: Exchange | Wait, deadline: float) -> Any:
    if isinstance(step, Wait):
        if step.is_repeatable and time.monotonic() >= deadline:
            return False
        return connection.wait(step.request, deadline)
    if step.read is None:
        return connection.send(step.request)
    return connection.exchange(step.request, step.read)
