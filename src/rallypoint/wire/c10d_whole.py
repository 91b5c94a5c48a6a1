"""Requests that have arrived whole, read in one go. Pure.

Nearly every request is small and comes in one piece. For each such opcode `WHOLE` has a function
`(data, at)`, where `at` is the place after the opcode: it returns the request and the place after
it, or None if that is not all there yet. Raises ProtocolError as soon as a limit is seen broken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from rallypoint.errors import ProtocolError
from rallypoint.wire.c10d_fields import (
    I64,
    MAX_KEY_BYTES,
    MAX_KEYS_PER_REQUEST,
    MAX_VALUE_BYTES,
    U32,
    U64,
    Opcode,
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
    Ping,
    QueueLength,
    QueuePop,
    QueuePush,
    Request,
    Set,
    Wait,
)

Whole = tuple[Request, int] | None
Read = Callable[[bytes, int], Whole]

_u64 = U64.unpack_from
_i64 = I64.unpack_from
_COUNT_KEYS, _CANCEL_WAIT, _LIST_KEYS = CountKeys(), CancelWait(), ListKeys()


def oversized(size: int, limit: int, what: str) -> ProtocolError:
    """The error of a field that is longer than it may be."""
    return ProtocolError(f"a c10d {what} of {size} bytes is over the limit of {limit}")


def too_many(count: int) -> ProtocolError:
    """The error of a request that names more keys than it may."""
    return ProtocolError(
        f"a c10d request of {count} keys is over the limit of {MAX_KEYS_PER_REQUEST}"
    )


def _key_value(make: Callable[[bytes, bytes], Request]) -> Read:
    def read(data: bytes, at: int) -> Whole:
        try:
            start = at + 8
            middle = start + _u64(data, at)[0]
            if middle - start > MAX_KEY_BYTES:
                raise oversized(middle - start, MAX_KEY_BYTES, "key")
            value = middle + 8
            end = value + _u64(data, middle)[0]
        except struct.error:
            return None
        if end - value > MAX_VALUE_BYTES:
            raise oversized(end - value, MAX_VALUE_BYTES, "value")
        return (make(data[start:middle], data[value:end]), end) if end <= len(data) else None

    return read


def _key(make: Callable[[bytes], Request]) -> Read:
    def read(data: bytes, at: int) -> Whole:
        try:
            start = at + 8
            end = start + _u64(data, at)[0]
        except struct.error:
            return None
        if end - start > MAX_KEY_BYTES:
            raise oversized(end - start, MAX_KEY_BYTES, "key")
        return (make(data[start:end]), end) if end <= len(data) else None

    return read


def _key_number(make: Callable[[bytes, int], Request]) -> Read:
    def read(data: bytes, at: int) -> Whole:
        try:
            start = at + 8
            end = start + _u64(data, at)[0]
            if end - start > MAX_KEY_BYTES:
                raise oversized(end - start, MAX_KEY_BYTES, "key")
            return make(data[start:end], _i64(data, end)[0]), end + 8
        except struct.error:
            return None

    return read


def _one_key(make: Callable[[tuple[bytes, ...]], Request]) -> Read:
    """A list of one key, as every `get` sends; longer ones are left to the session."""

    def read(data: bytes, at: int) -> Whole:
        try:
            count = _u64(data, at)[0]
            if count != 1:
                if count > MAX_KEYS_PER_REQUEST:
                    raise too_many(count)
                return None
            start = at + 16
            end = start + _u64(data, at + 8)[0]
        except struct.error:
            return None
        if end - start > MAX_KEY_BYTES:
            raise oversized(end - start, MAX_KEY_BYTES, "key")
        return (make((data[start:end],)), end) if end <= len(data) else None

    return read


def _compare_set(data: bytes, at: int) -> Whole:
    try:
        key = at + 8
        key_end = key + _u64(data, at)[0]
        if key_end - key > MAX_KEY_BYTES:
            raise oversized(key_end - key, MAX_KEY_BYTES, "key")
        expected = key_end + 8
        expected_end = expected + _u64(data, key_end)[0]
        if expected_end - expected > MAX_VALUE_BYTES:
            raise oversized(expected_end - expected, MAX_VALUE_BYTES, "value")
        desired = expected_end + 8
        end = desired + _u64(data, expected_end)[0]
    except struct.error:
        return None
    if end - desired > MAX_VALUE_BYTES:
        raise oversized(end - desired, MAX_VALUE_BYTES, "value")
    if end > len(data):
        return None
    request = CompareSet(data[key:key_end], data[expected:expected_end], data[desired:end])
    return request, end


def _ping(data: bytes, at: int) -> Whole:
    return (Ping(U32.unpack_from(data, at)[0]), at + 4) if at + 4 <= len(data) else None


WHOLE: dict[int, Read] = {
    Opcode.SET.value: _key_value(Set),
    Opcode.COMPARE_SET.value: _compare_set,
    Opcode.GET.value: _key(Get),
    Opcode.ADD.value: _key_number(Add),
    Opcode.CHECK.value: _one_key(Check),
    Opcode.WAIT.value: _one_key(Wait),
    Opcode.GETNUMKEYS.value: lambda data, at: (_COUNT_KEYS, at),
    Opcode.DELETE_KEY.value: _key(DeleteKey),
    Opcode.APPEND.value: _key_value(Append),
    Opcode.CANCEL_WAIT.value: lambda data, at: (_CANCEL_WAIT, at),
    Opcode.PING.value: _ping,
    Opcode.QUEUE_PUSH.value: _key_value(QueuePush),
    Opcode.QUEUE_POP.value: _key(QueuePop),
    Opcode.QUEUE_LEN.value: _key(QueueLength),
    Opcode.LIST_KEYS.value: lambda data, at: (_LIST_KEYS, at),
    Opcode.BARRIER.value: _key_number(Barrier),
}
"""All but MULTI_GET and MULTI_SET, which are long, and VALIDATE, which is no request."""
