"""The c10d session: the same requests, then the same error, in whatever pieces the bytes come."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple
from tests.fuzz.store_conversation import VALIDATE, buffered_bytes
from tests.harness.store_client import text, u64
from tests.harness.store_process import encode as encode_fields

from rallypoint.errors import ProtocolError
from rallypoint.wire import c10d_server
from rallypoint.wire import c10d_server as c10d
from rallypoint.wire.c10d_fields import Opcode
from rallypoint.wire.c10d_server import ServerSession
from rallypoint.wire.preamble import Preamble, classify

key = st.binary(max_size=12)
i64 = st.integers(-(2**63), 2**63 - 1)
keys = st.lists(key, max_size=5).map(tuple)
pairs = st.lists(st.tuples(key, key), max_size=5).map(tuple)
SENT: dict[type[c10d.StoreRequest], tuple[Opcode, *tuple[st.SearchStrategy[Any], ...]]] = {
    c10d.Set: (Opcode.SET, key, key),
    c10d.CompareSet: (Opcode.COMPARE_SET, key, key, key),
    c10d.Get: (Opcode.GET, key),
    c10d.Add: (Opcode.ADD, key, i64),
    c10d.Check: (Opcode.CHECK, keys),
    c10d.WaitKeys: (Opcode.WAIT, keys),
    c10d.CountKeys: (Opcode.GETNUMKEYS,),
    c10d.DeleteKey: (Opcode.DELETE_KEY, key),
    c10d.Append: (Opcode.APPEND, key, key),
    c10d.MultiGet: (Opcode.MULTI_GET, keys),
    c10d.MultiSet: (Opcode.MULTI_SET, pairs),
    c10d.CancelWait: (Opcode.CANCEL_WAIT,),
    c10d.Ping: (Opcode.PING, st.integers(0, 2**32 - 1)),
    c10d.QueuePush: (Opcode.QUEUE_PUSH, key, key),
    c10d.QueuePop: (Opcode.QUEUE_POP, key),
    c10d.QueueLength: (Opcode.QUEUE_LEN, key),
    c10d.ListKeys: (Opcode.LIST_KEYS,),
    c10d.Barrier: (Opcode.BARRIER, key, i64),
}
"""The opcode of each request, and what its fields may be."""
requests = st.one_of([st.builds(kind, *fields) for kind, (_, *fields) in SENT.items()])


def encode(request: c10d.StoreRequest) -> bytes:
    """The client's side, written down a second time."""
    if isinstance(request, c10d.Ping):
        return bytes((Opcode.PING,)) + struct.pack("<I", request.nonce)
    return encode_fields(SENT[type(request)][0], *astuple(request))


def parse(pieces: Iterable[bytes]) -> tuple[list[c10d.StoreRequest], str | None]:
    session = ServerSession()
    requests: list[c10d.StoreRequest] = []
    try:
        for piece in pieces:
            session.receive(piece)
            while (request := session.next_request()) is not None:
                requests.append(request)
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=r"\w"):
            session.next_request()
        return requests, str(error)
    return requests, None


@settings(max_examples=300, deadline=None)
@given(st.lists(requests, max_size=8), st.data(), st.booleans())
def test_any_segmentation_gives_the_same_requests_then_the_same_error(
    sent: list[c10d.StoreRequest], data: st.DataObject, broken: bool
) -> None:
    stream = VALIDATE + b"".join(map(encode, sent)) + (b"\x63more" if broken else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    bounds = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(bounds)]
    got, error = parse(pieces)
    assert got == sent
    assert (error == "unknown c10d opcode 99; known are 0 to 18") is broken


def test_an_incomplete_request_is_not_seen_and_its_bytes_are_parsed_once() -> None:
    """A MULTI_SET is atomic, and linear: 20 000 pairs in pieces of 100 bytes would take minutes if
    each piece started anew. The bound is on work, not on time: no byte may be looked at twice."""
    pairs = tuple((b"key-%d" % i, b"v") for i in range(20_000))
    stream = VALIDATE + encode(c10d.MultiSet(pairs))
    session = ServerSession()
    for i in range(0, len(stream) - 100, 100):
        session.receive(stream[i : i + 100])
        assert session.next_request() is None
        assert buffered_bytes(session) <= 200  # what was parsed is gone
        assert session.is_partial
    session.receive(stream[i + 100 :])
    assert session.next_request() == c10d.MultiSet(pairs)
    assert session.next_request() is None


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "first byte is 0x47"),
        (encode(c10d.Ping(1)), "first byte is 0x0d"),
        (b"\x00\x01\x02\x03\x04", "magic is 0x04030201"),
        (VALIDATE + b"\x13", "unknown c10d opcode 19"),
        (VALIDATE + b"\x03" + u64(8193), "key of 8193 bytes is over the limit of 8192"),
        (VALIDATE + b"\x01" + text(b"k") + u64((8 << 20) + 1), "value of 8388609 bytes is over"),
        (VALIDATE + b"\x06" + u64(131_073), "131073 keys is over the limit of 131072"),
        (VALIDATE + b"\x0b" + u64(2**64 - 1), "keys is over the limit"),
    ],
)
def test_what_breaks_the_protocol_is_refused_with_a_reason(stream: bytes, reason: str) -> None:
    got, error = parse([stream])
    assert got == []
    assert error is not None
    assert reason in error


def test_the_limits_themselves_are_allowed() -> None:
    sent: list[c10d.StoreRequest] = [c10d.Set(b"k" * 8192, b"v" * (8 << 20)), c10d.Ping(1)]
    assert parse([VALIDATE + b"".join(map(encode, sent))]) == (sent, None)


def test_a_request_is_limited_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d_server, "MAX_REQUEST_BYTES", 1000)
    small: c10d.StoreRequest = c10d.Set(b"k", b"v" * 900)
    assert parse([VALIDATE + encode(small) * 3]) == ([small] * 3, None)
    large = c10d.MultiSet(((b"a", b"v" * 600), (b"b", b"v" * 600)))
    stream = VALIDATE + encode(small) + encode(large)
    for size in (len(stream), 7):
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        got, error = parse(pieces)
        assert got == [small]
        assert error is not None
        assert "over the limit of 1000" in error


def test_validate_may_be_repeated_but_not_left_out() -> None:
    assert parse([VALIDATE + VALIDATE + encode(c10d.Ping(3))]) == ([c10d.Ping(3)], None)


def test_first_bytes_tell_a_store_client_from_a_session() -> None:
    assert classify(VALIDATE) is Preamble.STORE
    assert classify(b"RLYP" + VALIDATE) is not Preamble.STORE
