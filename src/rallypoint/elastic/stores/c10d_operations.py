"""A client's operations on a c10d store that may take more than one request. Pure.

An operation is a generator: it yields a step, is sent the step's answer, and returns the result.
The client that runs it does the I/O and knows the time.

A GET of a missing key is answered with an empty value. So only an empty value takes a second
request, a CHECK, and only a missing key a WAIT. The end of a WAIT proves little: the key can be
gone again, and torch's server wakes for pushes and for a COMPARE_SET that stored nothing. So the
value is read again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from rallypoint.elastic.stores import c10d_client as wire
from rallypoint.wire.c10d_fields import MAX_KEY_BYTES, MAX_KEYS_PER_REQUEST

MAX_KEYS_NAMED = 1000
"""The most keys that are asked for one by one, when a wait has failed, to name the missing ones."""
_CHUNK_BYTES = 64 << 20

T = TypeVar("T")


class Exchange(Struct, frozen=True):
    """A request and the parser of its reply; None: there is no reply.

    A repeatable request has the same effect when it is carried out twice, so it can be sent again
    on another connection after the first was lost.
    """

    request: bytes
    read: wire.Read[Any] | None
    is_repeatable: bool = True


class Wait(Struct, frozen=True):
    """A request whose reply is delayed; the operation is then told whether it came in time.

    A repeatable request need not be sent if the time is over before.
    """

    request: bytes
    is_repeatable: bool = True


class MissingError(Exception):
    """An operation has timed out; `keys` are missing."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        super().__init__(keys)
        self.keys = keys


Operation = Generator[Exchange | Wait, Any, T]


def get(key: bytes) -> Operation[bytes]:
    """Wait for the key, and return its value."""
    keys = (key,)
    while True:
        value: bytes = yield Exchange(wire.get(key), wire.read_string)
        if value:
            return value
        request = wire.check(keys) + wire.get(key)
        there, value = yield Exchange(request, wire.both(wire.read_check, wire.read_string))
        if there:
            return value
        yield from _wait_missing(keys)


def multi_get(keys: Sequence[bytes]) -> Operation[list[bytes]]:
    """Return the values, in order, once all are there.

    They are of one moment if one request can have all keys, and none of the values is empty.
    """
    while True:
        values = yield from _values(keys)
        doubtful = [key for key, value in zip(keys, values, strict=True) if not value]
        if not doubtful:
            return values
        if (yield from check(doubtful)):
            # Each key was there, if not at the same time: one that was empty before is read again.
            later = dict(zip(doubtful, (yield from _values(doubtful)), strict=True))
            return [value or later[key] for key, value in zip(keys, values, strict=True)]
        yield from _wait_missing(doubtful)


def check(keys: Sequence[bytes]) -> Operation[bool]:
    """Return, as an operation of a c10d client, whether all of the keys are there."""
    for chunk in _chunks(keys):
        if not (yield Exchange(wire.check(chunk), wire.read_check)):
            return False
    return True


def wait(keys: Sequence[bytes]) -> Operation[None]:
    """Return when all of the keys have been written. Raises MissingError if the time is over."""
    if not (yield from check(keys)):
        yield from _wait_missing(keys)


def queue_pop(key: bytes, block: bool) -> Operation[bytes | None]:
    """Return the first item of a queue; None if there is none and it should not `block`.

    Another client may take the item that ended a wait, so this waits again until it gets an item or
    the time is over.
    """
    while True:
        # Not to be sent twice: the first item may have been taken, and its answer lost.
        item: bytes | None = yield Exchange(wire.queue_pop(key), wire.read_popped, False)
        if item is not None or not block:
            return item
        yield from _wait_missing((key,))


def barrier(key: bytes, world_size: int) -> Operation[None]:
    """Wait until `world_size` clients have reached the barrier. Raises MissingError."""
    # Answered by now: what was written before this, and is not answered itself, has been stored.
    yield Exchange(wire.ping(0), wire.read_ping)
    if not (yield Wait(wire.barrier(key, world_size), is_repeatable=False)):
        raise MissingError((key,))


def _wait_missing(keys: Sequence[bytes]) -> Operation[None]:
    """Wait for keys of which at least one was missing. Raises MissingError."""
    for chunk in _chunks(keys):
        if not (yield Wait(wire.wait(chunk))):
            missing = yield from _missing(keys)
            if missing:
                raise MissingError(missing)
            return


def _missing(keys: Sequence[bytes]) -> Operation[Sequence[bytes]]:
    if len(keys) > MAX_KEYS_NAMED:
        return () if (yield from check(keys)) else keys
    request = b"".join(wire.check((key,)) for key in keys)
    checks: list[bool] = yield Exchange(request, wire.read_checks(len(keys)))
    return [key for key, is_there in zip(keys, checks, strict=True) if not is_there]


def _values(keys: Sequence[bytes]) -> Operation[list[bytes]]:
    values: list[bytes] = []
    for chunk in _chunks(keys):
        values += yield Exchange(wire.multi_get(chunk), wire.read_strings(len(chunk)))
    return values


def _chunks(keys: Sequence[bytes]) -> Generator[Sequence[bytes], None, None]:
    """Yield parts of the keys that each fit into one request; usually there is one part."""
    if len(keys) <= min(MAX_KEYS_PER_REQUEST, _CHUNK_BYTES // MAX_KEY_BYTES):
        yield keys
        return
    part: list[bytes] = []
    size = 0
    for key in keys:
        if len(part) == MAX_KEYS_PER_REQUEST or size > _CHUNK_BYTES:
            yield part
            part, size = [], 0
        part.append(key)
        size += len(key)
    yield part
