"""The records of a store's file, and what they add up to. Pure.

The format is that of `torch.distributed.FileStore`, so that both can share a file: nothing but
records of u32 key length, key, u32 value length, value, little-endian. A user's key `k` is `/k`
there; `-/k` deletes it; `refcount/` counts the objects that have the file open, `cleanup/` those
that were closed.

Three more kinds of record are for us alone. To torch they delete keys that nobody can have, which
is to do nothing:

    -push/k   puts the value at the end of the queue k
    -pop/k    takes the first item of the queue k
    -batch/   the value is the records that follow, with every bit flipped; they count only
              together, so that all of a multi_set is seen, or none of it

The format has no checksum. What a killed writer left at the end of a file is recognised by being
shorter than it says. Records that torch appended after that are recognised by what then stands
where a record should begin, and by ending where the file ends. Only if they end exactly where the
unfinished value would have, they pass for a part of it. The bits of a batch are flipped so that
its copy does not look like records.
"""

from __future__ import annotations

import re
import struct
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from rallypoint.errors import StoreCorruptError

MAX_KEY_BYTES = 0xFF00  # of a user's, without slash and mark
MAX_VALUE_BYTES = 0xFFFFFFFF
REFCOUNT = b"refcount/"
CLEANUP = b"cleanup/"

_USER, _DELETE, _PUSH, _POP, _BATCH = b"/", b"-/", b"-push/", b"-pop/", b"-batch/"
_BOOKKEEPING = (REFCOUNT, CLEANUP)
_OPEN_ENDED = (_USER, _DELETE, _PUSH, _POP)
_WHOLE = (*_BOOKKEEPING, _BATCH)

# With two zeros after the low half, few other bytes look like the length of a key.
_MAX_RECORD_KEY_BYTES = 0xFFFF
_U32 = struct.Struct("<I")
_FIRST_BYTES = _U32.pack(len(REFCOUNT)) + REFCOUNT
_FLIP = bytes(255 - byte for byte in range(256))
_NUMBER = re.compile(rb"-?\d{1,20}")
_LIKE_A_RECORD = re.compile(rb"(?s)(?=..\0\0(?:/|-|refcount/|cleanup/))")
_TRAIL_BYTES = 256


def encode(key: bytes, value: bytes) -> bytes:
    """Return a record that stores a value.

    `key` is a user's with its slash, or REFCOUNT or CLEANUP. Raises ValueError for what the format
    has no room for; so do the other encoders.
    """
    return _encode(b"", key, value)


def encode_deletion(key: bytes) -> bytes:
    """Return a record that deletes a user's key."""
    return _encode(b"-", key, b"")


def encode_push(key: bytes, item: bytes) -> bytes:
    """Return a record that puts an item at the end of a queue."""
    return _encode(b"-push", key, item)


def encode_pop(key: bytes) -> bytes:
    """Return a record that takes the first item of a queue."""
    return _encode(b"-pop", key, b"")


def encode_batch(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return records that store values, all of them or none."""
    records = [encode(key, value) for key, value in pairs]
    if len(records) < 2:
        return b"".join(records)
    visible = b"".join(records)
    return _encode(b"", _BATCH, visible.translate(_FLIP)) + visible


def _encode(mark: bytes, key: bytes, value: bytes) -> bytes:
    if len(key) - 1 > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} bytes, not {len(key) - 1}")
    if _LIKE_A_RECORD.search(key):
        raise ValueError(f"a key must not look like a record of a store's file: {key[:80]!r}")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes, not {len(value)}")
    key = mark + key
    return b"".join((_U32.pack(len(key)), key, _U32.pack(len(value)), value))


class Tail(Struct, frozen=True):
    """The incomplete end of a file that a killed writer left; the next writer repairs it."""

    torn_bytes: int = 0  # an unfinished record, to be cut off
    owed: bytes = b""  # the rest of a batch of which all is known, to be appended


class Replay:
    """The content of a store's file, by the records that were read so far.

    Keys have the slash that they have in the file.
    """

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name
        # Keys that somebody waits for, by the id of the set; a key leaves it when it is written.
        self.watchers: dict[int, set[bytes]] = {}
        self.restart()

    def restart(self) -> None:
        """Forget all but the watchers: the file is another one, or must be read anew."""
        self.values: dict[bytes, bytes] = {}
        self.queues: dict[bytes, deque[bytes]] = {}  # only non-empty ones
        self.refcount = 0
        self.cleanups = 0
        self.offset = 0  # where the next record begins
        self.trail = b""  # what stands before it, to recognise the file by

    def read(self, data: bytes) -> Tail:
        """Apply the whole records of `data`, the file from `offset` on; return what is unfinished.

        That is the last record, or a batch, of which no record is applied then. Raises
        StoreCorruptError, with nothing changed.
        """
        records, end, tail = self._split(data)
        for key, value in records:
            self._apply(key, value)
        self.offset += end
        fresh = data[max(0, end - _TRAIL_BYTES) : end]
        self.trail = (self.trail + fresh)[-_TRAIL_BYTES:]
        return tail

    def has(self, key: bytes) -> bool:
        """Return whether the key has a value, or a queue that is not empty."""
        return key in self.values or key in self.queues

    def _apply(self, key: bytes, value: bytes) -> None:
        if key.startswith(_DELETE):
            self.values.pop(key[1:], None)
        elif key.startswith(_PUSH):
            self._mark_written(name := key[len(_PUSH) - 1 :])
            self.queues.setdefault(name, deque()).append(value)
        elif key.startswith(_POP):
            name = key[len(_POP) - 1 :]
            if queue := self.queues.get(name):
                queue.popleft()
                if not queue:
                    del self.queues[name]
        elif key == REFCOUNT:
            self.refcount = int(value)
        elif key == CLEANUP:
            self.cleanups = int(value)
        elif key != _BATCH:
            self._mark_written(key)
            self.values[key] = value

    def _mark_written(self, key: bytes) -> None:
        for watcher in tuple(self.watchers.values()):
            watcher.discard(key)

    def _split(self, data: bytes) -> tuple[list[tuple[bytes, bytes]], int, Tail]:
        """Return the whole records of `data`, where they end in it, and what follows them.

        Raises StoreCorruptError.
        """
        records: list[tuple[bytes, bytes]] = []
        start = 0
        while start < len(data):
            try:
                found = _record_at(data, start)
                if found is None:
                    self._check_torn(data, start)
                    return records, start, Tail(torn_bytes=len(data) - start)
                key, value, end = found
                owed = _owed(value, data, end) if key == _BATCH else b""
            except _ImplausibleError as error:
                offset = self.offset + start
                raise StoreCorruptError(self._file_name, offset, str(error)) from None
            if owed:
                return records, start, Tail(owed=owed)
            records.append((key, value))
            start = end
        return records, start, Tail()

    def _check_torn(self, data: bytes, start: int) -> None:
        """Check that the data from `start`, an unfinished record, can be cut off without loss.

        Raises _ImplausibleError.
        """
        torn = data[start:]
        if self.offset + start == 0 and torn[: len(_FIRST_BYTES)] != _FIRST_BYTES[: len(torn)]:
            raise _ImplausibleError("it does not begin as a store's file does")
        # Of what follows, the beginning may have passed for the rest of the unfinished record.
        before = (self.trail + data[max(0, start - _TRAIL_BYTES) : start])[-_TRAIL_BYTES:]
        end = before + torn
        for match in _LIKE_A_RECORD.finditer(end):
            if _are_records(end, match.start()):
                raise _ImplausibleError("a record that was never finished has others after it")


class _ImplausibleError(Exception):
    """The bytes of a file can't have been written by a store."""


def _record_at(data: bytes, start: int) -> tuple[bytes, bytes, int] | None:
    """Return key, value and end of the record at `start`; None if it is incomplete.

    Raises _ImplausibleError if no record can begin there.
    """
    key_start = start + _U32.size
    head = data[start:key_start]
    key_bytes = int.from_bytes(head, "little")
    if key_bytes > _MAX_RECORD_KEY_BYTES or (key_bytes == 0 and len(head) == _U32.size):
        raise _ImplausibleError(f"{head!r} is not the length of a key")
    if len(head) < _U32.size:
        return None
    value_head = key_start + key_bytes
    key = data[key_start:value_head]
    _check_key(key, len(key) == key_bytes)
    value_start = value_head + _U32.size
    if value_start > len(data):
        return None
    end = value_start + int(_U32.unpack_from(data, value_head)[0])
    if key in _BOOKKEEPING and not end - value_start <= 20:
        raise _ImplausibleError(f"{key!r} counts with {end - value_start} digits")
    if key.startswith((_DELETE, _POP)) and end != value_start:
        raise _ImplausibleError(f"{key[:40]!r} has a value")
    if end > len(data):
        return None
    value = data[value_start:end]
    if key in _BOOKKEEPING and not _NUMBER.fullmatch(value):
        raise _ImplausibleError(f"{key!r} is {value!r}, not a number")
    return key, value, end


def _check_key(key: bytes, is_whole: bool) -> None:
    known = key in _WHOLE
    known = known or (key.startswith(_OPEN_ENDED) and not _LIKE_A_RECORD.search(key))
    if not is_whole:
        known = known or any(begin.startswith(key) for begin in (*_OPEN_ENDED, *_WHOLE))
    try:
        getincrementaldecoder("utf-8")().decode(key, final=is_whole)
    except UnicodeDecodeError:
        known = False
    if not known:
        raise _ImplausibleError(f"{key[:40]!r} is not a key of a store")


def _owed(batch: bytes, data: bytes, start: int) -> bytes:
    """Return the bytes of a batch's records that are missing at the end of `data`.

    `batch`, the value at the batch's head, is these records with every bit flipped; in `data` they
    begin at `start`. Raises _ImplausibleError if the two differ.
    """
    promised = batch.translate(_FLIP)
    if not _are_records(promised, 0):
        raise _ImplausibleError("a batch does not consist of records")
    there = data[start : start + len(promised)]
    if not promised.startswith(there):
        raise _ImplausibleError("the records of a batch are not those that its head names")
    return promised[len(there) :]


def _are_records(data: bytes, start: int) -> bool:
    """Return whether the data from `start` to its end is nothing but whole records."""
    try:
        while start < len(data):
            found = _record_at(data, start)
            if found is None:
                return False
            start = found[2]
    except _ImplausibleError:
        return False
    return True
