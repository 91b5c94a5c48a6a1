"""The c10d `TCPStore` protocol, client side: requests become bytes, bytes become replies. Pure.

Replies carry neither opcode nor length, so a request goes with the function that reads its reply.
Such a function is a generator that stops where the bytes stop, and takes exactly its own bytes, in
whatever pieces they arrive.

A key or value over the protocol's limits makes a server close the connection without an error; the
encoders refuse them instead, with ValueError, before anything has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from operator import index
from typing import Any, TypeVar

from rallypoint.errors import ProtocolError
from rallypoint.wire.c10d_fields import (
    I64,
    I64_MAX,
    I64_MIN,
    MAX_KEY_BYTES,
    MAX_KEYS_PER_REQUEST,
    MAX_REQUEST_BYTES,
    MAX_VALUE_BYTES,
    U32,
    U64,
    VALIDATE_MAGIC,
    Opcode,
    encode_string,
)

MAX_REPLY_VALUE_BYTES = 1 << 30
"""The largest value in a reply, in bytes; appends can make it larger than a request may be."""
_SHOWN_BYTES = 40

T = TypeVar("T")
U = TypeVar("U")
_VALIDATE = bytes((Opcode.VALIDATE,)) + U32.pack(VALIDATE_MAGIC)
_PING = bytes((Opcode.PING,))
_COMPARE_SET = bytes((Opcode.COMPARE_SET,))
_MULTI_SET = bytes((Opcode.MULTI_SET,))
JOINED_KEY = b"init/"
"""The key of the counter by which a client counts itself in, if the master is to wait for it."""

# Fields


def wired_key(key: str) -> bytes:
    """Return a user's key in the form in which it is sent: with a slash before it.

    Raises TypeError for anything but text.
    """
    try:
        return b"/" + key.encode(errors="surrogateescape")
    except AttributeError:
        raise TypeError(f"a store's key is str, not {type(key).__name__}: {key!r}") from None


def key_shown(key: bytes) -> str:
    """Return the user's key for a key in the form in which it is sent; reverses `wired_key`."""
    return key.removeprefix(b"/").decode(errors="surrogateescape")


def key_field(key: bytes) -> bytes:
    """Encode a key and its length for a request. Raises ValueError for too long a key."""
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(
            f"the key {key[:_SHOWN_BYTES]!r}... has {len(key)} bytes, more than the "
            f"{MAX_KEY_BYTES} that a store takes"
        )
    return U64.pack(len(key)) + key


def value_field(value: bytes) -> bytes:
    """Encode a value and its length for a request. Raises ValueError for too long a value."""
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(
            f"a value has {len(value)} bytes, more than the {MAX_VALUE_BYTES} that a store takes"
        )
    return encode_string(value)


def _check_count(count: int) -> None:
    if count > MAX_KEYS_PER_REQUEST:
        raise ValueError(
            f"{count} keys are more than the {MAX_KEYS_PER_REQUEST} that one request can have"
        )


# Requests


def handshake(nonce: int) -> bytes:
    """Return the first bytes to send on a connection, with a PING; `read_ping` reads the reply."""
    return _VALIDATE + ping(nonce)


def ping(nonce: int) -> bytes:
    """Return a PING request with a nonce of 32 bits; `read_ping` reads the reply."""
    return _PING + U32.pack(nonce)


def compare_set(key: bytes, expected: bytes, desired: bytes) -> bytes:
    """Return a COMPARE_SET request; `read_string` reads the reply.

    Raises ValueError for a key or value that is too long.
    """
    return b"".join((_COMPARE_SET, key_field(key), value_field(expected), value_field(desired)))


def multi_set(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the request to set several values, which gets no reply.

    It is one request, so that a server can store all values or none. Raises ValueError if they do
    not fit into one.
    """
    _check_count(len(pairs))
    parts = [_MULTI_SET, U64.pack(len(pairs))]
    for key, value in pairs:
        parts += (key_field(key), value_field(value))
    size = sum(map(len, parts))
    if size > MAX_REQUEST_BYTES:
        raise ValueError(
            f"keys and values of {size} bytes are more than the {MAX_REQUEST_BYTES} that one "
            "request can have"
        )
    return b"".join(parts)


def _of_key(opcode: Opcode) -> Callable[[bytes], bytes]:
    first = bytes((opcode,))

    def encode(key: bytes) -> bytes:
        return first + key_field(key)

    return encode


def _of_keys(opcode: Opcode) -> Callable[[Sequence[bytes]], bytes]:
    first = bytes((opcode,))

    def encode(keys: Sequence[bytes]) -> bytes:
        _check_count(len(keys))
        return b"".join((first, U64.pack(len(keys)), *map(key_field, keys)))

    return encode


def _of_key_and_value(opcode: Opcode) -> Callable[[bytes, bytes], bytes]:
    first = bytes((opcode,))

    def encode(key: bytes, value: bytes) -> bytes:
        return first + key_field(key) + value_field(value)

    return encode


def _of_key_and_number(opcode: Opcode, what: str) -> Callable[[bytes, int], bytes]:
    first = bytes((opcode,))

    def encode(key: bytes, number: int) -> bytes:
        if not I64_MIN <= index(number) <= I64_MAX:
            raise ValueError(f"{what} of {number} is not within 64 bits")
        return b"".join((first, key_field(key), I64.pack(number)))

    return encode


# What reads the reply of each stands behind it.
COUNT_KEYS = bytes((Opcode.GETNUMKEYS,))  # read_i64
LIST_KEYS = bytes((Opcode.LIST_KEYS,))  # read_listed
CANCEL_WAIT = bytes((Opcode.CANCEL_WAIT,))  # read_is_cancelled
set_value = _of_key_and_value(Opcode.SET)  # not answered
append = _of_key_and_value(Opcode.APPEND)  # not answered
queue_push = _of_key_and_value(Opcode.QUEUE_PUSH)  # not answered
get = _of_key(Opcode.GET)  # read_string
delete_key = _of_key(Opcode.DELETE_KEY)  # read_i64
queue_pop = _of_key(Opcode.QUEUE_POP)  # read_popped
queue_length = _of_key(Opcode.QUEUE_LEN)  # read_i64
check = _of_keys(Opcode.CHECK)  # read_check
wait = _of_keys(Opcode.WAIT)  # read_check, possibly much later
multi_get = _of_keys(Opcode.MULTI_GET)  # read_strings, of as many
add = _of_key_and_number(Opcode.ADD, "an amount")  # read_i64
barrier = _of_key_and_number(Opcode.BARRIER, "a world size")  # read_check, possibly much later


# Replies


class ReplyBuffer:
    """The received bytes that were not parsed yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.position = 0

    def receive(self, data: bytes) -> None:
        """Add bytes in the order of their arrival."""
        if self.position:
            del self.data[: self.position]
            self.position = 0
        self.data += data

    @property
    def is_empty(self) -> bool:
        """Whether all bytes that were received have been parsed."""
        return self.position == len(self.data)

    def take(self, size: int) -> ReplyReader[bytes]:
        """Parse the next `size` bytes: yield until they have been received, and return them."""
        while len(self.data) - self.position < size:
            yield
        start, self.position = self.position, self.position + size
        with memoryview(self.data) as view:
            return bytes(view[start : self.position])


ReplyReader = Generator[None, None, T]
"""A parser of a reply: yields when it needs more bytes, returns the parsed value; may raise
ProtocolError."""
Read = Callable[[ReplyBuffer], ReplyReader[T]]


def read_flag(buffer: ReplyBuffer) -> ReplyReader[int]:
    """Read the reply of a CHECK, WAIT, BARRIER or CANCEL_WAIT: 0 or 1.

    Raises ProtocolError for any other byte.
    """
    (flag,) = yield from buffer.take(1)
    if flag > 1:
        raise ProtocolError(f"the store answered {flag} where only 0 and 1 have a meaning")
    return flag


def read_check(buffer: ReplyBuffer) -> ReplyReader[bool]:
    """Read the reply of a CHECK, WAIT or BARRIER: whether all keys exist, or all clients came."""
    return (yield from read_flag(buffer)) == 0


def read_is_cancelled(buffer: ReplyBuffer) -> ReplyReader[bool]:
    """Read the reply of a CANCEL_WAIT; return whether the wait before it was cancelled.

    False if the wait was answered first: then that answer is read too.
    """
    # That answer may have been under way: then it comes first.
    is_cancelled = (yield from read_flag(buffer)) == 1
    if not is_cancelled and (yield from read_flag(buffer)) != 1:
        raise ProtocolError("the store did not answer that a wait is cancelled")
    return is_cancelled


def read_i64(buffer: ReplyBuffer) -> ReplyReader[int]:
    """Read an integer: a counter or a length."""
    number: int = I64.unpack((yield from buffer.take(8)))[0]
    return number


def read_ping(buffer: ReplyBuffer) -> ReplyReader[int]:
    """Read the reply of a PING: its nonce."""
    nonce: int = U32.unpack((yield from buffer.take(4)))[0]
    return nonce


def read_string(buffer: ReplyBuffer) -> ReplyReader[bytes]:
    """Read one value."""
    (value,) = yield from _strings(buffer, 1, MAX_REPLY_VALUE_BYTES, "value")
    return value


def read_strings(count: int) -> Read[list[bytes]]:
    """Return a parser of this number of values."""

    def read(buffer: ReplyBuffer) -> ReplyReader[list[bytes]]:
        return (yield from _strings(buffer, count, MAX_REPLY_VALUE_BYTES, "value"))

    return read


def read_popped(buffer: ReplyBuffer) -> ReplyReader[bytes | None]:
    """Read the reply of a queue pop: the first item, or None for an empty queue."""
    length = yield from read_i64(buffer)
    if length < 0:
        raise ProtocolError(f"the store says that a queue has {length} items")
    return (yield from read_string(buffer)) if length else None


def read_listed(buffer: ReplyBuffer) -> ReplyReader[list[bytes]]:
    """Read the reply of a LIST_KEYS: the keys in the form in which they are sent."""
    count = yield from read_i64(buffer)
    if count < 0:
        raise ProtocolError(f"the store says that it has {count} keys")
    return (yield from _strings(buffer, count, MAX_KEY_BYTES, "key"))


def both(first: Read[T], second: Read[U]) -> Read[tuple[T, U]]:
    """Return a parser of the replies to two requests that were sent together."""

    def read(buffer: ReplyBuffer) -> ReplyReader[tuple[T, U]]:
        return ((yield from first(buffer)), (yield from second(buffer)))

    return read


def read_checks(count: int) -> Read[list[bool]]:
    """Return a parser of the replies to this number of CHECKs."""

    def read(buffer: ReplyBuffer) -> ReplyReader[list[bool]]:
        checks = []
        for _ in range(count):
            checks.append((yield from read_check(buffer)))  # noqa: PERF401 - yields
        return checks

    return read


def _strings(buffer: ReplyBuffer, count: int, limit: int, what: str) -> ReplyReader[list[bytes]]:
    # One loop without a generator per string: a reply may have 131,072 of them.
    strings: list[bytes] = []
    data = buffer.data
    start = buffer.position
    while len(strings) < count:
        body = start + U64.size
        if len(data) >= body:
            (size,) = U64.unpack_from(data, start)
            if size > limit:
                raise ProtocolError(f"the store sent a {what} of {size} bytes, over {limit}")
            if len(data) >= body + size:
                start = body + size
                strings.append(bytes(data[body:start]))
                continue
        buffer.position = start
        yield
        start = buffer.position
    buffer.position = start
    return strings


# Replies that are there as a whole: what their generators give, sooner, or else None


def _whole_string(data: bytes) -> bytes | None:
    if len(data) >= U64.size and U64.unpack_from(data)[0] == len(data) - U64.size:
        return data[U64.size :]
    return None


def _whole_i64(data: bytes) -> int | None:
    return I64.unpack(data)[0] if len(data) == I64.size else None


WHOLE: dict[Read[Any], Callable[[bytes], Any]] = {
    read_string: _whole_string,
    read_i64: _whole_i64,
    read_check: {b"\x00": True, b"\x01": False}.get,
}
"""The fast parsers, by the parser that they replace.

Each parses a whole reply at once, or returns None if the data is not exactly one."""
