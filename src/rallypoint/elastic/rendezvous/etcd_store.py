"""A store in etcd: for processes that reach an etcd, and no server of ours.

Below the prefix, a key has a folder, whose name is the key in URL encoding:

    KEY/v              the value
    KEY/q/NUMBER       the items of the queue
    KEY/n, KEY/b       put for the sake of numbers: of items, and of those who came to a barrier
    KEY/b/NUMBER       put by the one who came to the barrier with that number

What is waited for is one range: from `q` to `v` for "a value or an item". A waiting call reads it,
and then has etcd watch it from the next revision on: nothing is polled, and nothing else is read.
The watch only wakes. It is begun anew after a while, for it may have been lost unnoticed.

A change is a transaction that stores if the value has the same mod revision still. So one whose
answer was lost is tried again: it is stored once. If then another value is there, it is not known
whose was first, and the caller is told.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from rallypoint.core.json_reader import UnreadableJsonError
from rallypoint.elastic.etcd.client import EtcdClient
from rallypoint.elastic.etcd.lease import CommonLease
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
from rallypoint.errors import (
    AccessError,
    ParameterError,
    RallypointError,
    RendezvousConnectionError,
    StoreConnectionError,
    StoreError,
    StoreQueueEmptyError,
    StoreTimeoutError,
    UsageError,
)
from rallypoint.register.etcd.answers import next_key
from rallypoint.register.etcd.backend import if_unchanged, number_given, revision_of
from rallypoint.register.etcd.gateway import LeaseEndedError, encoded
from rallypoint.register.etcd.parameters import checked_prefix
from rallypoint.store.backoff import growing_pauses, uniform
from rallypoint.wire.c10d_fields import I64_MAX, I64_MIN, counter_of

MAX_VALUE = 1 << 20
"""The largest value, in bytes; etcd's default limit for a request is 1.5 MiB."""
AT_ONCE = 32
"""The most keys in one transaction, whose answer holds all their values."""
PAGE = 1000
AWAY_S = 15.0
"""The time without an answer after which etcd counts as unreachable, in seconds.

Electing an etcd leader takes 1 to 2 s."""
AGAIN_S = 0.3
WATCH_S = 30.0
"""The longest watch, in seconds; after it the awaited key is read again."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.002, 0.2
"""The first and the last limit, in seconds, of the random pauses of writers of one value."""

EtcdAnswer = dict[str, Any]
EtcdPair = dict[str, str]
"""A key and its value in etcd's JSON form."""


class _Range(NamedTuple):
    """A range of etcd's keys, of which the first existing one is read or awaited."""

    begin: str
    end: str = ""
    """The first key after the range; empty: the range is the key `begin` alone."""
    keys_only: bool = False

    def request(self) -> EtcdAnswer:
        where = {"key": encoded(self.begin), "range_end": encoded(self.end), "limit": "1"}
        return {**where, "keys_only": self.keys_only}


class EtcdStore(Store):
    """A store whose keys are below `prefix` in etcd. Torch's arguments, except the client.

    A value has 1 MiB at most. `append`, `multi_get` and `multi_set` are one operation for up to 32
    keys and 1 MiB. Its keys stay when the program ends, until `clear`, or until the lease expires
    if it has one. Processes that change
    one value at once (`add`, `append`, `compare_set`) take turns, which costs n * n requests for n
    of them; `barrier` and `queue_push` do not. If etcd is away for 15 s, or for the timeout if that
    is shorter, StoreConnectionError is raised; the object can be used again afterwards.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        timeout: Timeout | None = None,
        *,
        lease: CommonLease | None = None,
    ) -> None:
        """Make a store; a `timeout` of None is 300 s.

        If a `lease` is given, all keys are attached to it. Does no I/O. Raises ParameterError for
        an invalid prefix.
        """
        super().__init__(DEFAULT_TIMEOUT if timeout is None else timeout)
        try:
            self._prefix = checked_prefix("prefix", prefix) + "/"
        except UsageError as error:
            raise ParameterError(f"EtcdStore: {error}") from None
        self._client, self._lease, self._peer = client, lease, f"etcd at {client.config}"

    def set(self, key: str, value: StoreValue) -> None:
        self._put("set", self._value(key).begin, _checked(value))

    def get(self, key: str) -> bytes:
        return self._gather("get", [key], [self._value(key)], self._timeout_s)[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        to_keys(keys)
        return self._gather("multi_get", keys, list(map(self._value, keys)), self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        to_keys(keys)
        self._gather("wait", keys, list(map(self._either, keys)), self._wait_s(timeout))

    def check(self, keys: Sequence[str]) -> bool:
        to_keys(keys)
        ranges = list(map(self._either, keys))
        return all(
            None not in self._firsts("check", ranges[begin : begin + AT_ONCE])[0]
            for begin in range(0, len(ranges), AT_ONCE)
        )

    def add(self, key: str, amount: int) -> int:
        amount = index(amount)

        def added(value: bytes | None) -> bytes:
            number = counter_of(value) if value else 0
            if number is None:
                raise StoreError(f"key {key!r} holds {(value or b'')[:40]!r}, not a 64-bit number")
            if not I64_MIN <= number + amount <= I64_MAX:
                raise StoreError(f"adding {amount} to key {key!r} leaves 64 bits")
            return b"%d" % (number + amount)

        return int(self._change("add", key, added) or b"0")

    def compare_set(self, key: str, expected_value: StoreValue, desired_value: StoreValue) -> bytes:
        expected, desired = to_bytes(expected_value), _checked(desired_value)

        def swapped(value: bytes | None) -> bytes | None:
            return desired if (value or b"") == expected else None

        found = self._change("compare_set", key, swapped)
        return expected if found is None else found

    def append(self, key: str, value: StoreValue) -> None:
        more = to_bytes(value)
        self._change("append", key, lambda now: _checked((now or b"") + more))

    def multi_set(self, keys: Sequence[str], values: Sequence[StoreValue]) -> None:
        pairs = zip(keys, (value for _, value in to_pairs(keys, values)), strict=True)
        for part in _batches({self._value(key).begin: _checked(value) for key, value in pairs}):
            puts = [{"request_put": self._stored(name, value)} for name, value in part.items()]
            self._ask("multi_set", "/v3/kv/txn", {"success": puts})

    def delete_key(self, key: str) -> bool:
        body = {"key": encoded(self._value(key).begin)}
        answer, is_unsure = self._ask("delete_key", "/v3/kv/deleterange", body)
        deleted = int(answer.get("deleted", "0")) > 0
        if is_unsure and not deleted:
            raise self._unsure("delete_key")
        return deleted

    def num_keys(self) -> int:
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        names = self._names()
        return [unquote(name[:-2]) for name in names if name.endswith("/v")]

    def queue_push(self, key: str, value: StoreValue) -> None:
        folder, item = self._folder(key), _checked(value)
        number, _ = self._number("queue_push", f"{folder}n")
        if self._put("queue_push", f"{folder}q/{number:019}", item):
            raise self._unsure("queue_push")  # The first of two may have been popped by now.

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        items, started = self._items(key), time.monotonic()
        ends_at = started + (self._timeout_s if block else 0.0)
        while True:
            first = self._first_in_time("queue_pop", items, ends_at)
            if first is None and not block:
                raise StoreQueueEmptyError(key)
            if first is None:
                raise StoreTimeoutError("queue_pop", [key], time.monotonic() - started)
            taken = {
                "compare": [if_unchanged(first["key"], int(first["mod_revision"]))],
                "success": [{"request_delete_range": {"key": first["key"]}}],
            }
            answer, is_unsure = self._ask("queue_pop", "/v3/kv/txn", taken)
            if answer.get("succeeded"):
                return _decoded(first)
            if is_unsure:
                raise self._unsure("queue_pop")

    def queue_len(self, key: str) -> int:
        body = self._items(key).request() | {"limit": "0", "count_only": True}
        return int(self._ask("queue_len", "/v3/kv/range", body)[0].get("count", "0"))

    def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        folder, world_size = self._folder(key), index(world_size)
        wait_s, started = self._wait_s(timeout), time.monotonic()
        number, is_unsure = self._number("barrier", f"{folder}b")
        if is_unsure:
            raise self._unsure("barrier")  # It may have been counted twice.
        self._put("barrier", f"{folder}b/{number:019}", b"")
        if number < world_size:
            last = _Range(f"{folder}b/{world_size:019}")
            if self._first_in_time("barrier", last, started + wait_s) is None:
                doing = f"barrier of {world_size}"
                raise StoreTimeoutError(doing, [key], time.monotonic() - started)

    def clone(self) -> EtcdStore:
        return EtcdStore(self._client, self._prefix, self._timeout_s, lease=self._lease)

    def clear(self) -> None:
        """Delete all keys below the prefix, for all processes.

        For the end of a job; may be retried.
        """
        body = {"key": encoded(self._prefix), "range_end": encoded(self._prefix[:-1] + "0")}
        self._ask("clear", "/v3/kv/deleterange", body)

    # Names

    def _folder(self, key: str) -> str:
        to_key(key)
        return f"{self._prefix}{quote(key, safe='')}/"

    def _value(self, key: str) -> _Range:
        return _Range(f"{self._folder(key)}v")

    def _items(self, key: str) -> _Range:
        folder = self._folder(key)
        return _Range(f"{folder}q/", f"{folder}q0")

    def _either(self, key: str) -> _Range:
        """Return the range in which a key exists if `key` has a value or a queue with an item."""
        folder = self._folder(key)
        return _Range(f"{folder}q/", f"{folder}w", keys_only=True)

    def _names(self) -> Iterator[str]:
        begin: bytes | None = self._prefix.encode()
        end = self._prefix[:-1].encode() + b"0"
        while begin is not None:
            body = {"key": encoded(begin), "range_end": encoded(end), "limit": str(PAGE)}
            page, _ = self._ask("list_keys", "/v3/kv/range", body | {"keys_only": True})
            for pair in page.get("kvs", ()):
                yield b64decode(pair["key"]).decode("utf-8", "replace").removeprefix(self._prefix)
            try:
                begin = next_key(page, begin)
            except UnreadableJsonError as error:
                raise StoreConnectionError(self._peer, "list_keys", f"its answer {error}") from None

    # Waiting

    def _gather(
        self, doing: str, keys: Sequence[str], ranges: list[_Range], timeout_s: float
    ) -> list[bytes]:
        """Wait until each range has a key, and return the value of each one's first key, in order.

        Raises StoreTimeoutError, with the missing ones of `keys`.
        """
        started, found = time.monotonic(), []
        for begin in range(0, len(ranges), AT_ONCE):
            pairs, _ = self._firsts(doing, ranges[begin : begin + AT_ONCE])
            for number, pair in enumerate(pairs, begin):
                there = pair or self._first_in_time(doing, ranges[number], started + timeout_s)
                if there is None:
                    rest, _ = self._firsts(doing, ranges[number : number + AT_ONCE])
                    missing = [keys[number + n] for n, each in enumerate(rest) if each is None]
                    waited_s = time.monotonic() - started
                    raise StoreTimeoutError(doing, missing or [keys[number]], waited_s)
                found.append(_decoded(there))
        return found

    def _firsts(self, doing: str, ranges: Sequence[_Range]) -> tuple[list[EtcdPair | None], int]:
        """Return the first key and value in each range, None for an empty one, and the revision.

        That is etcd's revision at this read, from which a range can be watched.
        """
        reads = [{"request_range": each.request()} for each in ranges]
        answer, _ = self._ask(doing, "/v3/kv/txn", {"success": reads})
        found = [each["response_range"].get("kvs") for each in answer.get("responses", ())]
        return [pairs[0] if pairs else None for pairs in found], revision_of(answer)

    def _first_in_time(self, doing: str, where: _Range, ends_at: float) -> EtcdPair | None:
        """Wait until a range has a key, and return the first one with its value.

        None if there was none by `ends_at`, a time of the monotonic clock.
        """
        while True:
            (first,), revision = self._firsts(doing, [where])
            left_s = ends_at - time.monotonic()
            if first is not None or left_s <= 0:
                return first
            with self._client.gateway() as gateway:
                try:
                    seconds = min(left_s, WATCH_S)
                    gateway.watch(where.begin, revision + 1, seconds, where.end)
                except RendezvousConnectionError:
                    time.sleep(uniform(0, min(AGAIN_S, left_s)))

    # Changing

    def _put(self, doing: str, name: str, value: bytes) -> bool:
        """Store a value under `name` in etcd, and return whether it may have been stored twice."""
        return self._ask(doing, "/v3/kv/put", self._stored(name, value))[1]

    def _number(self, doing: str, name: str) -> tuple[int, bool]:
        """Return 1 for the first call with this name of any process, then 2, 3 and so on.

        The second result is whether a number may have been skipped.
        """
        body = self._stored(name, b"") | {"prev_kv": True}
        answer, is_unsure = self._ask(doing, "/v3/kv/put", body)
        return number_given(answer), is_unsure

    def _stored(self, name: str, value: bytes) -> EtcdAnswer:
        """Return the body of a request that stores a value under the store's lease, if it has one.

        Raises StoreConnectionError if the lease can't be renewed.
        """
        try:
            lease = 0 if self._lease is None else self._lease.number()
        except RallypointError as error:
            raise StoreConnectionError(self._peer, "its lease", str(error)) from error
        return {"key": encoded(name), "value": encoded(value), "lease": str(lease)}

    def _change(
        self, doing: str, key: str, change: Callable[[bytes | None], bytes | None]
    ) -> bytes | None:
        """Replace the value by what `change` returns for it; repeat if another process was faster.

        Nothing is changed if `change` returns None. Returns the value that is stored in the end;
        None if there is none.
        """
        name = self._value(key)
        pair = self._firsts(doing, [name])[0][0]
        for pause_s in growing_pauses(FIRST_PAUSE_S, LAST_PAUSE_S):
            now = None if pair is None else _decoded(pair)
            new = change(now)
            if new is None:
                return now
            revision = 0 if pair is None else int(pair["mod_revision"])
            swap = {
                "compare": [if_unchanged(encoded(name.begin), revision)],
                "success": [{"request_put": self._stored(name.begin, new)}],
                "failure": [{"request_range": name.request()}],
            }
            answer, is_unsure = self._ask(doing, "/v3/kv/txn", swap)
            if answer.get("succeeded"):
                return new
            if is_unsure:
                raise self._unsure(doing)
            pairs = answer["responses"][0]["response_range"].get("kvs")
            pair = pairs[0] if pairs else None
            time.sleep(uniform(0, pause_s))
        raise AssertionError

    def _unsure(self, doing: str) -> StoreConnectionError:
        why = "an answer was lost: it is unknown whether the operation was done"
        return StoreConnectionError(self._peer, doing, why)

    def _ask(self, doing: str, path: str, body: EtcdAnswer) -> tuple[EtcdAnswer, bool]:
        """Return etcd's answer, and whether the request may have been carried out before as well.

        It is sent again while etcd is unreachable, for 15 s or the timeout, if that is shorter.
        Then, and for other errors at once, StoreConnectionError is raised.
        """
        ends_at, is_unsure = time.monotonic() + min(AWAY_S, self._timeout_s), False
        while True:
            with self._client.gateway() as gateway:
                try:
                    return gateway.call(path, body), is_unsure or gateway.has_repeated
                except (RendezvousConnectionError, AccessError, ParameterError) as error:
                    is_unsure |= gateway.has_repeated
                    if isinstance(error, LeaseEndedError) and self._lease is not None:
                        self._lease.has_ended()
                    is_away = type(error) is RendezvousConnectionError
                    if not is_away or time.monotonic() + AGAIN_S > ends_at:
                        raise StoreConnectionError(self._peer, doing, str(error)) from error
            time.sleep(AGAIN_S)


def _decoded(pair: EtcdPair) -> bytes:
    return b64decode(pair.get("value", ""))


def _checked(value: StoreValue) -> bytes:
    data = to_bytes(value)
    if len(data) > MAX_VALUE:
        raise StoreError(
            f"a value of {len(data)} bytes: a store in etcd takes {MAX_VALUE}; use a TCPStore"
        )
    return data


def _batches(values: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield parts of `values`, each of which fits into one request to etcd."""
    batch: dict[str, bytes] = {}
    size = 0
    for name, value in values.items():
        if batch and (len(batch) == AT_ONCE or size + len(value) > MAX_VALUE):
            yield batch
            batch, size = {}, 0
        batch[name] = value
        size += len(value)
    if batch:
        yield batch


def cas_delay() -> None:
    """Wait for a random time up to 0.1 s, before a compare and swap is tried again. Blocks."""
    time.sleep(uniform(0, 0.1))
