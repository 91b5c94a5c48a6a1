"""The records of a store's file: what they add up to, and what an unfinished one does."""

from __future__ import annotations

import struct
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.properties import examples

from rallypoint.elastic.stores.file_records import (
    MAX_KEY_BYTES,
    REFCOUNT,
    Replay,
    Tail,
    encode,
    encode_batch,
    encode_deletion,
    encode_pop,
    encode_push,
)
from rallypoint.errors import StoreCorruptError

Operation = tuple[str, list[tuple[bytes, bytes]]]
FIRST = encode(REFCOUNT, b"1")

# A value that looks like records, in front of an unfinished one, may have swallowed it: refused.
values = st.binary(max_size=40).filter(lambda value: not {b"/"[0], b"-"[0]} & set(value))
keys = st.sampled_from([b"/", b"/a", b"/b/c", b"//a", "/ä".encode()])
pairs = st.lists(st.tuples(keys, values), min_size=2, max_size=3)
operations = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["set", "delete", "push", "pop"]),
            st.tuples(keys, values).map(lambda pair: [pair]),
        ),
        st.tuples(st.just("multi_set"), pairs),
    ),
    max_size=8,
)


def record(operation: Operation) -> bytes:
    what, ((key, value), *_) = operation
    if what == "set":
        return encode(key, value)
    if what == "delete":
        return encode_deletion(key)
    if what == "push":
        return encode_push(key, value)
    return encode_pop(key) if what == "pop" else encode_batch(operation[1])


class Model:
    """What a store's file should add up to, from the operations themselves."""

    def __init__(self, done: list[Operation]) -> None:
        self.values: dict[bytes, bytes] = {}
        self.queues: dict[bytes, deque[bytes]] = {}
        for what, changed in done:
            key, value = changed[0]
            if what in ("set", "multi_set"):
                self.values.update(changed)
            elif what == "delete":
                self.values.pop(key, None)
            elif what == "push":
                self.queues.setdefault(key, deque()).append(value)
            elif self.queues.get(key):
                self.queues[key].popleft()
        self.queues = {key: queue for key, queue in self.queues.items() if queue}


def replayed(data: bytes) -> tuple[Replay, Tail]:
    replay = Replay("some-file")
    return replay, replay.read(data)


def refusal(data: bytes) -> StoreCorruptError:
    replay = Replay("some-file")
    with pytest.raises(StoreCorruptError) as caught:
        replay.read(data)
    assert (replay.offset, replay.values, replay.queues, replay.refcount) == (0, {}, {}, 0)
    assert "some-file" in str(caught.value)
    assert f"byte {caught.value.offset}:" in str(caught.value)
    return caught.value


@settings(max_examples=examples(60), deadline=None)
@given(done=operations)
def test_a_file_cut_anywhere_is_a_prefix_of_its_operations(done: list[Operation]) -> None:
    data, ends = FIRST, [len(FIRST)]
    for operation in done:
        data += record(operation)
        ends.append(len(data))
    for cut in range(len(data) + 1):
        replay, tail = replayed(data[:cut])
        whole = sum(end <= cut for end in ends)
        model = Model(done[: max(0, whole - 1)])
        assert (replay.values, replay.queues) == (model.values, model.queues)
        assert replay.refcount == min(1, whole)
        assert replay.offset == ([0, *ends][whole])
        if tail.owed:
            assert data[:cut] + tail.owed == data[: ends[whole]]
        else:
            assert tail.torn_bytes == cut - replay.offset
        replay.read(data[replay.offset :])
        model = Model(done)
        assert (replay.values, replay.queues) == (model.values, model.queues)


@settings(max_examples=examples(40), deadline=None)
@given(done=operations, cuts=st.lists(st.integers(0, 400), max_size=4).map(sorted))
def test_reading_in_pieces_adds_up_to_the_same(done: list[Operation], cuts: list[int]) -> None:
    data = FIRST + b"".join(map(record, done))
    replay = Replay("some-file")
    for cut in [*cuts, len(data)]:
        replay.read(data[replay.offset : max(cut, replay.offset)])
        assert data[: replay.offset].endswith(replay.trail)
    assert (replay.values, replay.offset) == (Model(done).values, len(data))


def test_a_value_that_could_have_swallowed_a_record_is_refused_and_never_misread() -> None:
    data = FIRST + encode(b"/", b"/") + encode(b"/", b"")
    assert replayed(data)[0].values == {b"/": b""}
    assert "others after it" in str(refusal(data[:-4]))


UNFINISHED = {
    "a long text": encode(b"/key", b"the quick brown fox " * 20),
    "a short text": encode(b"/key", b"value"),
    "zeros": encode(b"/key", bytes(100)),
    "a long key": encode(b"/" + b"k" * 300, b"v"),
    "a count": encode(REFCOUNT, b"12"),
    "a deletion": encode_deletion(b"/key"),
    "a push": encode_push(b"/key", b"item"),
    "a batch": encode_batch([(b"/a", b"1"), (b"/b", b"2" * 50), (b"/c", b"3")]),
}


def pass_for_its_rest(missing_bytes: int, after: list[bytes]) -> bool:
    """Whether records end just where an unfinished one would: the format can't tell then."""
    return missing_bytes in (len(after[0]), len(after[0] + after[1]))


@pytest.mark.parametrize("name", UNFINISHED)
def test_records_after_an_unfinished_one_are_refused_wherever_it_was_cut(name: str) -> None:
    unfinished = UNFINISHED[name]
    before = FIRST + encode(b"/before", b"x")
    value_bytes = len(unfinished) - 12 if name in ("a long text", "zeros") else 0
    for cut in range(1, len(unfinished)):
        for first in (encode(b"/x", b"y"), encode(b"/after/it", b"1" * 60), FIRST):
            after = [first, encode(b"/last", b"z")]
            missing_bytes = len(unfinished) - cut
            if missing_bytes <= value_bytes and pass_for_its_rest(missing_bytes, after):
                continue
            data = before + unfinished[:cut] + b"".join(after)
            assert refusal(data).offset >= len(before)
            # The same for one who had read all that was whole before.
            replay, _ = replayed(before + unfinished[:cut])
            with pytest.raises(StoreCorruptError):
                replay.read(data[replay.offset :])


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"hello world, this is no store", 0),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0", 0),
        (b"1\n", 0),
        (bytes(100), 0),
        (b"\x02\0\0\0/k\xff\xff", 0),
        (FIRST + bytes(4), len(FIRST)),
        (FIRST + FIRST[:4] + b"/k\2\0\0\0/refcou", len(FIRST)),
        (FIRST + encode(b"-batch/", b"no records"), len(FIRST)),
        (FIRST + encode(b"k", b"v"), len(FIRST)),
        (FIRST + encode(b"-push", b"v"), len(FIRST)),
        (FIRST + encode(b"/\xff", b"v"), len(FIRST)),
        (FIRST + encode(b"-/k", b"v"), len(FIRST)),
        (FIRST + encode(b"-pop/k", b"v"), len(FIRST)),
        (FIRST + encode(REFCOUNT, b"many"), len(FIRST)),
        (FIRST + encode(REFCOUNT, b"1" * 30), len(FIRST)),
        (FIRST + struct.pack("<I", 0x10000) + b"/" * 0x10000 + bytes(4), len(FIRST)),
    ],
)
def test_what_is_no_record_is_refused_where_it_begins(data: bytes, offset: int) -> None:
    assert refusal(data).offset == offset


def test_a_batch_followed_by_other_records_is_refused() -> None:
    batch = encode_batch([(b"/a", b"1"), (b"/b", b"2")])
    cut = len(batch) - len(encode(b"/b", b"2"))
    assert refusal(FIRST + batch[:cut] + encode(b"/c", b"3")).offset == len(FIRST)


def test_a_watched_key_counts_as_written_though_it_is_gone_again() -> None:
    replay = Replay("some-file")
    missing = {b"/a", b"/q", b"/never"}
    replay.watchers[1] = missing
    replay.read(FIRST + encode(b"/a", b"1") + encode_deletion(b"/a"))
    replay.read(encode_push(b"/q", b"1") + encode_pop(b"/q"))
    assert missing == {b"/never"}
    assert not replay.has(b"/a")
    assert not replay.has(b"/q")


def test_a_key_is_as_long_as_all_its_records_allow() -> None:
    key = b"/" + b"k" * MAX_KEY_BYTES
    replay, tail = replayed(FIRST + encode(key, b"") + encode_push(key, b"") + encode_pop(key))
    assert key in replay.values
    assert tail == Tail()
    replay.read(encode_deletion(key))
    assert replay.values == {}
    for encoded in (lambda k: encode(k, b""), encode_deletion, encode_pop):
        with pytest.raises(ValueError, match=f"at most {MAX_KEY_BYTES} bytes"):
            encoded(key + b"k")
    with pytest.raises(ValueError, match="must not look like a record"):
        encode(b"/a\2\0\0\0/b", b"")
