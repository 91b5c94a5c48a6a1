"""The key-value machine: how much it stores, and what no client of torch sends.

What each operation answers, and whom it wakes, is shown by the conformance of the stores, and
against a plain model by test_store_model.py.
"""

from __future__ import annotations

import pytest

from rallypoint.errors import ProtocolError
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_fields import encode_i64
from rallypoint.wire.c10d_server import (
    Add,
    Append,
    Barrier,
    CompareSet,
    CountKeys,
    DeleteKey,
    MultiSet,
    QueuePop,
    QueuePush,
    Set,
    WaitKeys,
)

A, B = 1, 2


def test_a_second_wait_while_one_is_pending_is_refused() -> None:
    machine = KeyValueMachine()
    machine.apply(A, WaitKeys((b"k",)))
    for second in (WaitKeys((b"l",)), Barrier(b"b", 2)):
        with pytest.raises(ProtocolError, match="second wait"):
            machine.apply(A, second)
    assert machine.apply(B, CountKeys()) == [(B, encode_i64(0))]


def test_what_is_stored_is_counted_and_limited() -> None:
    entry = 128
    machine = KeyValueMachine(max_bytes=2 * (entry + 10))
    machine.apply(A, Set(b"key-1", b"12345"))
    machine.apply(A, QueuePush(b"queue", b"12345"))
    assert machine.stored_bytes == 2 * (entry + 10)
    more: list[c10d.StoreRequest] = [
        Set(b"k", b""),
        Set(b"key-1", b"123456"),
        Append(b"key-1", b"6"),
        Add(b"n", 1),
        CompareSet(b"k", b"", b""),
        MultiSet(((b"k", b""),)),
        QueuePush(b"queue", b""),
        Barrier(b"b", 2),
    ]
    for request in more:
        with pytest.raises(ProtocolError, match=r"limit of 276 .*--max-memory"):
            machine.apply(A, request)
    assert machine.stored_bytes == 2 * (entry + 10)
    machine.apply(A, Set(b"key-1", b"54321"))
    machine.apply(A, QueuePop(b"queue"))
    assert machine.stored_bytes == entry + 10
    machine.apply(A, MultiSet(((b"key-2", b"1234"), (b"key-2", b"12345"))))
    assert machine.stored_bytes == 2 * (entry + 10)
    for key in (b"key-1", b"key-2"):
        machine.apply(A, DeleteKey(key))
    assert machine.stored_bytes == 0
