"""The c10d `TCPStore` protocol, server side. Pure.

The requests as types, and bytes in any segmentation that become such requests.

A request is one opcode byte and its fields; a string is a u64 length and that many bytes; all
integers are little-endian. Nothing else frames a request, so the session follows the fields.

A request with a fixed number of fields is read from its first byte once all of it may be there.
Until then the session knows how many bytes are missing at least, and keeps the pieces as they came.
A list is read string by string. So a request of n bytes costs O(n) in however many pieces it
arrives, and one that never arrives completely is never seen at all.

Replies carry neither opcode nor status: a server reports an error by closing the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Number
from typing import Any

from msgspec import Struct

from rallypoint.errors import ProtocolError
from rallypoint.wire.c10d_fields import (
    I64,
    MAX_KEY_BYTES,
    MAX_KEYS_PER_REQUEST,
    MAX_REQUEST_BYTES,
    MAX_VALUE_BYTES,
    U32,
    U64,
    VALIDATE_MAGIC,
    Opcode,
)


class Set(Struct, frozen=True, gc=False):
    """A c10d client's request to store a value under a key, in place of an earlier one.

    It has no answer.
    """

    key: bytes
    value: bytes


class CompareSet(Struct, frozen=True, gc=False):
    """A c10d client's request to store `desired` under a key if the key has the value `expected`.

    A missing key matches an empty `expected`. The answer is the value that the key has afterwards;
    for a key that is still missing, it is `expected`.
    """

    key: bytes
    expected: bytes
    desired: bytes


class Get(Struct, frozen=True, gc=False):
    """A c10d client's request for the value of a key; that of a missing key is empty."""

    key: bytes


class Add(Struct, frozen=True, gc=False):
    """A c10d client's request to add to a counter, kept as decimal text; a missing key counts as 0.

    The answer is the sum.
    """

    key: bytes
    delta: int


class Check(Struct, frozen=True, gc=False):
    """A c10d client's question whether all of these keys exist. It is answered at once.

    A queue counts as a key while it has an item that no client has reserved.
    """

    keys: tuple[bytes, ...]


class WaitKeys(Struct, frozen=True, gc=False):
    """A c10d client's request to wait for all of these keys.

    The answer comes when each has been there at some time since. A queue counts as a key while it
    has an item that no client has reserved.
    """

    keys: tuple[bytes, ...]


class CountKeys(Struct, frozen=True, gc=False):
    """A c10d client's request for the number of keys, without queues."""


class DeleteKey(Struct, frozen=True, gc=False):
    """A c10d client's request to delete a key. The answer is how many were deleted, 0 or 1."""

    key: bytes


class Append(Struct, frozen=True, gc=False):
    """A c10d client's request to add bytes at the end of a value; a missing key counts as empty.

    It has no answer.
    """

    key: bytes
    value: bytes


class MultiGet(Struct, frozen=True, gc=False):
    """A c10d client's request for the values of several keys.

    The answer has them in order, empty for a missing key.
    """

    keys: tuple[bytes, ...]


class MultiSet(Struct, frozen=True, gc=False):
    """A c10d client's request to store several pairs of key and value at once.

    No client ever sees only some of them. It has no answer.
    """

    pairs: tuple[tuple[bytes, bytes], ...]


class CancelWait(Struct, frozen=True, gc=False):
    """A c10d client's request to give up the client's pending `WaitKeys` or `Barrier`.

    It is answered even if none is pending.
    """


class Ping(Struct, frozen=True, gc=False):
    """A c10d client's request for an answer with the same number."""

    nonce: int


class QueuePush(Struct, frozen=True, gc=False):
    """A c10d client's request to put an item at the end of a queue. It has no answer."""

    key: bytes
    value: bytes


class QueuePop(Struct, frozen=True, gc=False):
    """A c10d client's request to take the first item of a queue, without waiting for one.

    The answer is the length before, then the item if there was one. Items that are reserved for
    other clients do not count, and are not taken.
    """

    key: bytes


class QueueLength(Struct, frozen=True, gc=False):
    """A c10d client's request for the length of a queue.

    Items that are reserved for other clients do not count.
    """

    key: bytes


class ListKeys(Struct, frozen=True, gc=False):
    """A c10d client's request for the names of all keys, without queues."""


class Barrier(Struct, frozen=True, gc=False):
    """A c10d client's request to count one more client at a barrier.

    The answer comes when `world_size` have been counted.
    """

    key: bytes
    world_size: int


StoreRequest = (
    Set
    | CompareSet
    | Get
    | Add
    | Check
    | WaitKeys
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

_VALIDATE = Opcode.VALIDATE.value
_KEY, _VALUE = MAX_KEY_BYTES, MAX_VALUE_BYTES  # a string is named by its limit
_u64 = U64.unpack_from

_Make = Callable[..., StoreRequest]
_Shape = tuple[_Make, tuple[int, ...], Number | None]
"""The fields of a kind of request: its constructor, the greatest lengths of its strings, and the
layout of the number after them; None: there is no number."""
_FIXED: dict[int, _Shape] = {
    Opcode.SET.value: (Set, (_KEY, _VALUE), None),
    Opcode.COMPARE_SET.value: (CompareSet, (_KEY, _VALUE, _VALUE), None),
    Opcode.GET.value: (Get, (_KEY,), None),
    Opcode.ADD.value: (Add, (_KEY,), I64),
    Opcode.GETNUMKEYS.value: (CountKeys, (), None),
    Opcode.DELETE_KEY.value: (DeleteKey, (_KEY,), None),
    Opcode.APPEND.value: (Append, (_KEY, _VALUE), None),
    Opcode.CANCEL_WAIT.value: (CancelWait, (), None),
    Opcode.PING.value: (Ping, (), U32),
    Opcode.QUEUE_PUSH.value: (QueuePush, (_KEY, _VALUE), None),
    Opcode.QUEUE_POP.value: (QueuePop, (_KEY,), None),
    Opcode.QUEUE_LEN.value: (QueueLength, (_KEY,), None),
    Opcode.LIST_KEYS.value: (ListKeys, (), None),
    Opcode.BARRIER.value: (Barrier, (_KEY,), I64),
}
_LISTS: dict[int, tuple[_Make, tuple[int, ...]]] = {
    Opcode.CHECK.value: (Check, (_KEY,)),
    Opcode.WAIT.value: (WaitKeys, (_KEY,)),
    Opcode.MULTI_GET.value: (MultiGet, (_KEY,)),
    Opcode.MULTI_SET.value: (MultiSet, (_KEY, _VALUE)),
}
"""The constructors of requests with a list, by opcode, each with the limits of the lengths of the
strings of one item."""


class ServerSession:
    """The server's parser of the requests of one TCPStore client.

    The client must send a VALIDATE first, which is checked here and returned to nobody.

    Call `receive` with bytes, then `next_request` until it returns None. Requests are parsed one at
    a time, so a server that stops asking does no more work for this client.
    """

    is_validated = False
    """Whether the client's first VALIDATE has come and was valid."""
    is_partial = True
    """Whether a part of a request has arrived and more must follow, after `next_request` returned
    None. True until the first VALIDATE is complete."""

    def __init__(self) -> None:
        self._data, self._at = b"", 0  # what is parsed, and how far
        self._parts: list[bytes] = []  # came after it
        self._came = 0  # bytes in _parts
        self._missing = 1  # so many more must come before there can be a request; 0: look
        self._fixed: dict[int, _Shape] = {}  # nothing, until the client is validated
        self._list: _List | None = None  # the request that is being read, if it is a list
        self._error: ProtocolError | None = None

    def receive(self, data: bytes) -> None:
        """Add bytes from the client, in the order of their arrival."""
        if self._missing == 1 and not self._data and not self._parts:
            self._data, self._missing = data, 0
        else:
            self._parts.append(data)
            self._came += len(data)

    def next_request(self) -> StoreRequest | None:
        """Return the next complete request, or None until more bytes have been received.

        Raises ProtocolError, again at every further call: the connection must be closed.
        Requests before the broken one have been returned, whatever the segmentation.
        """
        if self._error is not None:
            raise self._error
        try:
            while self._came >= self._missing:
                if self._missing:
                    self._data = b"".join((self._data, *self._parts))
                    self._came = self._missing = 0
                    self._parts.clear()
                request = self._parse()
                if request is not None:
                    return request
        except ProtocolError as error:
            self._error = error
            raise
        return None

    def _parse(self) -> StoreRequest | None:
        """Return the next complete request in `_data`; None when more bytes must come first."""
        data, at = self._data, self._at
        size = len(data)
        missing = 1
        while at < size:
            fixed = self._fixed.get(data[at]) if self._list is None else None
            if fixed is not None:
                request, end = _read_fixed(data, at + 1, fixed)
            else:
                request, at, end = self._read(data, at)
            if end > size:
                missing = end - size
                break
            at = end
            if request is not None:
                self._at = at
                return request
        self._data, self._at = data[at:], 0  # what has been parsed is not kept
        self._missing = missing
        self.is_partial = at < size or self._list is not None or not self.is_validated
        return None

    def _read(self, data: bytes, at: int) -> tuple[StoreRequest | None, int, int]:
        """Parse a VALIDATE or a request with a list, or as much of it as has come.

        Returns the request, the position from which to go on, and the known end. The request is
        None for a VALIDATE, and for an incomplete list. The end is past the end of `data` if more
        must come.

        Raises ProtocolError.
        """
        reader = self._list
        if reader is None:
            opcode = data[at]
            if opcode == _VALIDATE or not self.is_validated:
                return None, at, self._validate(data, at)
            if opcode not in _LISTS:
                raise ProtocolError(f"unknown c10d opcode {opcode}; known are 0 to {max(Opcode)}")
            if at + 9 > len(data):
                return None, at, at + 9
            reader = self._list = _List(*_LISTS[opcode], _u64(data, at + 1)[0])
            at += 9
        at, end = reader.read(data, at)
        if end > len(data):
            return None, at, end
        self._list = None
        return reader.request(), at, end

    def _validate(self, data: bytes, at: int) -> int:
        if data[at] != _VALIDATE:
            raise ProtocolError(
                f"the first byte is 0x{data[at]:02x}, not a c10d VALIDATE: "
                "this port speaks torch's TCPStore protocol"
            )
        end = at + 5
        if end <= len(data):
            (magic,) = U32.unpack_from(data, at + 1)
            if magic != VALIDATE_MAGIC:
                raise ProtocolError(
                    f"the c10d VALIDATE magic is 0x{magic:08x}, expected 0x{VALIDATE_MAGIC:08x}"
                )
            self.is_validated, self._fixed = True, _FIXED
        return end


def _read_fixed(data: bytes, at: int, shape: _Shape) -> tuple[StoreRequest | None, int]:
    """Parse a request with these fields from position `at`; return it, and where it ends.

    If it is incomplete, return None, and a position past the end of `data` that it reaches at
    least. Raises ProtocolError if a string is too long.
    """
    make, limits, number = shape
    size = len(data)
    found: list[Any] = []
    for limit in limits:
        start = at + 8
        if start > size:
            return None, start
        at = start + _u64(data, at)[0]
        if at - start > limit:
            raise _oversized(at - start, limit)
        if at > size:
            return None, at
        found.append(data[start:at])
    if number is not None:
        start, at = at, at + number.size
        if at > size:
            return None, at
        found += number.unpack_from(data, start)
    return make(*found), at


class _List:
    """The parser of one request with a list, of which some items may have arrived."""

    __slots__ = ("_bytes", "_found", "_limits", "_make", "_missing")

    def __init__(self, make: _Make, limits: tuple[int, ...], count: int) -> None:
        if count > MAX_KEYS_PER_REQUEST:
            raise ProtocolError(
                f"a c10d request of {count} keys is over the limit of {MAX_KEYS_PER_REQUEST}"
            )
        self._make, self._limits = make, limits
        self._missing = count * len(limits)
        self._found: list[bytes] = []
        self._bytes = 0

    def read(self, data: bytes, at: int) -> tuple[int, int]:
        """Parse the complete strings of the list from position `at` on.

        Returns the end of the last complete string, and the end that the next one needs. The second
        is past the end of `data` if a string is incomplete. Raises ProtocolError above a limit.
        """
        limits, found, size = self._limits, self._found, len(data)
        missing, total, several = self._missing, self._bytes - at, len(limits) - 1
        end = at
        while missing:
            start = at + 8
            end = start
            if start > size:
                break
            length = _u64(data, at)[0]
            limit = limits[len(found) & several]
            if length > limit or total + at + length > MAX_REQUEST_BYTES:
                if length > limit:
                    raise _oversized(length, limit)
                raise ProtocolError(
                    f"a c10d request of {total + at + length} bytes is over the limit of "
                    f"{MAX_REQUEST_BYTES}"
                )
            end = start + length
            if end > size:
                break
            found.append(data[start:end])
            at = end
            missing -= 1
        self._missing, self._bytes = missing, total + at
        return at, end

    def request(self) -> StoreRequest:
        """Return the request, once all its strings have been read."""
        found = self._found
        if len(self._limits) == 1:
            return self._make(tuple(found))
        return self._make(tuple(zip(found[::2], found[1::2], strict=True)))


def _oversized(size: int, limit: int) -> ProtocolError:
    what = "key" if limit == MAX_KEY_BYTES else "value"
    return ProtocolError(f"a c10d {what} of {size} bytes is over the limit of {limit}")
