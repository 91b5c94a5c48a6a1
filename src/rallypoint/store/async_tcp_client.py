"""The client of a c10d store for asyncio: as `tcp_client`, with tasks in the place of threads.

A cancelled task leaves no disorder: the answer that it was waiting for is read, and thrown away,
by whoever uses the connection next; a wait is cancelled at the server too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Sequence
from typing import Any, TypeVar, cast

from rallypoint.errors import InvariantError, ProtocolError, StoreTimeoutError
from rallypoint.store.tcp_recovery import (
    CLOSED,
    LOST_BY_PEER,
    MIN_REPLY_S,
    NOT_A_STORE,
    ConnectionLostError,
    Recovery,
    attempt_s,
    looks_first,
    pauses,
    peer_name,
    said_by,
    silence,
)
from rallypoint.wire import c10d_client as wire
from rallypoint.wire.c10d_operations import Exchange, MissingError, Operation, Wait

_RECEIVE_BYTES = 1 << 20

T = TypeVar("T")


class AsyncTCPConnection:
    """A connection after its handshake, for one task at a time. See `TCPConnection`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply_s: float
    ) -> None:
        self.owes_answer = False
        self.reply_s = reply_s
        self._reader, self._writer = reader, writer
        self._buffer = wire.ReplyBuffer()
        self._due: Generator[None, None, Any] | None = None  # what comes next, wanted or not

    @classmethod
    async def connect(
        cls, host: str, port: int, limit_s: float, reply_s: float
    ) -> AsyncTCPConnection:
        """Connects once. Raises ConnectionLostError after `limit_s` seconds at the latest."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(limit_s):
                reader, writer = await asyncio.open_connection(host, port)
                connection = cls(reader, writer, limit_s)
                nonce = os.getpid() & 0xFFFFFFFF
                if await connection.exchange(wire.handshake(nonce), wire.read_ping) != nonce:
                    raise ConnectionLostError(NOT_A_STORE)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, OSError):
                raise ConnectionLostError(said_by(error)) from error
            raise
        connection.reply_s = reply_s
        return connection

    async def exchange(self, request: bytes, read: wire.Read[T]) -> T:
        """Sends a request and returns its answer. Raises ConnectionLostError."""
        try:
            async with asyncio.timeout(self.reply_s):
                await self._settle()
                self._writer.write(request)
                self._due = read(self._buffer)
                await self._writer.drain()
                answer: T = await self._settle()
        except OSError as error:
            raise self._lost(error) from error
        self.owes_answer = False
        return answer

    async def send(self, request: bytes) -> None:
        """Sends a request that is not answered. Raises ConnectionLostError."""
        try:
            async with asyncio.timeout(self.reply_s):
                await self._settle()
                self.owes_answer = True
                self._writer.write(request)
                await self._writer.drain()
        except OSError as error:
            raise self._lost(error) from error

    async def wait(self, request: bytes, deadline: float) -> bool:
        """Sends a request that is answered late; whether the answer came before the deadline.

        The deadline is of the loop's clock. Raises ConnectionLostError.
        """
        try:
            async with asyncio.timeout(self.reply_s):
                await self._settle()
            self._writer.write(request)
            self._due = wire.read_check(self._buffer)
            try:
                async with asyncio.timeout_at(deadline):
                    is_answered: bool = await self._settle()
            except (TimeoutError, asyncio.CancelledError) as error:
                self._cancel_wait()
                if isinstance(error, asyncio.CancelledError):
                    raise
                async with asyncio.timeout(self.reply_s):
                    is_answered = not await self._settle()
        except OSError as error:
            raise self._lost(error) from error
        self.owes_answer = False
        return is_answered

    def is_gone(self) -> bool:
        """Whether the peer has closed the connection, as far as is known here."""
        return (
            self._reader.at_eof()
            or self._reader.exception() is not None
            or self._writer.is_closing()
        )

    def close(self) -> None:
        """Sends what is still to be sent, without blocking. Safe to call again."""
        self._writer.close()

    async def wait_closed(self) -> None:
        """Until nothing of it remains."""
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # the peer was faster

    def _cancel_wait(self) -> None:
        if self._due is not None and not self._writer.is_closing():
            self._writer.write(wire.CANCEL_WAIT)
            self._due = wire.read_is_cancelled(self._buffer)

    async def _settle(self) -> Any:
        """Reads the answer that is due, if any. Can be cancelled: it stays due then."""
        if self._due is None:
            return None
        try:
            while True:
                next(self._due)
                data = await self._reader.read(_RECEIVE_BYTES)
                if not data:
                    raise self._broken(LOST_BY_PEER)
                self._buffer.receive(data)
        except StopIteration as end:
            self._due = None
            answer = end.value
        except ProtocolError as error:
            raise self._broken(str(error)) from error
        if not self._buffer.is_empty:
            raise self._broken("the store sent more than it was asked for")
        return answer

    def _broken(self, reason: str) -> ConnectionLostError:
        self._writer.transport.abort()
        return ConnectionLostError(reason)

    def _lost(self, error: OSError) -> ConnectionLostError:
        self._writer.transport.abort()
        if isinstance(error, TimeoutError):
            return silence(self.reply_s)
        return ConnectionLostError(said_by(error))


class _Lease:
    """The right of one task to use a connection; `None` is one that has yet to be opened."""

    __slots__ = ("connection", "is_main")

    def __init__(self, connection: AsyncTCPConnection | None) -> None:
        self.connection = connection
        self.is_main = True


class AsyncTCPClient:
    """Connections to one server, for all tasks of one loop.

    Methods may raise StoreConnectionError, after which there is no more use in calling any;
    timeouts are in seconds.
    """

    def __init__(self, host: str, port: int, timeout_s: float, min_reply_s: float) -> None:
        self._host, self._port = host, port
        self._min_reply_s = min_reply_s
        self._reply_s = max(timeout_s, min_reply_s)
        self._recovery = Recovery(peer_name(host, port), os.getpid())
        self._lock = asyncio.Lock()  # held by whoever uses the main connection, never to wait
        self._main: AsyncTCPConnection | None = None
        self._spare: list[AsyncTCPConnection] = []
        self._open: set[AsyncTCPConnection] = set()

    @classmethod
    async def connect(
        cls, host: str, port: int, timeout_s: float, *, min_reply_s: float = MIN_REPLY_S
    ) -> AsyncTCPClient:
        """A client that has reached its server."""
        client = cls(host, port, timeout_s, min_reply_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        client._main = await client._connect("connecting", (), deadline)
        return client

    def set_timeout(self, timeout_s: float) -> None:
        """How long a plain answer may take: never less than `min_reply_s`."""
        self._reply_s = max(timeout_s, self._min_reply_s)
        for connection in self._open:
            connection.reply_s = self._reply_s

    async def ask(
        self, doing: str, keys: Sequence[str], request: bytes, read: wire.Read[T], *, again: bool
    ) -> T:
        """Sends one request and returns its answer; `again` tells that it may be sent twice."""
        return cast(T, await self._once(doing, keys, Exchange(request, read, again)))

    async def tell(self, doing: str, keys: Sequence[str], request: bytes, *, again: bool) -> None:
        """Sends one request that is not answered. See `TCPClient.tell`."""
        await self._once(doing, keys, Exchange(request, None, again))

    async def run(
        self, doing: str, keys: Sequence[str], operation: Operation[T], timeout_s: float
    ) -> T:
        """Carries out an operation that may have to wait. Raises StoreTimeoutError."""
        self._recovery.check_usable(os.getpid(), doing, keys)
        started = asyncio.get_running_loop().time()
        lease = await self._take()
        answer: Any = None
        try:
            while True:
                step = operation.send(answer)
                if isinstance(step, Wait) and lease.is_main:
                    lease.is_main = False
                    self._main = None
                    self._lock.release()
                answer = await self._perform(doing, keys, lease, step, started + timeout_s)
        except StopIteration as end:
            return cast(T, end.value)
        except MissingError as error:
            missing = [wire.key_shown(key) for key in error.keys]
            waited_s = asyncio.get_running_loop().time() - started
            raise StoreTimeoutError(doing, missing, waited_s) from None
        finally:
            self._give_back(lease)

    async def close(self) -> None:
        """Ends every call that is under way, with StoreConnectionError. Safe to call again."""
        self._recovery.failure = self._recovery.failure or CLOSED
        closing, self._open = self._open, set()
        for connection in closing:
            connection.close()
        for connection in closing:
            await connection.wait_closed()

    async def _take(self) -> _Lease:
        await self._lock.acquire()
        if self._main is None and self._spare:
            self._main = self._spare.pop()
        return _Lease(self._main)

    def _give_back(self, lease: _Lease) -> None:
        connection = lease.connection
        if connection is not None and self._recovery.failure is not None:
            self._forget(connection)
            connection = None
        if lease.is_main:
            self._main = connection
            self._lock.release()
        elif connection is not None:
            # The main connection may be in use: then it has been, or is being, replaced.
            self._spare.append(connection)

    async def _once(self, doing: str, keys: Sequence[str], step: Exchange) -> Any:
        self._recovery.check_usable(os.getpid(), doing, keys)
        lease = await self._take()
        try:
            return await self._perform(doing, keys, lease, step, 0.0)
        finally:
            self._give_back(lease)

    async def _perform(
        self, doing: str, keys: Sequence[str], lease: _Lease, step: Exchange | Wait, deadline: float
    ) -> Any:
        losses = 0
        while True:
            connection = lease.connection
            if connection is None:
                self._recovery.check_usable(os.getpid(), doing, keys)
                patience = max(deadline, asyncio.get_running_loop().time() + self._reply_s)
                connection = lease.connection = await self._connect(doing, keys, patience)
            owes_answer = connection.owes_answer
            is_sent = False
            try:
                if looks_first(step) and connection.is_gone():
                    raise ConnectionLostError(LOST_BY_PEER)
                is_sent = True
                return await _step(connection, step, deadline)
            except ConnectionLostError as lost:
                lease.connection = None
                self._forget(connection)
                losses += 1
                may_repeat = step.is_repeatable or not is_sent
                self._recovery.judge(
                    lost, losses, doing, keys, may_repeat=may_repeat, owes_answer=owes_answer
                )

    async def _connect(
        self, doing: str, keys: Sequence[str], deadline: float
    ) -> AsyncTCPConnection:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for pause_s in pauses():
            try:
                connection = await AsyncTCPConnection.connect(
                    self._host, self._port, attempt_s(deadline - loop.time()), self._reply_s
                )
            except ConnectionLostError as error:
                lost = error
            else:
                self._open.add(connection)
                if self._recovery.failure is not None:  # closed meanwhile
                    self._forget(connection)
                self._recovery.check_usable(os.getpid(), doing, keys)
                return connection
            if loop.time() >= deadline or self._recovery.failure is not None:
                tried_s = loop.time() - started
                raise self._recovery.give_up_connecting(lost, doing, keys, tried_s) from lost
            await asyncio.sleep(min(pause_s, deadline - loop.time()))
        raise InvariantError("there is always one more pause")

    def _forget(self, connection: AsyncTCPConnection) -> None:
        self._open.discard(connection)
        connection.close()


async def _step(connection: AsyncTCPConnection, step: Exchange | Wait, deadline: float) -> Any:
    if isinstance(step, Wait):
        if step.is_repeatable and asyncio.get_running_loop().time() >= deadline:
            return False
        return await connection.wait(step.request, deadline)
    if step.read is None:
        return await connection.send(step.request)
    return await connection.exchange(step.request, step.read)
