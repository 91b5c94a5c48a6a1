"""The c10d `TCPStore` protocol, server side: bytes in any segmentation become typed requests.

A request is one opcode byte and its fields; a string is a u64 length and that many bytes; all
integers are little-endian. Nothing else frames a request, so the session must follow the fields
themselves. It is a generator that stops where the bytes stop: a request of n bytes costs O(n) in
however many pieces it arrives, and one that never arrives completely is never seen at all.

Replies carry neither opcode nor status: the only error a server can tell is to close the
connection.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn, TypeVar

from msgspec import Struct

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

# What a server needs of the shared fields, it finds here too.
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
    "Opcode",
    "encode_i64",
    "encode_string",
]


class Set(Struct, frozen=True):
    """Store a value, whatever was there."""

    key: bytes
    value: bytes


class CompareSet(Struct, frozen=True):
    """Store `desired` if the key has `expected`; answered with what is there afterwards."""

    key: bytes
    expected: bytes
    desired: bytes


class Get(Struct, frozen=True):
    """Answered with the value; a missing key with an empty one."""

    key: bytes


class Add(Struct, frozen=True):
    """Add to a counter kept as decimal text; answered with the sum."""

    key: bytes
    delta: int


class Check(Struct, frozen=True):
    """Answered at once: are all of these there?"""

    keys: tuple[bytes, ...]


class Wait(Struct, frozen=True):
    """Answered when all of these are there."""

    keys: tuple[bytes, ...]


class CountKeys(Struct, frozen=True):
    """Answered with the number of keys."""


class DeleteKey(Struct, frozen=True):
    """Answered with how many keys were deleted, 0 or 1."""

    key: bytes


class Append(Struct, frozen=True):
    """Lengthen a value; a missing key counts as empty."""

    key: bytes
    value: bytes


class MultiGet(Struct, frozen=True):
    """Answered with the values, in order."""

    keys: tuple[bytes, ...]


class MultiSet(Struct, frozen=True):
    """Store all pairs at once: nobody sees a part of them."""

    pairs: tuple[tuple[bytes, bytes], ...]


class CancelWait(Struct, frozen=True):
    """Give up a pending `Wait` or `Barrier`; always answered."""


class Ping(Struct, frozen=True):
    """Answered with the same number."""

    nonce: int


class QueuePush(Struct, frozen=True):
    """Put an item at the end of a queue."""

    key: bytes
    value: bytes


class QueuePop(Struct, frozen=True):
    """Take the first item; answered with the length before, then the item if there was one."""

    key: bytes


class QueueLength(Struct, frozen=True):
    """Answered with the number of items."""

    key: bytes


class ListKeys(Struct, frozen=True):
    """Answered with all keys."""


class Barrier(Struct, frozen=True):
    """Count one more; answered when `world_size` have been counted."""

    key: bytes
    world_size: int


Request = (
    Set
    | CompareSet
    | Get
    | Add
    | Check
    | Wait
    | CountKeys
    | DeleteKey
    | Append
    | MultiGet
    | MultiSet
    | CancelWait
    | Ping
    | QueuePush
    | QueuePop
    | QueueLength
    | ListKeys
    | Barrier
)

T = TypeVar("T")
_Parse = Generator[None, None, T]
"""Yields when it needs more bytes, returns what it parsed."""


class ServerSession:
    """What one client sends, parsed. VALIDATE is required, comes first, and is consumed here.

    `receive` bytes, then take requests with `next_request` until it returns None. Nothing is
    parsed ahead of that, so a server that stops asking has stopped working for this client.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._request_start = 0
        self._requests = self._parse()
        self._error: ProtocolError | None = None

    def receive(self, data: bytes) -> None:
        """Adds bytes in the order of their arrival."""
        if self._position:
            del self._buffer[: self._position]
            self._request_start -= self._position
            self._position = 0
        self._buffer += data

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
        first = yield from self._take(1)
        if first[0] != Opcode.VALIDATE:
            raise ProtocolError(
                f"the first byte is 0x{first[0]:02x}, not a c10d VALIDATE: "
                "this port speaks torch's TCPStore protocol"
            )
        yield from self._validate()
        while True:
            self._request_start = self._position
            number = (yield from self._take(1))[0]
            if number == Opcode.VALIDATE:
                yield from self._validate()
                continue
            yield (yield from self._request(number))

    def _validate(self) -> _Parse[None]:
        (magic,) = U32.unpack((yield from self._take(4)))
        if magic != VALIDATE_MAGIC:
            raise ProtocolError(
                f"the c10d VALIDATE magic is 0x{magic:08x}, expected 0x{VALIDATE_MAGIC:08x}"
            )

    def _request(self, number: int) -> _Parse[Request]:
        match number:
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
                return Check((yield from self._keys()))
            case Opcode.WAIT:
                return Wait((yield from self._keys()))
            case Opcode.GETNUMKEYS:
                return CountKeys()
            case Opcode.DELETE_KEY:
                return DeleteKey((yield from self._key()))
            case Opcode.APPEND:
                return Append((yield from self._key()), (yield from self._value()))
            case Opcode.MULTI_GET:
                return MultiGet((yield from self._keys()))
            case Opcode.MULTI_SET:
                return MultiSet((yield from self._pairs()))
            case Opcode.CANCEL_WAIT:
                return CancelWait()
            case Opcode.PING:
                return Ping(U32.unpack((yield from self._take(4)))[0])
            case Opcode.QUEUE_PUSH:
                return QueuePush((yield from self._key()), (yield from self._value()))
            case Opcode.QUEUE_POP:
                return QueuePop((yield from self._key()))
            case Opcode.QUEUE_LEN:
                return QueueLength((yield from self._key()))
            case Opcode.LIST_KEYS:
                return ListKeys()
            case Opcode.BARRIER:
                return Barrier((yield from self._key()), (yield from self._i64()))
            case _:
                raise ProtocolError(f"unknown c10d opcode {number}; known are 0 to {max(Opcode)}")

    def _take(self, size: int) -> _Parse[bytes]:
        while len(self._buffer) - self._position < size:
            yield
        start, self._position = self._position, self._position + size
        with memoryview(self._buffer) as view:
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
            raise ProtocolError(f"a c10d {what} of {size} bytes is over the limit of {limit}")
        # What this request has used so far: the cursor moves back when the buffer is compacted,
        # and the start of the request with it.
        total = self._position - self._request_start + size
        if total > MAX_REQUEST_BYTES:
            raise ProtocolError(
                f"a c10d request of {total} bytes is over the limit of {MAX_REQUEST_BYTES}"
            )
        return (yield from self._take(size))

    def _count(self) -> _Parse[int]:
        count: int = U64.unpack((yield from self._take(8)))[0]
        if count > MAX_KEYS_PER_REQUEST:
            raise ProtocolError(
                f"a c10d request of {count} keys is over the limit of {MAX_KEYS_PER_REQUEST}"
            )
        return count

    def _keys(self) -> _Parse[tuple[bytes, ...]]:
        keys = []
        for _ in range((yield from self._count())):
            keys.append((yield from self._key()))  # noqa: PERF401 - yields
        return tuple(keys)

    def _pairs(self) -> _Parse[tuple[tuple[bytes, bytes], ...]]:
        pairs = []
        for _ in range((yield from self._count())):
            pairs.append(((yield from self._key()), (yield from self._value())))  # noqa: PERF401
        return tuple(pairs)


def encode_ping(nonce: int) -> bytes:
    """The reply to a `Ping`."""
    return U32.pack(nonce)
