"""What a client of a c10d store can ask, as types; one request of the wire is one value."""

from __future__ import annotations

from msgspec import Struct


class Set(Struct, frozen=True, gc=False):
    """Store a value, whatever was there."""

    key: bytes
    value: bytes


class CompareSet(Struct, frozen=True, gc=False):
    """Store `desired` if the key has `expected`; answered with what is there afterwards."""

    key: bytes
    expected: bytes
    desired: bytes


class Get(Struct, frozen=True, gc=False):
    """Answered with the value; a missing key with an empty one."""

    key: bytes


class Add(Struct, frozen=True, gc=False):
    """Add to a counter kept as decimal text; answered with the sum."""

    key: bytes
    delta: int


class Check(Struct, frozen=True, gc=False):
    """Answered at once: are all of these there?"""

    keys: tuple[bytes, ...]


class Wait(Struct, frozen=True, gc=False):
    """Answered when all of these are there."""

    keys: tuple[bytes, ...]


class CountKeys(Struct, frozen=True, gc=False):
    """Answered with the number of keys."""


class DeleteKey(Struct, frozen=True, gc=False):
    """Answered with how many keys were deleted, 0 or 1."""

    key: bytes


class Append(Struct, frozen=True, gc=False):
    """Lengthen a value; a missing key counts as empty."""

    key: bytes
    value: bytes


class MultiGet(Struct, frozen=True, gc=False):
    """Answered with the values, in order."""

    keys: tuple[bytes, ...]


class MultiSet(Struct, frozen=True, gc=False):
    """Store all pairs at once: nobody sees a part of them."""

    pairs: tuple[tuple[bytes, bytes], ...]


class CancelWait(Struct, frozen=True, gc=False):
    """Give up a pending `Wait` or `Barrier`; always answered."""


class Ping(Struct, frozen=True, gc=False):
    """Answered with the same number."""

    nonce: int


class QueuePush(Struct, frozen=True, gc=False):
    """Put an item at the end of a queue."""

    key: bytes
    value: bytes


class QueuePop(Struct, frozen=True, gc=False):
    """Take the first item; answered with the length before, then the item if there was one."""

    key: bytes


class QueueLength(Struct, frozen=True, gc=False):
    """Answered with the number of items."""

    key: bytes


class ListKeys(Struct, frozen=True, gc=False):
    """Answered with all keys."""


class Barrier(Struct, frozen=True, gc=False):
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
