"""The key-value machine of a c10d store: values, queues, barriers, and those who wait. Pure.

One request at a time goes in, the replies that it causes come out, each with the client it is for:
the caller's own, and one for everybody whose wait has just ended. A client waits for one thing at
a time; the protocol has no way to tell two answers apart.

A wait ends when each key that was missing has been written once, though it may be gone again. A
write wakes all who wait for its key; a push to a queue marks the key as seen for those waiting, in
order of arrival, until one of them has been answered, because one value feeds one consumer. If that
one then goes away or does something else, the next is woken, so that no value lies forgotten.
"""

from __future__ import annotations

import re
from collections import deque
from typing import assert_never

from msgspec import Struct

from rallypoint.errors import ProtocolError
from rallypoint.wire import c10d

ClientId = int
Replies = list[tuple[ClientId, bytes]]

_LEADING_INTEGER = re.compile(rb"\s*([+-]?\d{1,20})")
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1


class _KeysWait(Struct):
    missing: set[bytes]


class _BarrierWait(Struct, frozen=True):
    key: bytes
    world_size: int


class KeyValueMachine:
    """The state of one store. Changed in place; every request costs O(its size + whom it wakes)."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | bytearray] = {}
        self._queues: dict[bytes, deque[bytes]] = {}  # only non-empty ones
        self._waits: dict[ClientId, _KeysWait | _BarrierWait] = {}
        # Dicts without values are sets that keep the order of arrival.
        self._waiting_for_key: dict[bytes, dict[ClientId, None]] = {}
        self._waiting_at_barrier: dict[bytes, dict[ClientId, None]] = {}
        self._offered: dict[ClientId, bytes] = {}  # woken by a push, has not popped yet

    def apply(self, client: ClientId, request: c10d.Request) -> Replies:
        """Serves one request.

        Raises ProtocolError, with nothing changed, when the only answer is to close the connection.
        """
        match request:
            case c10d.Set() | c10d.Append() | c10d.MultiSet() | c10d.CompareSet() | c10d.Add():
                replies = self._write(client, request)
            case c10d.Get(key):
                replies = [(client, self._encoded(key))]
            case c10d.MultiGet(keys):
                replies = [(client, b"".join(map(self._encoded, keys)))]
            case c10d.Check(keys):
                ready = all(map(self._is_present, keys))
                replies = [(client, c10d.READY if ready else c10d.NOT_READY)]
            case c10d.Wait() | c10d.Barrier() | c10d.CancelWait():
                replies = self._wait(client, request)
            case c10d.CountKeys():
                replies = [(client, c10d.encode_i64(len(self._values)))]
            case c10d.DeleteKey(key):
                deleted = self._values.pop(key, None) is not None
                replies = [(client, c10d.encode_i64(deleted))]
            case c10d.ListKeys():
                keys = tuple(self._values)
                listed = [c10d.encode_i64(len(keys)), *map(c10d.encode_string, keys)]
                replies = [(client, b"".join(listed))]
            case c10d.QueuePush() | c10d.QueuePop() | c10d.QueueLength():
                replies = self._queue(client, request)
            case c10d.Ping(nonce):
                return [(client, c10d.encode_ping(nonce))]
            case _:
                assert_never(request)
        if client in self._offered:
            replies += self._pass_on_offer(client)
        return replies

    def drop(self, client: ClientId) -> Replies:
        """Forgets a client that is gone: its wait ends, its keys and its barrier counts stay."""
        self._end_wait(client)
        return self._pass_on_offer(client)

    # Values

    def _write(
        self,
        client: ClientId,
        request: c10d.Set | c10d.Append | c10d.MultiSet | c10d.CompareSet | c10d.Add,
    ) -> Replies:
        match request:
            case c10d.Set(key, value):
                self._values[key] = value
                return self._wake_all(key)
            case c10d.Append(key, value):
                self._append(key, value)
                return self._wake_all(key)
            case c10d.MultiSet(pairs):
                self._values.update(pairs)
                return [reply for key, _ in pairs for reply in self._wake_all(key)]
            case c10d.CompareSet():
                return self._compare_set(client, request)
            case c10d.Add(key, delta):
                number = self._counter(key) + delta
                if not _I64_MIN <= number <= _I64_MAX:
                    raise ProtocolError(f"adding {delta} to key {key!r} leaves 64 bits")
                self._values[key] = b"%d" % number
                return [(client, c10d.encode_i64(number)), *self._wake_all(key)]
            case _:
                assert_never(request)

    def _append(self, key: bytes, value: bytes) -> None:
        # A key that is appended to becomes a bytearray, so that n appends cost O(n).
        current = self._values.get(key)
        if isinstance(current, bytearray):
            current += value
        elif current is None:
            self._values[key] = value
        else:
            self._values[key] = bytearray(current) + value

    def _compare_set(self, client: ClientId, request: c10d.CompareSet) -> Replies:
        current = self._values.get(request.key)
        if current is None and request.expected:
            return [(client, c10d.encode_string(request.expected))]
        if current is not None and current != request.expected:
            return [(client, c10d.encode_string(current))]
        self._values[request.key] = request.desired
        return [(client, c10d.encode_string(request.desired)), *self._wake_all(request.key)]

    def _counter(self, key: bytes) -> int:
        """The leading decimal number of a value, as C reads it; 0 for a missing key."""
        value = self._values.get(key)
        if value is None:
            return 0
        number = _LEADING_INTEGER.match(value)
        if number is None or not _I64_MIN <= int(number[1]) <= _I64_MAX:
            raise ProtocolError(f"key {key!r} holds {bytes(value[:40])!r}, not a 64-bit number")
        return int(number[1])

    def _encoded(self, key: bytes) -> bytes:
        return c10d.encode_string(self._values.get(key, b""))

    def _is_present(self, key: bytes) -> bool:
        return key in self._values or key in self._queues

    # Queues

    def _queue(
        self, client: ClientId, request: c10d.QueuePush | c10d.QueuePop | c10d.QueueLength
    ) -> Replies:
        match request:
            case c10d.QueuePush(key, value):
                self._queues.setdefault(key, deque()).append(value)
                return self._wake_one(key)
            case c10d.QueuePop(key):
                return [(client, self._pop(client, key))]
            case c10d.QueueLength(key):
                return [(client, c10d.encode_i64(len(self._queues.get(key, ()))))]
            case _:
                assert_never(request)

    def _pop(self, client: ClientId, key: bytes) -> bytes:
        if self._offered.get(client) == key:
            del self._offered[client]
        queue = self._queues.get(key)
        if queue is None:
            return c10d.encode_i64(0)
        length = c10d.encode_i64(len(queue))
        value = queue.popleft()
        if not queue:
            del self._queues[key]
        return length + c10d.encode_string(value)

    def _pass_on_offer(self, client: ClientId) -> Replies:
        key = self._offered.pop(client, None)
        return self._wake_one(key) if key in self._queues else []

    # Waiting

    def _wait(
        self, client: ClientId, request: c10d.Wait | c10d.Barrier | c10d.CancelWait
    ) -> Replies:
        if isinstance(request, c10d.CancelWait):
            self._end_wait(client)
            return [(client, c10d.WAIT_CANCELED)]
        if client in self._waits:
            raise ProtocolError("a second wait was sent while the first one was pending")
        match request:
            case c10d.Wait(keys):
                missing = {key for key in keys if not self._is_present(key)}
                if not missing:
                    return [(client, c10d.STOP_WAITING)]
                self._waits[client] = _KeysWait(missing)
                for key in missing:
                    self._waiting_for_key.setdefault(key, {})[client] = None
                return []
            case c10d.Barrier(key, world_size):
                return self._enter_barrier(client, key, world_size)
            case _:
                assert_never(request)

    def _enter_barrier(self, client: ClientId, key: bytes, world_size: int) -> Replies:
        count = self._counter(key) + 1
        self._values[key] = b"%d" % count
        if count < world_size:
            self._waits[client] = _BarrierWait(key, world_size)
            self._waiting_at_barrier.setdefault(key, {})[client] = None
            return []
        released = []
        for other in self._waiting_at_barrier.get(key, ()):
            wait = self._waits[other]
            if isinstance(wait, _BarrierWait) and wait.world_size <= count:
                released.append(other)
        for other in released:
            self._end_wait(other)
        answers: Replies = [(who, c10d.STOP_WAITING) for who in (client, *released)]
        return answers + self._wake_all(key)

    def _wake_all(self, key: bytes) -> Replies:
        return [
            (client, c10d.STOP_WAITING)
            for client in self._waiting_for_key.pop(key, ())
            if self._has_seen(client, key)
        ]

    def _wake_one(self, key: bytes) -> Replies:
        waiting = self._waiting_for_key.get(key, {})
        for client in tuple(waiting):
            del waiting[client]
            if not waiting:
                del self._waiting_for_key[key]
            if self._has_seen(client, key):
                self._offered[client] = key
                return [(client, c10d.STOP_WAITING)]
        return []

    def _has_seen(self, client: ClientId, key: bytes) -> bool:
        """Marks a key as written for one who waits; whether that ended the wait."""
        wait = self._waits[client]
        assert isinstance(wait, _KeysWait)
        wait.missing.discard(key)
        if wait.missing:
            return False
        del self._waits[client]
        return True

    def _end_wait(self, client: ClientId) -> None:
        match self._waits.pop(client, None):
            case _KeysWait(missing):
                for key in missing:
                    _remove(self._waiting_for_key, key, client)
            case _BarrierWait(key, _):
                _remove(self._waiting_at_barrier, key, client)
            case None:
                pass


def _remove(index: dict[bytes, dict[ClientId, None]], key: bytes, client: ClientId) -> None:
    clients = index[key]
    del clients[client]
    if not clients:
        del index[key]
