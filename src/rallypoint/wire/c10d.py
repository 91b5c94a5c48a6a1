"""The c10d `TCPStore` protocol, server side: bytes in any segmentation become typed requests.

A request is one opcode byte and its fields; a string is a u64 length and that many bytes; all
integers are little-endian. Nothing else frames a request, so the session must follow the fields
themselves. A request that is there as a whole is read in one go (`c10d_whole`). One that is not is
tried once more when more has come, and then followed by generators that stop where the bytes stop:
a request of n bytes costs O(n) in however many pieces it arrives, and one that never arrives
completely is never seen at all.

Replies carry neither opcode nor status: the only error a server can tell is to close the
connection.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn, TypeVar

from rallypoint.errors import ProtocolError
from rallypoint.wire.c10d_fields import (
    I64,
    MAX_KEY_BYTES,
    MAX_KEYS_PER_REQUEST,
    MAX_REQUEST_BYTES,
    MAX_VALUE_BYTES,
    NOT_READY,
    READY,
    STOP_WAITING,
    U32,
    U64,
    VALIDATE_MAGIC,
    WAIT_CANCELED,
    Opcode,
    encode_i64,
    encode_string,
)
from rallypoint.wire.c10d_requests import (
    Add,
    Append,
    Barrier,
    CancelWait,
    Check,
    CompareSet,
    CountKeys,
    DeleteKey,
    Get,
    ListKeys,
    MultiGet,
    MultiSet,
    Ping,
    QueueLength,
    QueuePop,
    QueuePush,
    Request,
    Set,
    Wait,
)
from rallypoint.wire.c10d_whole import WHOLE, oversized, too_many

# What a server needs of the protocol, it finds here.
__all__ = [
    "MAX_KEY_BYTES",
    "MAX_KEYS_PER_REQUEST",
    "MAX_REQUEST_BYTES",
    "MAX_VALUE_BYTES",
    "NOT_READY",
    "READY",
    "STOP_WAITING",
    "VALIDATE_MAGIC",
    "WAIT_CANCELED",
    "Add",
    "Append",
    "Barrier",
    "CancelWait",
    "Check",
    "CompareSet",
    "CountKeys",
    "DeleteKey",
    "Get",
    "ListKeys",
    "MultiGet",
    "MultiSet",
    "Opcode",
    "Ping",
    "QueueLength",
    "QueuePop",
    "QueuePush",
    "Request",
    "ServerSession",
    "Set",
    "Wait",
    "encode_i64",
    "encode_ping",
    "encode_string",
]

T = TypeVar("T")
_Parse = Generator[None, None, T]
"""Yields when it needs more bytes, returns what it parsed."""

_VALIDATE_BYTES = 5
_TRIED_TWICE = frozenset(WHOLE) - {Opcode.CHECK, Opcode.WAIT}
"""The others are lists: what `WHOLE` does not read of them may be there all the same."""
_ONLY_KEYS = (MAX_KEY_BYTES, MAX_KEY_BYTES)
_KEYS_AND_VALUES = (MAX_KEY_BYTES, MAX_VALUE_BYTES)


class ServerSession:
    """What one client sends, parsed. VALIDATE is required, comes first, and is consumed here.

    `receive` bytes, then take requests with `next_request` until it returns None. Nothing is
    parsed ahead of that, so a server that stops asking has stopped working for this client.
    """

    is_validated = False
    """Whether the first VALIDATE has come."""
    is_partial = False
    """After `next_request` gave None: whether a part of a request has come, and more must follow.
    True until the first VALIDATE is complete."""

    def __init__(self) -> None:
        self._data = b""  # came since the parser last looked
        self._buffer: bytearray | None = None  # where a request that comes in pieces is followed
        self._position = 0  # in _buffer
        self._request_bytes = 0  # of the request that is followed, so far
        self._requests = self._parse()
        self._error: ProtocolError | None = None

    def receive(self, data: bytes) -> None:
        """Adds bytes in the order of their arrival."""
        if self._buffer is not None:
            if self._position:
                del self._buffer[: self._position]
                self._position = 0
            self._buffer += data
        elif self._data:
            self._data += data
        else:
            self._data = data

    def next_request(self) -> Request | None:
        """The next complete request, or None until more bytes have been received.

        Raises ProtocolError, again at every further call: the connection must be closed.
        Requests before the broken one have been returned, whatever the segmentation.
        """
        if self._error is not None:
            raise self._error
        try:
            return next(self._requests)
        except ProtocolError as error:
            self._error = error
            raise

    def _parse(self) -> Generator[Request | None, None, NoReturn]:
        self.is_partial = True
        rest = yield from self._first_validate()
        self.is_validated = True
        whole = WHOLE
        while True:
            tried, self.is_partial = bool(rest), False
            data, self._data = rest + self._data, b""
            at, size = 0, len(data)
            while at < size:
                read = whole.get(data[at])
                parsed = read(data, at + 1) if read is not None else None
                if parsed is None:
                    break
                request, at = parsed
                yield request
            rest, data = data[at:], b""  # nothing of it is kept while the client is idle
            if rest and ((tried and at == 0) or rest[0] not in _TRIED_TWICE):
                followed = yield from self._follow(rest)
                if followed is not None:
                    yield followed
                rest = bytes(self._buffered()[self._position :])
                self._buffer = None
            elif not self._data:
                self.is_partial = bool(rest)
                yield None

    def _first_validate(self) -> Generator[None, None, bytes]:
        """Returns what follows it."""
        while len(self._data) < _VALIDATE_BYTES:
            if self._data and self._data[0] != Opcode.VALIDATE:
                break
            yield
        if self._data[0] != Opcode.VALIDATE:
            raise ProtocolError(
                f"the first byte is 0x{self._data[0]:02x}, not a c10d VALIDATE: "
                "this port speaks torch's TCPStore protocol"
            )
        _check_magic(self._data[1:_VALIDATE_BYTES])
        rest, self._data = self._data[_VALIDATE_BYTES:], b""
        return rest

    # A request that comes in pieces

    def _follow(self, start: bytes) -> Generator[None, None, Request | None]:
        """One request from its first byte; None for a VALIDATE. More may be buffered after it."""
        self.is_partial = True
        self._buffer, self._position, self._request_bytes = bytearray(start), 1, 0
        return (yield from self._request(start[0]))

    def _request(self, number: int) -> _Parse[Request | None]:
        match number:
            case Opcode.VALIDATE:
                _check_magic((yield from self._take(4)))
                return None
            case Opcode.SET:
                return Set((yield from self._key()), (yield from self._value()))
            case Opcode.COMPARE_SET:
                key = yield from self._key()
                return CompareSet(key, (yield from self._value()), (yield from self._value()))
            case Opcode.GET:
                return Get((yield from self._key()))
            case Opcode.ADD:
                return Add((yield from self._key()), (yield from self._i64()))
            case Opcode.CHECK:
                return Check(tuple((yield from self._list(_ONLY_KEYS))))
            case Opcode.WAIT:
                return Wait(tuple((yield from self._list(_ONLY_KEYS))))
            case Opcode.DELETE_KEY:
                return DeleteKey((yield from self._key()))
            case Opcode.APPEND:
                return Append((yield from self._key()), (yield from self._value()))
            case Opcode.MULTI_GET:
                return MultiGet(tuple((yield from self._list(_ONLY_KEYS))))
            case Opcode.MULTI_SET:
                found = yield from self._list(_KEYS_AND_VALUES)
                return MultiSet(tuple(zip(found[::2], found[1::2], strict=True)))
            case Opcode.PING:
                return Ping(U32.unpack((yield from self._take(4)))[0])
            case Opcode.QUEUE_PUSH:
                return QueuePush((yield from self._key()), (yield from self._value()))
            case Opcode.QUEUE_POP:
                return QueuePop((yield from self._key()))
            case Opcode.QUEUE_LEN:
                return QueueLength((yield from self._key()))
            case Opcode.BARRIER:
                return Barrier((yield from self._key()), (yield from self._i64()))
            case _:
                raise ProtocolError(f"unknown c10d opcode {number}; known are 0 to {max(Opcode)}")

    def _buffered(self) -> bytearray:
        assert self._buffer is not None, "a request is being followed"
        return self._buffer

    def _take(self, size: int) -> _Parse[bytes]:
        buffer = self._buffered()
        while len(buffer) - self._position < size:
            yield
        start, self._position = self._position, self._position + size
        with memoryview(buffer) as view:
            return bytes(view[start : self._position])

    def _i64(self) -> _Parse[int]:
        value: int = I64.unpack((yield from self._take(8)))[0]
        return value

    def _key(self) -> _Parse[bytes]:
        return (yield from self._string(MAX_KEY_BYTES, "key"))

    def _value(self) -> _Parse[bytes]:
        return (yield from self._string(MAX_VALUE_BYTES, "value"))

    def _string(self, limit: int, what: str) -> _Parse[bytes]:
        (size,) = U64.unpack((yield from self._take(8)))
        if size > limit:
            raise oversized(size, limit, what)
        return (yield from self._take(size))

    def _list(self, limits: tuple[int, int]) -> _Parse[list[bytes]]:
        """A count, then so many strings (so many pairs, if the two limits differ)."""
        (count,) = U64.unpack((yield from self._take(8)))
        if count > MAX_KEYS_PER_REQUEST:
            raise too_many(count)
        wanted = count if limits[0] == limits[1] else 2 * count
        found: list[bytes] = []
        while len(found) < wanted:
            # The next string must be there before anything is copied: so each byte is copied twice
            # at most, however the request was cut.
            while len(self._buffered()) - self._position < 8:
                yield
            size = U64.unpack_from(self._buffered(), self._position)[0]
            self._check_size(size, limits[len(found) & 1], limits)
            while len(self._buffered()) - self._position < 8 + size:
                yield
            self._position += self._read_strings(found, wanted, limits)
        return found

    def _read_strings(self, found: list[bytes], wanted: int, limits: tuple[int, int]) -> int:
        """Adds the strings that are buffered as a whole; returns how many bytes they took."""
        with memoryview(self._buffered()) as view:
            data = bytes(view[self._position :])
        unpack, end, at = U64.unpack_from, len(data), 0
        odd, missing, total = len(found) & 1, wanted - len(found), self._request_bytes
        while missing and at + 8 <= end:
            size = unpack(data, at)[0]
            if size > limits[odd] or total + at + size > MAX_REQUEST_BYTES:
                self._check_size(size, limits[odd], limits)
                raise ProtocolError(
                    f"a c10d request of {total + at + size} bytes is over the limit of "
                    f"{MAX_REQUEST_BYTES}"
                )
            start = at + 8
            if start + size > end:
                break
            at = start + size
            found.append(data[start:at])
            odd ^= 1
            missing -= 1
        self._request_bytes += at
        return at

    @staticmethod
    def _check_size(size: int, limit: int, limits: tuple[int, int]) -> None:
        if size > limit:
            raise oversized(size, limit, "key" if limit == limits[0] else "value")


def encode_ping(nonce: int) -> bytes:
    """The reply to a `Ping`."""
    return U32.pack(nonce)


def _check_magic(packed: bytes) -> None:
    (magic,) = U32.unpack(packed)
    if magic != VALIDATE_MAGIC:
        raise ProtocolError(
            f"the c10d VALIDATE magic is 0x{magic:08x}, expected 0x{VALIDATE_MAGIC:08x}"
        )
