"""A store in a file: for processes that share a file system and nothing else.

The file is that of `torch.distributed.FileStore`, and both may use one file at once; see
`file_records` for the format. A waiting call polls the file, because a file system that is shared
over a network reports no changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import index
from time import monotonic
from typing import Self, TypeVar
from weakref import finalize

from rallypoint.elastic.stores.file_log import LEAST_LOCK_WAIT_S, Appending, FileLog, poll
from rallypoint.elastic.stores.file_records import (
    Replay,
    encode,
    encode_batch,
    encode_deletion,
    encode_pop,
    encode_push,
)
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
from rallypoint.errors import StoreError, StoreQueueEmptyError, StoreTimeoutError
from rallypoint.wire.c10d_fields import I64_MAX, I64_MIN, counter_of

T = TypeVar("T")
KeyNames = set[bytes]


class FileStore(Store):
    """A store in `file_name`; the file is created, its folder is not.

    With a `world_size` of 0 or more, the file is removed when no object has it open any more and
    `world_size` of them, clones included, have been closed. Objects close themselves at the end of
    their lives; one that was killed is missed for ever, and the file stays.

    Unlike torch's: timeouts below a second are kept. `delete_key` returns whether the key was
    there. `num_keys` and `list_keys` know only users' keys. There are queues, which torch's objects
    do not see. A record that a killed process left unfinished is repaired. An operation that finds
    the file locked by others for longer than the timeout raises StoreTimeoutError; nothing was done
    then. One that waits for nothing but the lock has a second at least. If the file is deleted in
    use, the store is empty from then on; if it is replaced, the store has the content of the new
    file.

    After a fork, the child's object is as good as another one. Keys have at most 65280 bytes,
    values 4 GiB; the file only grows, by the whole value with each `append`.

    A `private` file is this user's alone: it is made with mode 0600. One that is a symbolic link,
    or that others own or may open, raises AccessError, also if it became so in use.

    Raises StoreConnectionError if the file can't be opened, StoreCorruptError, as every operation
    does, if it is no store's, and StoreError if the disk is full or a counter is no number.
    """

    def __init__(
        self,
        file_name: str | os.PathLike[str],
        world_size: int = -1,
        timeout: Timeout = DEFAULT_TIMEOUT,
        *,
        private: bool = False,
    ) -> None:
        super().__init__(timeout)
        self._world_size, self._private = index(world_size), private
        path = os.path.abspath(os.fspath(file_name))
        self._log = FileLog(path, self._world_size, private=private)
        self._file_name = os.fspath(file_name)
        self._retire = finalize(self, self._log.retire_quietly)
        with self._log.exclusive("open", self._patience_s()):
            pass

    @property
    def path(self) -> str:
        """The file name that was given."""
        return self._file_name

    def close(self) -> None:
        """Close this object; may be called again. Raises StoreError.

        With a `world_size` of 0 or more the file is removed, if no object has it open any more and
        at least `world_size` of them have been closed.
        """
        self._retire.detach()
        self._log.retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, key: str, value: StoreValue) -> None:
        record = encode(_raw(key), to_bytes(value))
        self._append("set", lambda _: record)

    def get(self, key: str) -> bytes:
        return self._read("get", [key])[0]

    def add(self, key: str, amount: int) -> int:
        name, amount = _raw(key), index(amount)
        return self._change("add", lambda file: _add(file, name, amount))

    def compare_set(self, key: str, expected_value: StoreValue, desired_value: StoreValue) -> bytes:
        name, expected, desired = _raw(key), to_bytes(expected_value), to_bytes(desired_value)
        record = encode(name, desired)

        def swap(file: Appending) -> bytes:
            current = file.replay.values.get(name)
            if current is None and expected:
                return expected
            if current is not None and current != expected:
                return current
            file.append(record)
            return desired

        return self._change("compare_set", swap)

    def check(self, keys: Sequence[str]) -> bool:
        names = to_keys(keys, _raw)
        return self._look("check", lambda replay: all(map(replay.has, names)))

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        names, wait_s, started = to_keys(keys, _raw), self._wait_s(timeout), monotonic()
        missing: KeyNames = set()

        def begin(replay: Replay) -> None:
            missing.update(name for name in names if not replay.has(name))
            replay.watchers[id(missing)] = missing

        self._look("wait", begin, wait_s or LEAST_LOCK_WAIT_S)
        if not self._wait_until_written("wait", missing, wait_s - (monotonic() - started)):
            left_out = [key for key in keys if _raw(key) in missing]
            raise StoreTimeoutError("wait", left_out, monotonic() - started)

    def delete_key(self, key: str) -> bool:
        name = _raw(key)
        record = encode_deletion(name)

        def delete(file: Appending) -> bool:
            was_there = name in file.replay.values
            if was_there:
                file.append(record)
            return was_there

        return self._change("delete_key", delete)

    def num_keys(self) -> int:
        return self._look("num_keys", lambda replay: len(replay.values))

    def list_keys(self) -> list[str]:
        return self._look("list_keys", lambda replay: [k[1:].decode() for k in replay.values])

    def append(self, key: str, value: StoreValue) -> None:
        name, more = _raw(key), to_bytes(value)
        self._append("append", lambda now: encode(name, now.values.get(name, b"") + more))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._read("multi_get", keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[StoreValue]) -> None:
        records = encode_batch(to_pairs(keys, values, _raw))
        self._append("multi_set", lambda _: records)

    def queue_push(self, key: str, value: StoreValue) -> None:
        record = encode_push(_raw(key), to_bytes(value))
        self._append("queue_push", lambda _: record)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        name, started = _raw(key), monotonic()
        record = encode_pop(name)

        def pop(file: Appending) -> tuple[bytes] | None:
            queue = file.replay.queues.get(name)
            if not queue:
                return None
            first = queue[0]
            file.append(record)
            return (first,)

        def attempt(left_s: float) -> tuple[bytes] | None:
            # Nobody else can read while one tries to pop, so it looks first.
            if not self._look("queue_pop", lambda replay: name in replay.queues, left_s):
                return None
            return self._change("queue_pop", pop)

        popped = poll(attempt, self._timeout_s) if block else self._change("queue_pop", pop)
        if popped is None and not block:
            raise StoreQueueEmptyError(key)
        if popped is None:
            raise StoreTimeoutError("queue_pop", [key], monotonic() - started)
        return popped[0]

    def queue_len(self, key: str) -> int:
        name = _raw(key)
        return self._look("queue_len", lambda replay: len(replay.queues.get(name, ())))

    def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        name, world_size, started = _raw(key), index(world_size), monotonic()
        wait_s = self._wait_s(timeout)
        members, last = name + b"/num_members", name + b"/last_member"
        missing = {last}

        # Torch's objects use the same keys in the same way.
        def enter(file: Appending) -> int:
            count = _sum(file, members, 1)
            records = [(members, b"%d" % count)]
            if count >= world_size and last not in file.replay.values:
                records.append((last, b"1"))
            file.append(encode_batch(records))
            if last in file.replay.values:
                missing.clear()
            file.replay.watchers[id(missing)] = missing
            return count

        count = self._change("barrier", enter)
        if not self._wait_until_written("barrier", missing, wait_s - (monotonic() - started)):
            count = _number(
                self._look("barrier", lambda now: now.values.get(members, b"")), members
            )
            doing = f"barrier of {world_size}, {count} came"
            raise StoreTimeoutError(doing, [key], monotonic() - started)

    def clone(self) -> FileStore:
        return FileStore(self._file_name, self._world_size, self._timeout_s, private=self._private)

    # How a call uses the file

    def _patience_s(self) -> float:
        return max(self._timeout_s, LEAST_LOCK_WAIT_S)

    def _look(self, doing: str, view: Callable[[Replay], T], lock_wait_s: float | None = None) -> T:
        self._log.check_open()
        wait_s = self._patience_s() if lock_wait_s is None else lock_wait_s
        with self._log.shared(doing, wait_s) as replay:
            return view(replay)

    def _change(self, doing: str, change: Callable[[Appending], T]) -> T:
        self._log.check_open()
        with self._log.exclusive(doing, self._patience_s()) as file:
            return change(file)

    def _append(self, doing: str, records: Callable[[Replay], bytes]) -> None:
        self._change(doing, lambda file: file.append(records(file.replay)))

    def _read(self, doing: str, keys: Sequence[str]) -> list[bytes]:
        names, started = to_keys(keys, _raw), monotonic()

        def values(replay: Replay) -> list[bytes] | None:
            found = [replay.values.get(name) for name in names]
            missing[:] = [key for key, value in zip(keys, found, strict=True) if value is None]
            return None if missing else [value for value in found if value is not None]

        missing = list(keys)
        read = poll(lambda left_s: self._look(doing, values, left_s), self._timeout_s)
        if read is None:
            raise StoreTimeoutError(doing, missing, monotonic() - started)
        return read

    def _wait_until_written(self, doing: str, missing: KeyNames, wait_s: float) -> bool:
        """Wait until all keys of `missing` have been written, and return whether they have.

        The set is one of the watchers, from which written keys are removed; it is taken out here.
        """

        def look(left_s: float) -> bool | None:
            return self._look(doing, lambda _: not missing, left_s) or None

        try:
            return not missing or (wait_s > 0 and poll(look, wait_s) is not None)
        finally:
            self._log.unwatch(missing)


def _raw(key: str) -> bytes:
    return b"/" + to_key(key)


def _add(file: Appending, key: bytes, amount: int) -> int:
    number = _sum(file, key, amount)
    file.append(encode(key, b"%d" % number))
    return number


def _sum(file: Appending, key: bytes, amount: int) -> int:
    number = _number(file.replay.values.get(key, b""), key) + amount
    if not I64_MIN <= number <= I64_MAX:
        raise StoreError(f"adding {amount} to key {key[1:]!r} leaves 64 bits")
    return number


def _number(value: bytes, key: bytes) -> int:
    """Return the number in a counter's value; an empty value counts as 0, as with torch.

    Raises StoreError for a value that is no 64-bit number.
    """
    number = counter_of(value) if value else 0
    if number is None:
        raise StoreError(f"key {key[1:]!r} holds {value[:40]!r}, not a 64-bit number")
    return number
