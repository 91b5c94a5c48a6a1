"""The store's fast path: it serves what is common, and leaves all else as it found it.

That it answers as the other path does is shown in `test_c10d_fuzz.py`: there, what comes in one
piece takes this one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from rallypoint.elastic.stores import c10d_client
from rallypoint.store.fast_path import FastPath
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_fields import (
    MAX_KEY_BYTES,
    READY,
    STOP_WAITING,
    encode_i64,
    encode_string,
)

ME, OTHER = 1, 2
SET = c10d_client.set_value(b"new", b"v" * 64)
GET = c10d_client.get(b"text")


def machine() -> KeyValueMachine:
    made = KeyValueMachine()
    for key, value in ((b"text", b"abc"), (b"number", b"41"), (b"negative", b"-3")):
        made.apply(OTHER, c10d.Set(key, value))
    made.apply(OTHER, c10d.QueuePush(b"queue", b"item"))
    made.operations = 0
    return made


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (SET, b""),
        (SET * 3, b""),
        (SET + GET, encode_string(b"abc")),
        (GET, encode_string(b"abc")),
        (c10d_client.get(b"missing"), encode_string(b"")),
        (c10d_client.add(b"number", 1), encode_i64(42)),
        (c10d_client.add(b"negative", -1), encode_i64(-4)),
        (c10d_client.add(b"missing", 5), encode_i64(5)),
        (c10d_client.compare_set(b"text", b"abc", b"d"), encode_string(b"d")),
        (c10d_client.compare_set(b"text", b"x", b"d"), encode_string(b"abc")),
        (c10d_client.check([b"text"]), READY),
        (c10d_client.wait([b"text"]), STOP_WAITING),
    ],
)
def test_what_is_common_is_served(request_: bytes, answer: bytes) -> None:
    store = machine()
    assert FastPath(store).serve(ME, request_) == (answer, b"")
    assert store.operations == request_.count(SET) + bool(answer)


def nobody(store: KeyValueMachine) -> None:
    pass


def somebody_waits(store: KeyValueMachine) -> None:
    for client, key in enumerate((b"new", b"number", b"text"), 10):
        store.apply(client, c10d.DeleteKey(key))
        store.apply(client, c10d.WaitKeys((key,)))


def i_wait(store: KeyValueMachine) -> None:
    store.apply(ME, c10d.WaitKeys((b"missing",)))


def i_have_reserved(store: KeyValueMachine) -> None:
    store.apply(ME, c10d.WaitKeys((b"queue",)))


def full(store: KeyValueMachine) -> None:
    store._max_bytes = store.stored_bytes


Before = Callable[[KeyValueMachine], None]


@pytest.mark.parametrize(
    ("before", "request_"),
    [
        *((nobody, request[:end]) for request in (SET, GET) for end in range(1, len(request))),
        (nobody, GET + b"\x03"),
        (nobody, c10d_client.add(b"text", 1)),
        (nobody, c10d_client.add(b"number", 2**63 - 1)),
        (nobody, c10d_client.add(b"number", 1)[:-1]),
        (nobody, c10d_client.compare_set(b"text", b"abc", b"d")[:-1]),
        (nobody, c10d_client.compare_set(b"missing", b"", b"d")),
        (nobody, c10d_client.check([b"missing"])),
        (nobody, c10d_client.check([b"text", b"number"])),
        (nobody, c10d_client.check([b"queue"])),
        (nobody, c10d_client.wait([b"missing"])),
        (nobody, c10d_client.wait([b"queue"])),
        (nobody, c10d_client.queue_pop(b"queue")),
        (nobody, c10d_client.COUNT_KEYS),
        (nobody, b"\xff"),
        (nobody, b"\x03" + encode_string(b"k" * (MAX_KEY_BYTES + 1))),
        (nobody, b"\x01" + encode_string(b"k" * (MAX_KEY_BYTES + 1)) + encode_string(b"")),
        (nobody, b"\x01" + struct.pack("<Q", 2**64 - 1)),
        (somebody_waits, SET),
        (somebody_waits, c10d_client.add(b"number", 1)),
        (somebody_waits, c10d_client.compare_set(b"text", b"", b"d")),
        (i_wait, c10d_client.wait([b"text"])),
        (i_have_reserved, GET),
        (full, SET),
        (full, c10d_client.add(b"missing", 1)),
        (full, c10d_client.compare_set(b"text", b"abc", b"abcd")),
    ],
)
def test_all_else_is_left_and_nothing_is_changed(before: Before, request_: bytes) -> None:
    store = machine()
    before(store)
    kept = dict(store.values), store.stored_bytes, store.operations
    assert FastPath(store).serve(ME, request_) == (b"", request_)
    assert (dict(store.values), store.stored_bytes, store.operations) == kept


def test_sets_before_one_that_is_cut_are_carried_out_and_the_rest_is_left() -> None:
    store = machine()
    assert FastPath(store).serve(ME, SET + SET[:30]) == (b"", SET[:30])
    assert store.values[b"new"] == b"v" * 64
    assert store.operations == 1
