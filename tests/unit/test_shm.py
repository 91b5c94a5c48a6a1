"""The layout of shared memory: what is written is read, and nothing that is read is an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire import shm_words as at
from rallypoint.wire.shm import (
    EMPTY_SLOT,
    ShmRequest,
    fresh_shm,
    pack_request,
    pack_word,
    parse_header,
    parse_slots,
    split_request,
)

WORDS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(0, 2**50)
KINDS = st.sampled_from(ShmRequest)


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
    owner, listens, *others, holds = slots[rank]
    assert [owner, *others] == [said[0], *said[2:7]]
    assert holds is (said[7] == 1)
    assert listens == bool(said[at.LISTENS])
    assert all(slot == EMPTY_SLOT for other, slot in enumerate(slots) if other != rank)


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
