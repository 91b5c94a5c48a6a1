"""The layout of shared memory: what is written is read, and nothing that is read is an error."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire import shm_words as at
from rallypoint.wire.shm import (
    EMPTY_SLOT,
    Reported,
    ShmRequest,
    fresh_shm,
    pack_printed,
    pack_request,
    pack_word,
    parse_slots,
)

WORDS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(0, 2**50)
KINDS = st.sampled_from(ShmRequest)
HEADER = struct.Struct(f"={at.HEADER_WORDS}q")


class Header(NamedTuple):
    """What the agent says."""

    workers: int
    current: bool
    number: int
    kind: ShmRequest
    deadline_ns: int


def split_request(word: int) -> tuple[int, ShmRequest]:
    """The number and the kind; a kind of a later version is taken for the strictest known one."""
    kind = word & at.KIND_MASK
    known = ShmRequest(kind) if kind <= ShmRequest.SAVE else ShmRequest.DRAIN
    return word >> at.KIND_BITS, known


def parse_header(shm: bytes) -> Header | None:
    """What the agent says, or None when this is no shared memory of this version."""
    if len(shm) < HEADER.size:
        return None
    magic, version, workers, current, request, deadline, *_ = HEADER.unpack_from(shm)
    if (magic, version) != (at.MAGIC, at.VERSION) or len(shm) < at.shm_bytes(max(workers, 0)):
        return None
    return Header(workers, current == 1, *split_request(request), deadline)


def written(shm: bytes, word: int, value: int) -> bytes:
    start = at.WORD_BYTES * word
    return shm[:start] + pack_word(value) + shm[start + at.WORD_BYTES :]


@given(st.integers(1, 64))
def test_a_fresh_board_says_nothing_and_goes_on(workers: int) -> None:
    shm = fresh_shm(workers)
    header = parse_header(shm)
    assert len(shm) == at.shm_bytes(workers)
    assert header is not None
    assert header == (workers, True, 0, ShmRequest.NONE, 0)
    assert list(parse_slots(shm, workers)) == [EMPTY_SLOT] * workers


@given(NUMBERS, KINDS)
def test_a_request_is_one_word(number: int, kind: ShmRequest) -> None:
    assert split_request(pack_request(number, kind)) == (number, kind)
    header = parse_header(written(fresh_shm(1), at.REQUEST, pack_request(number, kind)))
    assert header is not None
    assert (header.number, header.kind) == (number, kind)


@given(WORDS)
def test_any_request_has_a_kind(word: int) -> None:
    assert split_request(word)[1] in ShmRequest


@given(st.integers(1, 8), st.data())
def test_what_one_worker_says_is_its_own(workers: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, workers - 1))
    said = data.draw(st.lists(WORDS, min_size=at.SLOT_WORDS, max_size=at.SLOT_WORDS))
    shm = fresh_shm(workers)
    for word, value in enumerate(said):
        shm = written(shm, at.first_word(rank) + word, value)
    slots = parse_slots(shm, workers)
    slot = slots[rank]
    assert [slot.owner, slot.answered, slot.checkpoint, slot.stacks] == [said[0], *said[4:7]]
    assert slot.holds is (said[at.HOLDS] == 1)
    assert slot.listens == bool(said[at.LISTENS])
    assert slot.takes_wishes == (said[at.LISTENS] == at.TAKES_WISHES)
    assert slot.reported[:2] == (said[at.STEP], said[at.PROGRESS_AT])
    assert slot.reported.total == (said[at.TOTAL] or None)
    assert slot.reported.tokens == (said[at.TOKENS] or None)
    assert (slot.reported.loss is None) == (said[at.LOSS] == 0)
    assert slot.printed[:2] == (said[at.OUTPUT_STEP], said[at.OUTPUT_AT])
    assert slot.printed.changes == said[at.OUTPUT_CHANGES]
    assert all(slot == EMPTY_SLOT for other, slot in enumerate(slots) if other != rank)


def reported() -> st.SearchStrategy[Reported]:
    told = st.none() | NUMBERS.filter(bool)
    return st.builds(Reported, NUMBERS, NUMBERS, told, st.none() | st.floats(), told, NUMBERS)


@given(reported())
def test_what_was_printed_is_read_as_it_was_written(printed: Reported) -> None:
    start = at.WORD_BYTES * (at.first_word(0) + at.OUTPUT_STEP)
    words = pack_printed(printed)
    shm = fresh_shm(2)
    shm = shm[:start] + words + shm[start + len(words) :]
    first, second = parse_slots(shm, 2)
    assert second == EMPTY_SLOT
    assert first.reported == EMPTY_SLOT.reported
    assert repr(first.printed).replace("-0.0", "0.0") == repr(printed).replace("-0.0", "0.0")


def test_numbers_that_do_not_fit_into_a_word_are_limited() -> None:
    large = Reported(10**30, 1, 10**30, 0.5, -(10**30), 1)
    assert pack_printed(large)[:8] == pack_word(at.MAX_WORD)


@given(st.binary(max_size=400), st.integers(1, 8))
def test_any_bytes_can_be_read(data: bytes, workers: int) -> None:
    assert len(parse_slots(data, workers)) == workers
    parse_header(data)


@given(st.integers(1, 8), st.integers(0, 100))
def test_a_board_of_another_version_or_size_is_none(workers: int, cut: int) -> None:
    shm = fresh_shm(workers)
    assert parse_header(written(shm, 1, at.VERSION + 1)) is None
    assert parse_header(written(shm, 0, 0)) is None
    if cut:
        assert parse_header(shm[:-cut]) is None
