"""F9: who may use a round store. Time is an argument."""

from __future__ import annotations

import pytest

from rallypoint.store.access import (
    HOLD_S,
    MAX_HELD,
    AccessGate,
    AccessPolicy,
    Admission,
    Peer,
    PeerReach,
    Who,
    parse_network,
    round_policy,
)


def remote(address: str = "10.0.0.7", port: int = 40000) -> Peer:
    return Peer(address, port, PeerReach.REMOTE)


KEY = b"k" * 32
ROUND = round_policy(KEY, everybody=False)
SAME_USER = Peer("127.0.0.1", 1, PeerReach.SAME_USER, 1000)
OTHER_USER = Peer("127.0.0.1", 2, PeerReach.OTHER_USER, 1001)
NOBODY_KNOWS = Peer("127.0.0.1", 3, PeerReach.LOCAL_UNKNOWN)


def test_F9_a_process_of_the_same_user_is_allowed() -> None:
    assert AccessGate(ROUND).arrive(1, SAME_USER, 0.0) == (Admission.ALLOWED, None)


@pytest.mark.parametrize(
    ("peer", "reason"),
    [(OTHER_USER, "belongs to user 1001"), (NOBODY_KNOWS, "does not say which user")],
)
def test_F9_another_user_of_this_machine_is_refused_whatever_has_enrolled(
    peer: Peer, reason: str
) -> None:
    gate = AccessGate(ROUND)
    gate.enrol(peer.address)
    admission, refusal = gate.arrive(1, peer, 0.0)
    assert admission is Admission.REFUSED
    assert reason in str(refusal)
    assert "127.0.0.1:" in str(refusal)
    assert "--insecure" in str(refusal)
    assert gate.next_deadline_s() is None


def test_F9_an_enrolled_address_is_allowed() -> None:
    gate = AccessGate(ROUND)
    assert gate.enrol("10.0.0.7") == []
    assert gate.arrive(1, remote(), 0.0) == (Admission.ALLOWED, None)
    assert gate.arrive(2, remote("10.0.0.8"), 0.0) == (Admission.HELD, None)


def test_F9_an_unknown_address_is_held_and_let_in_when_it_enrols() -> None:
    gate = AccessGate(ROUND)
    assert gate.arrive(1, remote(), 100.0) == (Admission.HELD, None)
    assert gate.arrive(2, remote("10.0.0.8"), 101.0) == (Admission.HELD, None)
    assert gate.arrive(3, remote(port=2), 102.0) == (Admission.HELD, None)
    assert gate.enrol("10.0.0.7") == [1, 3]
    assert gate.enrol("10.0.0.7") == []
    assert gate.next_deadline_s() == 101.0 + HOLD_S
    assert [dropped for dropped, _ in gate.expire(1000.0)] == [2]


def test_F9_an_unknown_address_is_dropped_after_five_seconds_and_told_how_to_get_in() -> None:
    gate = AccessGate(ROUND)
    gate.arrive(1, remote(), 100.0)
    gate.arrive(2, remote("fe80::1", 9), 101.0)
    assert gate.next_deadline_s() == 105.0
    assert gate.expire(104.999) == []
    [(connection, refusal)] = gate.expire(105.0)
    assert connection == 1
    assert "10.0.0.7:40000" in str(refusal)
    assert "--local-addr" in str(refusal)
    assert "--insecure" in str(refusal)
    assert gate.next_deadline_s() == 106.0
    [(_, refusal)] = gate.expire(106.0)
    assert "[fe80::1]:9" in str(refusal)
    assert gate.next_deadline_s() is None
    assert gate.expire(1000.0) == []
    assert gate.enrol("10.0.0.7") == []


def test_F9_one_who_leaves_while_held_is_forgotten() -> None:
    gate = AccessGate(ROUND)
    gate.arrive(1, remote(), 0.0)
    gate.leave(1)
    assert gate.next_deadline_s() is None
    assert gate.expire(1000.0) == []
    assert gate.enrol("10.0.0.7") == []
    gate.leave(1)


def test_F9_strangers_that_are_held_keep_no_node_out() -> None:
    gate = AccessGate(ROUND)
    assert gate.arrive(MAX_HELD, remote("10.0.0.8"), 0.0) == (Admission.HELD, None)
    for connection in range(MAX_HELD):
        assert gate.arrive(connection, remote(), 1.0) == (Admission.HELD, None)
    assert gate.next_deadline_s() == 0.0
    [(dropped, refusal)] = gate.expire(1.0)
    assert dropped == 0
    assert f"more than {MAX_HELD} unknown connections are held" in str(refusal)
    assert gate.next_deadline_s() == HOLD_S
    assert gate.enrol("10.0.0.8") == [MAX_HELD]


@pytest.mark.parametrize("peer", [remote(), OTHER_USER, NOBODY_KNOWS, SAME_USER])
def test_F9_insecure_admits_everybody(peer: Peer) -> None:
    assert AccessGate(round_policy(KEY, everybody=True)).arrive(1, peer, 0.0) == (
        Admission.ALLOWED,
        None,
    )


def test_F9_a_network_that_a_person_named_is_allowed_without_enrolling() -> None:
    gate = AccessGate(round_policy(KEY, everybody=False, networks=["10.0.0.0/8", "fd00::/8"]))
    assert gate.arrive(1, remote(), 0.0) == (Admission.ALLOWED, None)
    assert gate.arrive(2, remote("fd00::7"), 0.0) == (Admission.ALLOWED, None)
    assert gate.arrive(3, remote("192.0.2.7"), 0.0) == (Admission.HELD, None)
    [(_, refusal)] = gate.expire(HOLD_S)
    assert "--store-allow 192.0.2.7" in str(refusal)


def test_F9_a_wide_network_lets_no_other_user_of_this_machine_in_but_a_loopback_one_does() -> None:
    own_address = Peer("10.0.0.7", 2, PeerReach.OTHER_USER, 1001)
    for network in ("0.0.0.0/0", "10.0.0.0/8"):
        gate = AccessGate(round_policy(KEY, everybody=False, networks=[network]))
        for peer in (OTHER_USER, NOBODY_KNOWS, own_address):
            admission, refusal = gate.arrive(1, peer, 0.0)
            assert admission is Admission.REFUSED
            assert "--store-allow 127.0.0.0/8" in str(refusal)
    gate = AccessGate(round_policy(KEY, everybody=False, networks=["127.0.0.0/8"]))
    assert gate.arrive(1, OTHER_USER, 0.0) == (Admission.ALLOWED, None)
    assert gate.arrive(2, NOBODY_KNOWS, 0.0) == (Admission.ALLOWED, None)


def test_where_no_node_enrols_a_stranger_is_refused_at_once() -> None:
    for policy in (AccessPolicy(), AccessPolicy(Who.ALLOWED, ("192.0.2.0/24",))):
        gate = AccessGate(policy)
        assert gate.arrive(1, SAME_USER, 0.0) == (Admission.ALLOWED, None)
        admission, refusal = gate.arrive(2, remote(), 0.0)
        assert admission is Admission.REFUSED
        assert "10.0.0.7 is in no network that is allowed; --allow 10.0.0.7 lets" in str(refusal)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0.1/8", "node-a", ""])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_network(text)


def test_an_address_is_a_network_of_one() -> None:
    assert parse_network(" 10.0.0.1 ") == "10.0.0.1/32"
