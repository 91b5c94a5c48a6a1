"""F9: the enrolment conversation. Nonces are arguments; bytes come in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.errors import ProtocolError
from rallypoint.wire.enrolment import (
    AgentEnrolment,
    EnrolmentRefusedError,
    StoreEnrolment,
    is_enrolment_preamble,
)
from rallypoint.wire.preamble import Preamble, classify

KEY = b"k" * 32
AGENT_NONCE, STORE_NONCE = b"a" * 16, b"s" * 16


def agent(key: bytes = KEY, node: str = "node-1") -> AgentEnrolment:
    return AgentEnrolment(key, AGENT_NONCE, node)


def store(key: bytes = KEY, nonce: bytes = STORE_NONCE) -> StoreEnrolment:
    return StoreEnrolment(key, nonce, "10.0.0.7")


def converse(ours: AgentEnrolment, theirs: StoreEnrolment, step: int = 10_000) -> list[bytes]:
    """Runs it to the end in pieces of `step` bytes; returns what the agent sent."""
    sent, to_store = [], ours.hello
    while to_store:
        sent.append(to_store)
        to_agent = b"".join(theirs.receive(piece) for piece in pieces(to_store, step))
        to_store = b"".join(ours.receive(piece) for piece in pieces(to_agent, step))
    return sent


def pieces(data: bytes, step: int) -> list[bytes]:
    return [data[i : i + step] for i in range(0, len(data), step)]


@given(st.integers(1, 60), st.text(max_size=80))
def test_F9_both_learn_what_the_other_says(step: int, node: str) -> None:
    ours, theirs = agent(node=node), store()
    converse(ours, theirs, step)
    assert ours.result == "10.0.0.7"
    assert theirs.result is not None
    assert node.startswith(theirs.result.rstrip("\ufffd"))


def test_F9_another_key_is_refused() -> None:
    theirs = store(key=b"other" * 8)
    with pytest.raises(EnrolmentRefusedError, match="does not hold the key"):
        converse(agent(), theirs)
    assert theirs.result is None


def test_F9_a_recorded_preamble_is_worthless() -> None:
    recorded = converse(agent(), store())
    replayed_to = store(nonce=b"t" * 16)
    replayed_to.receive(recorded[0])
    with pytest.raises(EnrolmentRefusedError):
        replayed_to.receive(recorded[1])
    assert replayed_to.result is None


def test_F9_a_proof_is_bound_to_the_node_that_it_names() -> None:
    recorded = converse(agent(), store())
    theirs = store()
    theirs.receive(recorded[0])
    with pytest.raises(EnrolmentRefusedError):
        theirs.receive(recorded[1][:-1] + b"2")


def test_F9_an_agent_does_not_believe_a_store_without_the_key() -> None:
    """One that reflects the agent's own proof, in particular."""
    ours = agent(node="10.0.0.7")
    proof_and_node = ours.receive(STORE_NONCE)
    with pytest.raises(ProtocolError, match="does not hold the key"):
        ours.receive(b"\x00" + proof_and_node)
    assert ours.result is None


def test_F9_an_agent_is_told_that_it_was_refused() -> None:
    ours = agent()
    ours.receive(STORE_NONCE)
    with pytest.raises(EnrolmentRefusedError, match="another round"):
        ours.receive(StoreEnrolment.refusal)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (b"RLYP" + b"\x01" * 17, "neither"),
        (b"RLYE\x02" + b"n" * 16, "version 2"),
    ],
)
def test_F9_a_hello_of_something_else_is_refused(hello: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        store().receive(hello)


def test_F9_nothing_may_follow_the_end() -> None:
    theirs = store()
    sent = converse(agent(), store())
    theirs.receive(sent[0])
    with pytest.raises(ProtocolError, match="follow"):
        theirs.receive(sent[1] + b"x")


def test_F9_the_preamble_is_told_from_other_protocols() -> None:
    assert is_enrolment_preamble(agent().hello)
    assert classify(agent().hello) is Preamble.STORE
    assert not is_enrolment_preamble(b"RLYP")
