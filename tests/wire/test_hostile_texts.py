"""What others have written is read, or is one documented error: records of registers, answers of
servers, histories, lists of hosts, and what is generated of words."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.hostile_texts import DEEP, READERS, check_words, read_bytes
from tests.fuzz.store_conversation import Choices

from rallypoint.elastic.rendezvous.plug_in import exchange
from rallypoint.errors import MessageError, RecordError, RendezvousStateError
from rallypoint.register.record import decode
from rallypoint.wire.codec import decode_to_agent, decode_to_coordinator
from rallypoint.wire.launch_link import MARK, reader_of_host

RUNS = 200


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_F10_a_reader_raises_nothing_but_its_error(reader: Callable[[Choices], None]) -> None:
    for seed in range(RUNS):
        reader(Choices(Random(seed).randbytes(120)))
    check_words()


@given(st.binary(max_size=120))
def test_F10_whatever_others_have_written_is_read_or_refused(data: bytes) -> None:
    read_bytes(data)


@pytest.mark.parametrize("head", [b"", b"\x93\x01", msgspec.msgpack.encode("x")])
def test_F10_lists_within_lists_are_refused_like_any_other_nonsense(head: bytes) -> None:
    data = head + DEEP * 10
    with pytest.raises(RecordError, match="does not parse"):
        decode(data)
    for read in (decode_to_agent, decode_to_coordinator):
        with pytest.raises(MessageError, match="does not parse"):
            read(data)
    with pytest.raises(RendezvousStateError, match="does not run this version"):
        exchange.decode(data, 1)
    with pytest.raises(ValueError, match="does not parse"):
        reader_of_host().feed(MARK + len(data).to_bytes(4, "big") + data)
