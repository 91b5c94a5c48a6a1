"""F8: every frame is numbered and tagged, per direction."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.errors import ProtocolError
from rallypoint.wire.frames import HEADER_BYTES, FrameDecoder, FrameEncoder

KEY = bytes(range(32))
LIMIT = 4096


def _pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


@given(
    payloads=st.lists(st.binary(max_size=300), max_size=12),
    cuts=st.lists(st.integers(min_value=0, max_value=10_000), max_size=40),
    key=st.sampled_from([KEY, None]),
)
def test_F8_frames_survive_any_segmentation(
    payloads: list[bytes], cuts: list[int], key: bytes | None
) -> None:
    encoder, decoder = FrameEncoder(key), FrameDecoder(key, LIMIT)
    stream = b"".join(encoder.encode(payload) for payload in payloads)
    received = [payload for piece in _pieces(stream, cuts) for payload in decoder.feed(piece)]
    assert received == payloads


def test_F8_a_frame_is_delivered_with_its_last_byte_not_before() -> None:
    frame = FrameEncoder(KEY).encode(b"payload")
    decoder = FrameDecoder(KEY, LIMIT)
    for index in range(len(frame) - 1):
        assert decoder.feed(frame[index : index + 1]) == []
    assert decoder.feed(frame[-1:]) == [b"payload"]


@given(position=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7))
def test_F8_no_flipped_bit_is_ever_delivered(position: int, bit: int) -> None:
    frame = bytearray(FrameEncoder(KEY).encode(b"sixteen  letters"))
    frame[position % len(frame)] ^= 1 << bit
    decoder = FrameDecoder(KEY, LIMIT)
    try:
        # A longer length only waits for more; what is delivered at last must not pass either.
        assert decoder.feed(bytes(frame)) == []
        with pytest.raises(ProtocolError):
            decoder.feed(bytes(LIMIT))
    except ProtocolError:
        pass


def test_F8_repeated_and_skipped_and_swapped_frames_are_refused() -> None:
    encoder = FrameEncoder(KEY)
    first, second, third = (encoder.encode(word) for word in (b"one", b"two", b"three"))
    for stream in (first + first, first + third, second + first):
        with pytest.raises(ProtocolError, match=r"frame \d came where frame \d was due"):
            FrameDecoder(KEY, LIMIT).feed(stream)


def test_F8_a_frame_can_not_be_renumbered() -> None:
    encoder = FrameEncoder(KEY)
    first, second = encoder.encode(b"one"), encoder.encode(b"two")
    assert first[:4] == second[:4]
    with pytest.raises(ProtocolError, match="frame 0 has a wrong tag"):
        FrameDecoder(KEY, LIMIT).feed(first[:12] + second[12:])


def test_F8_the_sequence_is_checked_without_a_key_too() -> None:
    frame = FrameEncoder(None).encode(b"one")
    with pytest.raises(ProtocolError, match="frame 0 came where frame 1 was due"):
        FrameDecoder(None, LIMIT).feed(frame + frame)


@pytest.mark.parametrize(("ours", "theirs"), [(KEY, KEY[::-1]), (KEY, None), (None, KEY)])
def test_F8_a_frame_under_another_key_is_refused(ours: bytes | None, theirs: bytes | None) -> None:
    with pytest.raises(ProtocolError, match="frame 0 has a wrong tag"):
        FrameDecoder(ours, LIMIT).feed(FrameEncoder(theirs).encode(b"hello"))


def test_F8_a_length_over_the_limit_is_refused_before_its_payload_comes() -> None:
    frame = FrameEncoder(KEY).encode(bytes(LIMIT + 1))
    decoder = FrameDecoder(KEY, LIMIT)
    with pytest.raises(ProtocolError, match="claims 4097 bytes, but at most 4096"):
        decoder.feed(frame[:HEADER_BYTES])
    assert FrameDecoder(KEY, LIMIT).feed(FrameEncoder(KEY).encode(bytes(LIMIT))) == [bytes(LIMIT)]


def test_F8_a_decoder_that_failed_stays_failed() -> None:
    decoder = FrameDecoder(KEY, LIMIT)
    with pytest.raises(ProtocolError):
        decoder.feed(FrameEncoder(None).encode(b"x"))
    with pytest.raises(ProtocolError, match="wrong tag"):
        decoder.feed(FrameEncoder(KEY).encode(b"x"))
