"""A store within one process: for one worker, for threads, and for tests.

It uses the same machine as a server, so that both answer alike. Each call that waits is a client of
the machine, until another call writes what it waits for.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from operator import index
from time import monotonic
from typing import Self

from rallypoint.elastic.stores.store import (
    DEFAULT_TIMEOUT,
    Store,
    StoreValue,
    Timeout,
    to_bytes,
    to_key,
    to_keys,
    to_pairs,
)
from rallypoint.errors import ProtocolError, StoreError, StoreQueueEmptyError, StoreTimeoutError
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_fields import I64, NOT_READY, READY, U64

_NOT_WAITING = 0  # the client of all calls that are answered at once


class HashStore(Store):
    """A store in this process's memory, which ends with the last object (clone) that shares it.

    Keys and values may have any size. Raises StoreError where a server would close the connection:
    `add` to what is not a number, or beyond 64 bits.
    """

    def __init__(self, timeout: Timeout = DEFAULT_TIMEOUT) -> None:
        super().__init__(timeout)
        self._room = _Room()

    def set(self, key: str, value: StoreValue) -> None:
        self._room.ask(c10d.Set(to_key(key), to_bytes(value)))

    def get(self, key: str) -> bytes:
        return self._read("get", [key])[0]

    def add(self, key: str, amount: int) -> int:
        return _integer(self._room.ask(c10d.Add(to_key(key), index(amount))))

    def compare_set(self, key: str, expected_value: StoreValue, desired_value: StoreValue) -> bytes:
        request = c10d.CompareSet(to_key(key), to_bytes(expected_value), to_bytes(desired_value))
        return _strings(self._room.ask(request))[0]

    def check(self, keys: Sequence[str]) -> bool:
        return self._room.ask(c10d.Check(to_keys(keys))) == READY

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        waited = _Waited(self._wait_s(timeout))
        with _Caller(self._room) as caller:
            if not caller.wait(c10d.WaitKeys(to_keys(keys)), waited):
                raise self._missing("wait", keys, waited)

    def delete_key(self, key: str) -> bool:
        return _integer(self._room.ask(c10d.DeleteKey(to_key(key)))) > 0

    def num_keys(self) -> int:
        return _integer(self._room.ask(c10d.CountKeys()))

    def list_keys(self) -> list[str]:
        reply = self._room.ask(c10d.ListKeys())
        return [key.decode() for key in _strings(reply[I64.size :])]

    def append(self, key: str, value: StoreValue) -> None:
        self._room.ask(c10d.Append(to_key(key), to_bytes(value)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._read("multi_get", keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[StoreValue]) -> None:
        self._room.ask(c10d.MultiSet(to_pairs(keys, values)))

    def queue_push(self, key: str, value: StoreValue) -> None:
        self._room.ask(c10d.QueuePush(to_key(key), to_bytes(value)))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        name, waited = to_key(key), _Waited(self._timeout_s)
        with _Caller(self._room) as caller:
            while True:
                reply = self._room.ask(c10d.QueuePop(name), caller.id)
                if _integer(reply) > 0:
                    return _strings(reply[I64.size :])[0]
                if not block:
                    raise StoreQueueEmptyError(key)
                # Another thread may pop the item before this one runs.
                if not caller.wait(c10d.WaitKeys((name,)), waited):
                    raise self._missing("queue_pop", [key], waited)

    def queue_len(self, key: str) -> int:
        return _integer(self._room.ask(c10d.QueueLength(to_key(key))))

    def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        waited = _Waited(self._wait_s(timeout))
        with _Caller(self._room) as caller:
            if not caller.wait(c10d.Barrier(to_key(key), index(world_size)), waited):
                doing = f"barrier of {world_size}, {self.add(key, 0)} came"
                raise StoreTimeoutError(doing, [key], waited.seconds())

    def clone(self) -> HashStore:
        other = HashStore(self._timeout_s)
        other._room = self._room
        return other

    def _read(self, doing: str, keys: Sequence[str]) -> list[bytes]:
        names, waited = to_keys(keys), _Waited(self._timeout_s)
        with _Caller(self._room) as caller:
            while True:
                reply = self._room.read_all(names)
                if reply is not None:
                    return _strings(reply)
                # A key can be gone again before this thread runs: then it waits again.
                if not caller.wait(c10d.WaitKeys(names), waited):
                    raise self._missing(doing, keys, waited)

    def _missing(self, doing: str, keys: Sequence[str], waited: _Waited) -> StoreTimeoutError:
        missing = [key for key in keys if not self.check([key])]
        return StoreTimeoutError(doing, missing or keys, waited.seconds())


class _Room:
    """The state that clones of a store share.

    It has the store's state machine, a lock for that, and the events that wake waiting calls.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.machine = KeyValueMachine()
        self.wakes: dict[int, threading.Event] = {}
        self.ids = itertools.count(_NOT_WAITING + 1)

    def ask(self, request: c10d.StoreRequest, client: int = _NOT_WAITING) -> bytes:
        """Return the answer to a request that never waits; empty if the request has no answer."""
        with self.lock:
            return self.apply(client, request) or b""

    def read_all(self, keys: tuple[bytes, ...]) -> bytes | None:
        """Return the values of all keys at one moment, encoded one after another.

        None if one is missing.
        """
        with self.lock:
            if self.apply(_NOT_WAITING, c10d.Check(keys)) == NOT_READY:
                return None
            return self.apply(_NOT_WAITING, c10d.MultiGet(keys)) or b""

    def apply(self, client: int, request: c10d.StoreRequest) -> bytes | None:
        """Apply a request with the lock held, wake the calls that it answers; return its answer.

        None if it has none, or none yet.
        """
        try:
            replies = self.machine.apply(client, request)
        except ProtocolError as error:
            raise StoreError(str(error)) from error
        return self.deliver(client, replies)

    def deliver(self, client: int, replies: list[tuple[int, bytes]]) -> bytes | None:
        """Wake the calls that `replies` answer, and return the client's own answer, or None.

        The lock must be held.
        """
        own = None
        for other, reply in replies:
            if other == client:
                own = reply
            else:
                self.wakes[other].set()
        return own


class _Caller:
    """A call that may wait; the store's state machine knows it as a client until it returns."""

    def __init__(self, room: _Room) -> None:
        self._room = room
        self._woken = threading.Event()
        self.id = next(room.ids)

    def __enter__(self) -> Self:
        with self._room.lock:
            self._room.wakes[self.id] = self._woken
        return self

    def __exit__(self, *_: object) -> None:
        with self._room.lock:
            del self._room.wakes[self.id]
            self._room.deliver(self.id, self._room.machine.drop(self.id))

    def wait(self, request: c10d.WaitKeys | c10d.Barrier, waited: _Waited) -> bool:
        """Wait for the answer to a request, and return whether it came in time.

        If not, the request has been cancelled.
        """
        with self._room.lock:
            self._woken.clear()
            if self._room.apply(self.id, request) is not None:
                return True
        self._woken.wait(waited.left_s())
        with self._room.lock:
            if not self._woken.is_set():
                self._room.apply(self.id, c10d.CancelWait())
            return self._woken.is_set()


class _Waited:
    """The time limit of one call."""

    def __init__(self, timeout_s: float) -> None:
        self._start = monotonic()
        self._timeout_s = timeout_s

    def seconds(self) -> float:
        return monotonic() - self._start

    def left_s(self) -> float:
        return min(max(0.0, self._timeout_s - self.seconds()), threading.TIMEOUT_MAX)


def _integer(reply: bytes) -> int:
    number: int = I64.unpack_from(reply)[0]
    return number


def _strings(reply: bytes) -> list[bytes]:
    """Return all values in a reply, each of which stands behind its length."""
    found, position = [], 0
    while position < len(reply):
        (size,) = U64.unpack_from(reply, position)
        start = position + U64.size
        position = start + size
        found.append(reply[start:position])
    return found
