"""Whatever clients send, in whatever pieces: the same replies, a closed connection, or nothing."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.store_conversation import (
    FIELDS,
    VALIDATE,
    Choices,
    Store,
    buffered_bytes,
    check_mutant,
    check_segmentation,
    check_stream,
)
from tests.harness.properties import examples
from tests.harness.store_client import u64

from rallypoint.wire.c10d_fields import Opcode

CASES = 2000
many = settings(
    max_examples=examples(CASES),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
decisions = st.binary(min_size=200, max_size=200)


@many
@given(decisions)
def test_any_segmentation_of_a_conversation_gives_the_same_replies(data: bytes) -> None:
    check_segmentation(data)


@many
@given(decisions)
def test_a_client_that_sends_nonsense_is_nobody_elses_trouble(data: bytes) -> None:
    check_mutant(data)


def test_conversations_have_all_opcodes_and_are_mostly_answered() -> None:
    """The tests above would pass too if nothing was ever said."""
    asked, answered, closed = set[int](), 0, 0
    for seed in range(300):
        data = random.Random(seed).randbytes(400)
        store = Store()
        for client, request in Choices(data).conversation((1, 2, 3)):
            asked.add(request.removeprefix(VALIDATE)[0] if request else -1)
            store.deliver(client, request)
        answered += sum(map(bool, store.replies.values()))
        closed += sum(why != "went away" for why in store.closed.values())
    assert asked == {-1, *FIELDS}
    assert answered > 400
    assert 5 < closed < answered


@pytest.mark.parametrize(
    ("stream", "is_closed"),
    [
        (bytes((Opcode.SET,)) + u64(1) + b"k" + u64((8 << 20) + 1), True),
        (bytes((Opcode.SET,)) + u64(1) + b"k" + u64(8 << 20), False),
        (bytes((Opcode.SET,)) + u64(2**63), True),
        (bytes((Opcode.SET,)) + u64(2**64 - 1), True),
        (bytes((Opcode.GET,)) + u64(8193), True),
        (bytes((Opcode.GET,)) + u64(8192), False),
        (bytes((Opcode.MULTI_SET,)) + u64(131_072), False),
        (bytes((Opcode.MULTI_SET,)) + u64(131_073), True),
        (bytes((Opcode.MULTI_GET,)) + u64(131_072), False),
        (bytes((Opcode.WAIT,)) + u64(131_072), False),
        (bytes((Opcode.CHECK,)) + u64(2**63), True),
    ],
)
def test_an_announcement_costs_nothing_before_its_bytes_come(
    stream: bytes, is_closed: bool
) -> None:
    store = Store()
    store.deliver(1, VALIDATE)
    tracemalloc.start()
    try:
        store.deliver(1, stream)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10
    assert (1 in store.closed) is is_closed
    if not is_closed:
        assert buffered_bytes(store.sessions[1]) <= len(stream)


def test_what_was_served_is_not_kept() -> None:
    store = Store()
    request = bytes((Opcode.SET,)) + u64(1) + b"k" + u64(1 << 20) + bytes(1 << 20)
    store.deliver(1, VALIDATE)
    tracemalloc.start()
    try:
        for _ in range(20):
            for start in range(0, len(request), 1 << 16):
                store.deliver(1, request[start : start + (1 << 16)])
            assert buffered_bytes(store.sessions[1]) <= len(request)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3 << 20
    assert peak < 8 << 20


def test_no_first_byte_but_validate_gets_an_answer() -> None:
    for first in range(256):
        store = Store()
        store.deliver(1, bytes((first,)) * 40)
        assert (1 in store.closed, bytes(store.replies[1])) == (True, b"")


def test_an_opcode_of_the_future_closes_that_client_only() -> None:
    for opcode in range(max(Opcode) + 1, 256):
        check_stream(Choices(bytes(range(200))), VALIDATE + bytes((opcode,)) + bytes(40))
        store = Store()
        store.deliver(1, VALIDATE + bytes((opcode,)))
        assert f"unknown c10d opcode {opcode}" in store.closed[1]
