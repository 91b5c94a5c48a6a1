"""Behaviour F5: what is in the store is our state, byte for byte, or one clear error."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.shared_cluster import SharedCluster

from rallypoint.core.events import NodeJoined
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.rendezvous.shared.round import MAGIC, SCHEMA, SharedState
from rallypoint.errors import RendezvousStateError

SETTINGS = SharedSettings("job", 2, 3)


def a_state() -> SharedState:
    """A job with a past: a round, a loss, a closed-up world and a node that waits."""
    cluster = SharedCluster(replace(SETTINGS, min_growth_interval_s=600.0), keeps_beats=False)
    nodes = [cluster.join(name) for name in ("a", "b", "nœud")]
    cluster.kill(nodes[1])
    cluster.pass_time(2 * SETTINGS.lease_s)
    cluster.join("d")
    assert cluster.world == ["a", "nœud"]
    return cluster.shared


STATE = a_state()
VALUE = shared_round.encode(STATE)


def with_digest(body: bytes) -> bytes:
    """What somebody could write who knows the format."""
    return MAGIC + bytes((SCHEMA,)) + hashlib.blake2s(body, digest_size=8).digest() + body


def decoded(value: bytes) -> SharedState | str:
    """The state, or the error's text; nothing else may come out."""
    try:
        return shared_round.decode(value)
    except RendezvousStateError as error:
        return str(error)


def test_F5_a_state_comes_back_as_it_was() -> None:
    assert shared_round.decode(VALUE) == STATE
    assert shared_round.encode(shared_round.decode(VALUE)) == VALUE
    assert shared_round.decode(VALUE) is not shared_round.decode(VALUE)


def test_F5_another_schema_is_refused_with_both_versions() -> None:
    other = MAGIC + bytes((SCHEMA + 6,)) + VALUE[len(MAGIC) + 1 :]
    with pytest.raises(RendezvousStateError, match=f"version {SCHEMA + 6}, this node uses"):
        shared_round.decode(other)


@pytest.mark.parametrize("foreign", [b"", b"\x80\x04\x95", b"{}", MAGIC[:-1], MAGIC, b"x" * 10**6])
def test_F5_what_is_not_ours_is_shown_in_one_short_line(foreign: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="is not Rallypoint's") as raised:
        shared_round.decode(foreign)
    text = str(raised.value)
    assert f"{len(foreign)} bytes" in text
    assert "use another run id" in text
    assert len(text) < 300
    assert "\n" not in text


@given(end=st.integers(0, len(VALUE) - 1))
def test_F5_a_truncated_state_is_an_error(end: int) -> None:
    assert isinstance(decoded(VALUE[:end]), str)


@given(at=st.integers(0, len(VALUE) - 1), bit=st.integers(0, 7))
def test_F5_one_flipped_bit_is_an_error(at: int, bit: int) -> None:
    """Though it may well be the encoding of another state."""
    damaged = bytearray(VALUE)
    damaged[at] ^= 1 << bit
    assert isinstance(decoded(bytes(damaged)), str)


@given(extra=st.binary(min_size=1, max_size=20))
def test_F5_bytes_after_the_end_are_an_error(extra: bytes) -> None:
    assert isinstance(decoded(VALUE + extra), str)


@given(st.binary(max_size=200))
def test_F5_any_bytes_are_an_error(data: bytes) -> None:
    for value in (data, MAGIC + data, MAGIC + bytes((SCHEMA,)) + data, with_digest(data)):
        assert isinstance(decoded(value), str)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(json_like, max_size=10))
def test_F5_another_structure_is_an_error(value: list[object]) -> None:
    assert isinstance(decoded(with_digest(msgspec.msgpack.encode(value))), str)


@given(at=st.integers(0, len(VALUE)), byte=st.integers(0, 255))
def test_F5_damage_with_a_true_digest_never_raises_anything_else(at: int, byte: int) -> None:
    body = bytearray(VALUE[len(MAGIC) + 9 :])
    body[at % len(body)] = byte
    decoded(with_digest(bytes(body)))


@pytest.mark.parametrize("body", [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x91\xa1\xff"])
def test_F5_deep_long_and_ill_spelled_bodies_are_an_error(body: bytes) -> None:
    assert "damaged" in str(decoded(with_digest(body)))


# Join requests

CANDIDATE = Candidate(1, "default", "a", 29500)


def request(node_id: str, seq: int = 1, settings: SharedSettings = SETTINGS) -> bytes:
    event = NodeJoined(NodeRef(node_id, f"{node_id}.1"), seq, CANDIDATE, settings)
    return shared_round.encode_join_request(event)


def taken(*requests: bytes | None, skip_gap: bool = False) -> tuple[list[str], int]:
    """The members after these join requests, and the number of the last one that was taken in."""
    shared = shared_round.new_state(SETTINGS, "life", "w")
    shared_round.take_join_requests(shared, requests, "w", skip_gap=skip_gap)
    return list(shared.round.members), shared.taken


@pytest.mark.parametrize(
    "bad", [b"no request", request("a", settings=replace(SETTINGS, lease_s=9))]
)
def test_F5_a_state_that_only_counts_bad_join_requests_is_known_by_its_writer(bad: bytes) -> None:
    shared = shared_round.new_state(SETTINGS, "life", "before")
    version = shared.version
    assert shared_round.take_join_requests(shared, [bad], "w", skip_gap=False) == 1
    assert (shared.writer, shared.version, list(shared.round.members)) == ("w", version + 1, [])


def test_F5_join_requests_are_joins_in_their_order() -> None:
    assert taken(request("b"), request("a")) == (["b", "a"], 2)
    assert taken(request("b"), request("b"), request("b", 2)) == (["b"], 3)


def test_F5_a_join_request_that_is_not_there_yet_holds_the_later_ones_until_it_is_given_up() -> (
    None
):
    assert taken(request("b"), None, request("a")) == (["b"], 1)
    assert taken(request("b"), None, request("a"), skip_gap=True) == (["b", "a"], 3)


def test_F5_R7_a_join_request_of_other_settings_or_of_nobody_is_passed_over() -> None:
    foreign = request("x", settings=replace(SETTINGS, max_nodes=9))
    assert taken(foreign, b"", b"junk", b"\x91" * 9999, request("a")) == (["a"], 5)


@given(st.binary(max_size=100))
def test_F5_a_damaged_join_request_stops_nobody(data: bytes) -> None:
    members, number = taken(data, request("a"))
    assert "a" in members
    assert number == 2


@given(at=st.integers(0, 200), byte=st.integers(0, 255))
def test_F5_a_join_request_with_a_wrong_byte_stops_nobody(at: int, byte: int) -> None:
    damaged = bytearray(request("b"))
    damaged[at % len(damaged)] = byte
    members, number = taken(bytes(damaged), request("zz"))
    assert "zz" in members
    assert number == 2
