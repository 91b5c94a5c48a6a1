"""The client's side of the c10d protocol: what it sends, what it reads, and when it asks again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.store_client import i64, text, u64

from rallypoint.elastic.stores import c10d_client as wire
from rallypoint.elastic.stores import c10d_operations as operations
from rallypoint.elastic.stores.c10d_operations import Exchange, MissingError, Operation, Wait
from rallypoint.errors import ProtocolError
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_fields import (
    MAX_KEY_BYTES,
    MAX_KEYS_PER_REQUEST,
    MAX_VALUE_BYTES,
    Opcode,
)
from rallypoint.wire.c10d_server import ServerSession

REQUESTS: list[tuple[bytes, c10d.StoreRequest]] = [
    (wire.set_value(b"/k", b"v"), c10d.Set(b"/k", b"v")),
    (wire.compare_set(b"/k", b"", b"v"), c10d.CompareSet(b"/k", b"", b"v")),
    (wire.get(b""), c10d.Get(b"")),
    (wire.add(b"/k", -(2**63)), c10d.Add(b"/k", -(2**63))),
    (wire.check([b"/a", b""]), c10d.Check((b"/a", b""))),
    (wire.wait([]), c10d.WaitKeys(())),
    (wire.COUNT_KEYS, c10d.CountKeys()),
    (wire.delete_key(b"/k"), c10d.DeleteKey(b"/k")),
    (wire.append(b"/k", b"v"), c10d.Append(b"/k", b"v")),
    (wire.multi_get([b"/a", b"/b"]), c10d.MultiGet((b"/a", b"/b"))),
    (wire.multi_set([(b"/a", b"1"), (b"/b", b"")]), c10d.MultiSet(((b"/a", b"1"), (b"/b", b"")))),
    (wire.CANCEL_WAIT, c10d.CancelWait()),
    (wire.ping(2**32 - 1), c10d.Ping(2**32 - 1)),
    (wire.queue_push(b"/q", b"v"), c10d.QueuePush(b"/q", b"v")),
    (wire.queue_pop(b"/q"), c10d.QueuePop(b"/q")),
    (wire.queue_length(b"/q"), c10d.QueueLength(b"/q")),
    (wire.LIST_KEYS, c10d.ListKeys()),
    (wire.barrier(b"/b", 3), c10d.Barrier(b"/b", 3)),
]


def test_every_request_is_what_a_server_reads() -> None:
    session = ServerSession()
    session.receive(wire.handshake(7))
    assert session.next_request() == c10d.Ping(7)
    for sent, meant in REQUESTS:
        session.receive(sent)
        assert session.next_request() == meant
        assert session.next_request() is None
    opcodes = {sent[0] for sent, _ in REQUESTS} | {wire.handshake(0)[0]}
    assert opcodes == set(Opcode)


def read_pieces(read: wire.Read[Any], pieces: Iterable[bytes]) -> tuple[Any, bytes]:
    """What is read from bytes that come in pieces, and the bytes that are left."""
    buffer = wire.ReplyBuffer()
    reading = read(buffer)
    arriving = iter(pieces)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            answer = end.value
            break
        buffer.receive(next(arriving))
    for rest in arriving:
        buffer.receive(rest)
    return answer, bytes(buffer.data[buffer.position :])


REPLIES: list[tuple[wire.Read[Any], bytes, Any]] = [
    (wire.read_check, b"\0", True),
    (wire.read_check, b"\1", False),
    (wire.read_i64, i64(-5), -5),
    (wire.read_ping, b"\1\2\3\4", 0x04030201),
    (wire.read_string, text(b""), b""),
    (wire.read_string, text(b"value"), b"value"),
    (wire.read_strings(3), text(b"a") + text(b"") + text(b"ccc"), [b"a", b"", b"ccc"]),
    (wire.read_strings(0), b"", []),
    (wire.read_popped, i64(2) + text(b"item"), b"item"),
    (wire.read_popped, i64(1) + text(b""), b""),
    (wire.read_listed, i64(2) + text(b"/a") + text(b"init/"), [b"/a", b"init/"]),
    (wire.read_checks(3), b"\0\1\0", [True, False, True]),
    (wire.both(wire.read_check, wire.read_string), b"\0" + text(b"v"), (True, b"v")),
    (wire.read_is_cancelled, b"\1", True),
    (wire.read_is_cancelled, b"\0\1", False),
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(REPLIES), st.data())
def test_a_reply_is_read_from_any_pieces_and_no_byte_more(
    case: tuple[wire.Read[Any], bytes, Any], data: st.DataObject
) -> None:
    read, reply, meant = case
    stream = reply + b"\1next"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    assert read_pieces(read, pieces) == (meant, b"\1next")


def test_an_empty_queue_has_no_first_item() -> None:
    assert read_pieces(wire.read_popped, [i64(0), b"\1"]) == (None, b"\1")


@pytest.mark.parametrize(
    ("read", "reply", "meant"),
    [
        (wire.read_string, text(b"value"), b"value"),
        (wire.read_string, text(b""), b""),
        (wire.read_i64, i64(-5), -5),
        (wire.read_i64, i64(0), 0),
        (wire.read_check, b"\0", True),
        (wire.read_check, b"\1", False),
    ],
)
def test_a_whole_reply_is_known_at_a_glance(
    read: wire.Read[Any], reply: bytes, meant: object
) -> None:
    whole = wire.WHOLE[read]
    assert whole(reply) == meant
    for other in (b"", reply[:-1], reply + b"x"):
        assert whole(other) is None


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (wire.read_check, b"\2"),
        (wire.read_string, u64(2**63)),
        (wire.read_popped, i64(-1)),
        (wire.read_listed, i64(-1)),
        (wire.read_listed, i64(1) + u64(MAX_KEY_BYTES + 1)),
        (wire.read_is_cancelled, b"\0\0"),
    ],
)
def test_garbage_is_refused_as_soon_as_it_is_seen(read: wire.Read[Any], reply: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"\w"):
        read_pieces(read, [bytes((byte,)) for byte in reply])


LONG_KEY, LONG_VALUE = b"/" + b"k" * MAX_KEY_BYTES, bytes(MAX_VALUE_BYTES + 1)
SINGLE_KEYED: list[Callable[[bytes], bytes]] = [
    wire.get,
    wire.delete_key,
    wire.queue_pop,
    wire.queue_length,
    lambda key: wire.set_value(key, b""),
    lambda key: wire.compare_set(key, b"", b""),
    lambda key: wire.add(key, 1),
    lambda key: wire.append(key, b""),
    lambda key: wire.queue_push(key, b""),
    lambda key: wire.barrier(key, 1),
    lambda key: wire.check([key]),
    lambda key: wire.wait([key]),
    lambda key: wire.multi_get([key]),
    lambda key: wire.multi_set([(key, b"")]),
]


@pytest.mark.parametrize("encode", SINGLE_KEYED)
def test_a_key_over_the_limit_is_refused_with_both_numbers(
    encode: Callable[[bytes], bytes],
) -> None:
    encode(LONG_KEY[:MAX_KEY_BYTES])
    with pytest.raises(ValueError, match=r"/kkk.* 8193 bytes, more than the 8192"):
        encode(LONG_KEY)


@pytest.mark.parametrize(
    "encode",
    [
        lambda value: wire.set_value(b"", value),
        lambda value: wire.compare_set(b"", value, b""),
        lambda value: wire.compare_set(b"", b"", value),
        lambda value: wire.append(b"", value),
        lambda value: wire.queue_push(b"", value),
        lambda value: wire.multi_set([(b"", value)]),
    ],
)
def test_a_value_over_the_limit_is_refused_with_both_numbers(
    encode: Callable[[bytes], bytes],
) -> None:
    encode(LONG_VALUE[:-1])
    with pytest.raises(ValueError, match=r"8388609 bytes, more than the 8388608"):
        encode(LONG_VALUE)


def test_more_keys_than_a_request_can_have_are_refused() -> None:
    keys = [b""] * (MAX_KEYS_PER_REQUEST + 1)
    assert (
        len(wire.multi_set(list(zip(keys[1:], keys[1:], strict=True))))
        == 9 + 16 * MAX_KEYS_PER_REQUEST
    )
    for encode in (
        wire.check,
        wire.multi_get,
        lambda keys: wire.multi_set(list(zip(keys, keys, strict=True))),
    ):
        with pytest.raises(ValueError, match="131073 keys are more than the 131072"):
            encode(keys)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_number_of_more_than_64_bits_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"{number} is not within 64 bits"):
        wire.add(b"", number)
    with pytest.raises(ValueError, match=f"{number} is not within 64 bits"):
        wire.barrier(b"", number)


@pytest.mark.parametrize("key", ["", "k", "a/b", "schlüssel", "\udcff"])
def test_a_key_comes_back_from_the_wire(key: str) -> None:
    assert wire.wired_key(key)[:1] == b"/"
    assert wire.key_shown(wire.wired_key(key)) == key


# Operations


class Script:
    """Runs an operation, with an answer prepared for each of its steps."""

    def __init__(self, operation: Operation[Any], answers: Sequence[Any]) -> None:
        self.steps: list[Exchange | Wait] = []
        self.result: Any = None
        answer: Any = None
        prepared = iter(answers)
        try:
            while True:
                self.steps.append(operation.send(answer))
                answer = next(prepared)
        except StopIteration as end:
            self.result = end.value
        assert list(prepared) == []

    def opcodes(self) -> list[int]:
        return [step.request[0] for step in self.steps]


GET, CHECK, WAIT, MULTI_GET, POP, PING, BARRIER = 3, 5, 6, 10, 15, 13, 18


def test_a_value_that_is_there_costs_one_round_trip() -> None:
    assert Script(operations.get(b"/k"), [b"v"]).opcodes() == [GET]
    assert Script(operations.multi_get([b"/a", b"/b"]), [[b"1", b"2"]]).opcodes() == [MULTI_GET]


def test_an_empty_value_is_a_value_and_costs_no_wait() -> None:
    got = Script(operations.get(b"/k"), [b"", (True, b"")])
    assert (got.result, got.opcodes()) == (b"", [GET, CHECK])
    several = Script(operations.multi_get([b"/a", b"/b"]), [[b"1", b""], True, [b""]])
    assert (several.result, several.opcodes()) == ([b"1", b""], [MULTI_GET, CHECK, MULTI_GET])


def test_a_wait_that_ended_for_nothing_is_taken_up_again() -> None:
    woken = [b"", (False, b""), True]
    got = Script(operations.get(b"/k"), [*woken, *woken, b"v"])
    assert (got.result, got.opcodes().count(WAIT)) == (b"v", 2)
    popped = Script(operations.queue_pop(b"/q", True), [None, True, None, True, b"item"])
    assert (popped.result, popped.opcodes()) == (b"item", [POP, WAIT, POP, WAIT, POP])


def test_only_the_missing_keys_are_waited_for_and_named() -> None:
    keys = [b"/a", b"/b", b"/c"]
    with pytest.raises(MissingError) as error:
        Script(operations.multi_get(keys), [[b"1", b"", b""], False, False, [True, False]])
    assert error.value.keys == [b"/c"]


def test_keys_that_came_when_the_time_was_over_are_no_failure() -> None:
    assert Script(operations.wait([b"/a", b"/b"]), [False, False, [True, True]]).result is None


def test_a_barrier_first_has_answered_what_was_written_before() -> None:
    passed = Script(operations.barrier(b"/b", 2), [0, True])
    assert passed.opcodes() == [PING, BARRIER]
    with pytest.raises(MissingError):
        Script(operations.barrier(b"/b", 2), [0, False])


def test_what_can_not_be_done_twice_is_not_repeatable() -> None:
    popped = Script(operations.queue_pop(b"/q", False), [b"item"])
    passed = Script(operations.barrier(b"/b", 1), [0, True])
    got = Script(operations.get(b"/k"), [b"", (False, b""), True, b"v"])
    assert [step.is_repeatable for step in popped.steps] == [False]
    assert [step.is_repeatable for step in passed.steps] == [True, False]
    assert all(step.is_repeatable for step in got.steps)


def test_keys_that_fit_into_no_single_request_go_into_several() -> None:
    keys = [b"/%d" % number for number in range(MAX_KEYS_PER_REQUEST + 2)]
    first, rest = keys[:MAX_KEYS_PER_REQUEST], keys[MAX_KEYS_PER_REQUEST:]
    got = Script(operations.multi_get(keys), [first, rest])
    assert got.result == keys
    assert [step.request for step in got.steps] == [wire.multi_get(first), wire.multi_get(rest)]
    assert Script(operations.check(keys), [True, False]).result is False
    assert Script(operations.wait(keys), [True, True]).result is None
