"""The key-value machine of a c10d store: values, queues, barriers, and waiting clients. Pure.

`apply` takes one request and returns the replies that it causes, each with the client it is for:
the caller, and every client whose wait has just ended. A client waits for one thing at a time: the
protocol can't distinguish two answers.

A wait ends when each key that was missing has been written once, though it may be gone again. A
write wakes all clients that wait for its key. A push to a queue wakes one client that waits for
that queue alone, in order of arrival, and an item of the queue is *reserved* for it until its next
request: no other pop can take it in between, and others see the queue without it. If that next
request is not the pop, or the client goes away, the item is free again and the next in the line is
woken. A wait that is answered at once reserves in the same way, so that a blocking pop, which is a
wait and then a pop, never finds the queue empty. A wait for several keys reserves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from rallypoint.errors import ProtocolError
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_fields import (
    I64,
    I64_MAX,
    I64_MIN,
    NOT_READY,
    READY,
    STOP_WAITING,
    U64,
    WAIT_CANCELED,
    counter_of,
    encode_i64,
    encode_ping,
    encode_string,
)

ClientId = int
Replies = list[tuple[ClientId, bytes]]

ENTRY_BYTES = 128
"""The bytes that `max_bytes` counts for each key or queued item, besides its own size."""
MAX_MEMORY = "--max-memory"

_SURE_DIGITS = 18  # so many never leave 64 bits
_pack_size = U64.pack


class _KeysWait(Struct):
    missing: set[bytes]
    is_single: bool
    """Whether the wait is for one key, as a blocking pop."""


class _BarrierWait(Struct, frozen=True):
    key: bytes
    world_size: int


class KeyValueMachine:
    """The state of one store, changed in place.

    A request costs O(its size + its answer's + the clients that wait for its keys). `max_bytes`
    limits the sum of keys, values and queued items, each with `ENTRY_BYTES` more. `limit_from`
    names the source of this limit in messages.
    """

    def __init__(self, max_bytes: int | None = None, limit_from: str = MAX_MEMORY) -> None:
        self._max_bytes, self._limit_from = max_bytes, limit_from
        self.stored_bytes = 0
        self.operations = 0
        """The number of requests so far."""
        # Dicts without values are sets that keep the order of arrival.
        self.values: dict[bytes, bytes | bytearray] = {}
        self.waits: dict[ClientId, _KeysWait | _BarrierWait] = {}
        self.waiting_for_key: dict[bytes, dict[ClientId, None]] = {}
        self.reserved: dict[ClientId, bytes] = {}  # may pop from this queue next
        # Those above are read by the fast path too, which is why they are never replaced.
        self._queues: dict[bytes, deque[bytes]] = {}  # only non-empty ones
        self._waiting_at_barrier: dict[bytes, dict[ClientId, None]] = {}
        self._reservations: dict[bytes, int] = {}  # how many may: never more than there are items
        self._serve: dict[type, Callable[[ClientId, Any], Replies]] = {
            c10d.Set: self._set,
            c10d.Get: self._get,
            c10d.Add: self._add,
            c10d.WaitKeys: self._wait,
            c10d.CompareSet: self._compare_set,
            c10d.Check: self._check,
            c10d.MultiGet: self._multi_get,
            c10d.MultiSet: self._multi_set,
            c10d.Append: self._append,
            c10d.DeleteKey: self._delete,
            c10d.CountKeys: self._count,
            c10d.ListKeys: self._list,
            c10d.Ping: lambda client, request: [(client, encode_ping(request.nonce))],
            c10d.QueuePush: self._push,
            c10d.QueuePop: self._pop,
            c10d.QueueLength: self._length,
            c10d.CancelWait: self._cancel,
            c10d.Barrier: self._enter_barrier,
        }

    def apply(self, client: ClientId, request: c10d.StoreRequest) -> Replies:
        """Serve one request; return the replies to this client and to others whose wait has ended.

        Raises ProtocolError, with nothing changed, if the connection has to be closed.
        """
        self.operations += 1
        if client not in self.reserved or isinstance(request, c10d.Ping):
            return self._serve[type(request)](client, request)
        if isinstance(request, c10d.QueuePop) and request.key == self.reserved[client]:
            return self._pop(client, request)
        # It does not take what was reserved for it: the item is free, and first of all for this
        # very request. If the client must be closed, its end wakes the next in the line.
        key = self._unreserve(client)
        try:
            replies = self._serve[type(request)](client, request)
        except ProtocolError:
            self._reserve(client, key)
            raise
        return replies + self._offer(key) if self._free_items(key) else replies

    def drop(self, client: ClientId) -> Replies:
        """Forget a client that has gone: its wait ends, its keys and its barrier counts stay.

        An item reserved for it is free again; returns the replies to clients that this wakes.
        """
        self._end_wait(client)
        return self._release(client)

    # Values

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value, and wake no client. Raises ProtocolError if there is no room for it."""
        old = self.values.get(key)
        grown = len(value) + (len(key) + ENTRY_BYTES if old is None else -len(old))
        if self._max_bytes is not None:
            self._check_room(grown)
        self.stored_bytes += grown
        self.values[key] = value

    def add(self, key: bytes, delta: int) -> int:
        """Add to a counter, and wake no client; return its new value.

        Raises ProtocolError, with nothing changed, if it is no number, leaves 64 bits, or lacks
        room.
        """
        number = self._counter(key) + delta
        if not I64_MIN <= number <= I64_MAX:
            raise ProtocolError(f"adding {delta} to key {key!r} leaves 64 bits")
        self.put(key, b"%d" % number)
        return number

    def _check_room(self, grown: int) -> None:
        if self._max_bytes is not None and self.stored_bytes + grown > self._max_bytes >= 0 < grown:
            raise ProtocolError(
                f"storing {grown} bytes more would pass the limit of {self._max_bytes} "
                f"({self._limit_from}), of which {self.stored_bytes} are in use"
            )

    def _set(self, client: ClientId, request: c10d.Set) -> Replies:
        key = request.key
        self.put(key, request.value)
        return self._wake_all(key) if key in self.waiting_for_key else []

    def _get(self, client: ClientId, request: c10d.Get) -> Replies:
        value = self.values.get(request.key, b"")
        return [(client, _pack_size(len(value)) + value)]

    def _multi_get(self, client: ClientId, request: c10d.MultiGet) -> Replies:
        get = self.values.get
        parts: list[bytes | bytearray] = []
        for key in request.keys:
            value = get(key, b"")
            parts += (_pack_size(len(value)), value)
        return [(client, b"".join(parts))]

    def _multi_set(self, client: ClientId, request: c10d.MultiSet) -> Replies:
        changes = dict(request.pairs)
        get, grown = self.values.get, 0
        for key, value in changes.items():
            old = get(key)
            grown += len(value) + (len(key) + ENTRY_BYTES if old is None else -len(old))
        self._check_room(grown)
        self.stored_bytes += grown
        self.values.update(changes)
        if not self.waiting_for_key:
            return []
        return [reply for key in changes for reply in self._wake_all(key)]

    def _add(self, client: ClientId, request: c10d.Add) -> Replies:
        key = request.key
        answer = (client, I64.pack(self.add(key, request.delta)))
        return [answer, *self._wake_all(key)] if key in self.waiting_for_key else [answer]

    def _check(self, client: ClientId, request: c10d.Check) -> Replies:
        ready = all(map(self._is_present, request.keys))
        return [(client, READY if ready else NOT_READY)]

    def _count(self, client: ClientId, request: c10d.CountKeys) -> Replies:
        return [(client, encode_i64(len(self.values)))]

    def _list(self, client: ClientId, request: c10d.ListKeys) -> Replies:
        keys = tuple(self.values)
        return [(client, encode_i64(len(keys)) + b"".join(map(encode_string, keys)))]

    def _delete(self, client: ClientId, request: c10d.DeleteKey) -> Replies:
        value = self.values.pop(request.key, None)
        if value is not None:
            self.stored_bytes -= len(request.key) + len(value) + ENTRY_BYTES
        return [(client, encode_i64(value is not None))]

    def _append(self, client: ClientId, request: c10d.Append) -> Replies:
        # A key that is appended to becomes a bytearray, so that n appends cost O(n).
        key, value = request.key, request.value
        current = self.values.get(key)
        if current is None:
            self.put(key, value)
        else:
            self._check_room(len(value))
            self.stored_bytes += len(value)
            if isinstance(current, bytearray):
                current += value
            else:
                self.values[key] = bytearray(current) + value
        return self._wake_all(key)

    def _compare_set(self, client: ClientId, request: c10d.CompareSet) -> Replies:
        key, desired = request.key, request.desired
        current = self.values.get(key)
        if current is None and request.expected:
            return [(client, encode_string(request.expected))]
        if current is not None and current != request.expected:
            return [(client, encode_string(current))]
        self.put(key, desired)
        answer = (client, _pack_size(len(desired)) + desired)
        return [answer, *self._wake_all(key)] if key in self.waiting_for_key else [answer]

    def _counter(self, key: bytes) -> int:
        """Return the value of a counter; 0 for a missing key.

        Raises ProtocolError if the value is no number.
        """
        value = self.values.get(key)
        if value is None:
            return 0
        if len(value) <= _SURE_DIGITS and value.isdigit():
            return int(value)
        number = counter_of(value)
        if number is None:
            raise ProtocolError(f"key {key!r} holds {bytes(value[:40])!r}, not a 64-bit number")
        return number

    def _is_present(self, key: bytes) -> bool:
        return key in self.values or (key in self._queues and self._free_items(key) > 0)

    # Queues

    def _free_items(self, key: bytes) -> int:
        """Return the number of queued items that no client has reserved."""
        return len(self._queues.get(key, ())) - self._reservations.get(key, 0)

    def _push(self, client: ClientId, request: c10d.QueuePush) -> Replies:
        key, value = request.key, request.value
        grown = len(key) + len(value) + ENTRY_BYTES
        self._check_room(grown)
        self.stored_bytes += grown
        self._queues.setdefault(key, deque()).append(value)
        return self._offer(key)

    def _pop(self, client: ClientId, request: c10d.QueuePop) -> Replies:
        key = request.key
        if self.reserved.get(client) == key:
            self._unreserve(client)
        free = self._free_items(key)
        if not free:
            return [(client, encode_i64(0))]
        queue = self._queues[key]
        value = queue.popleft()
        self.stored_bytes -= len(key) + len(value) + ENTRY_BYTES
        if not queue:
            del self._queues[key]
        return [(client, I64.pack(free) + _pack_size(len(value)) + value)]

    def _length(self, client: ClientId, request: c10d.QueueLength) -> Replies:
        return [(client, encode_i64(self._free_items(request.key)))]

    def _reserve(self, client: ClientId, key: bytes) -> None:
        self.reserved[client] = key
        self._reservations[key] = self._reservations.get(key, 0) + 1

    def _unreserve(self, client: ClientId) -> bytes:
        key = self.reserved.pop(client)
        left = self._reservations.pop(key) - 1
        if left:
            self._reservations[key] = left
        return key

    def _release(self, client: ClientId) -> Replies:
        """Free the queue's item that is reserved for the client, if any; offer it to the next."""
        return self._offer(self._unreserve(client)) if client in self.reserved else []

    def _offer(self, key: bytes) -> Replies:
        """Offer a free item of a queue to waiting clients in order, until one gets it.

        One that waits for several keys gets none: this key only counts as seen for it.
        """
        replies: Replies = []
        waiting = self.waiting_for_key.get(key)
        for client in tuple(waiting or ()):
            wait = self.waits[client]
            assert isinstance(wait, _KeysWait)
            _remove(self.waiting_for_key, key, client)
            if self._has_seen(client, key):
                replies.append((client, STOP_WAITING))
                if wait.is_single:
                    self._reserve(client, key)
                    break
        return replies

    # Waiting

    def _cancel(self, client: ClientId, request: c10d.CancelWait) -> Replies:
        self._end_wait(client)
        return [(client, WAIT_CANCELED)]

    def _wait(self, client: ClientId, request: c10d.WaitKeys) -> Replies:
        keys = request.keys
        self._refuse_second_wait(client)
        if len(keys) == 1:
            key = keys[0]
            if key in self.values:
                return [(client, STOP_WAITING)]
            if key in self._queues and self._free_items(key) > 0:
                self._reserve(client, key)
                return [(client, STOP_WAITING)]
            missing = {key}
        else:
            missing = {key for key in keys if not self._is_present(key)}
            if not missing:
                return [(client, STOP_WAITING)]
        self.waits[client] = _KeysWait(missing, len(set(keys)) == 1)
        for key in missing:
            self.waiting_for_key.setdefault(key, {})[client] = None
        return []

    def _refuse_second_wait(self, client: ClientId) -> None:
        if client in self.waits:
            raise ProtocolError("a second wait was sent while the first one was pending")

    def _enter_barrier(self, client: ClientId, request: c10d.Barrier) -> Replies:
        key, world_size = request.key, request.world_size
        self._refuse_second_wait(client)
        count = self.add(key, 1)
        if count < world_size:
            self.waits[client] = _BarrierWait(key, world_size)
            self._waiting_at_barrier.setdefault(key, {})[client] = None
            return []
        released = []
        for other in self._waiting_at_barrier.get(key, ()):
            wait = self.waits[other]
            if isinstance(wait, _BarrierWait) and wait.world_size <= count:
                released.append(other)
        for other in released:
            self._end_wait(other)
        answers: Replies = [(each, STOP_WAITING) for each in (client, *released)]
        return answers + self._wake_all(key)

    def _wake_all(self, key: bytes) -> Replies:
        return [
            (client, STOP_WAITING)
            for client in self.waiting_for_key.pop(key, ())
            if self._has_seen(client, key)
        ]

    def _has_seen(self, client: ClientId, key: bytes) -> bool:
        """Mark a key as written for a waiting client; return whether that ended its wait."""
        wait = self.waits[client]
        assert isinstance(wait, _KeysWait)
        wait.missing.discard(key)
        if wait.missing:
            return False
        del self.waits[client]
        return True

    def _end_wait(self, client: ClientId) -> None:
        match self.waits.pop(client, None):
            case _KeysWait(missing):
                for key in missing:
                    _remove(self.waiting_for_key, key, client)
            case _BarrierWait(key, _):
                _remove(self._waiting_at_barrier, key, client)
            case None:
                pass


def _remove(index: dict[bytes, dict[ClientId, None]], key: bytes, client: ClientId) -> None:
    clients = index[key]
    del clients[client]
    if not clients:
        del index[key]
