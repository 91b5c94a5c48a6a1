"""F2, F3: who is lost, when, and when patience is called for. Lease 15 s, grace 1 s."""

from __future__ import annotations

import pytest

from rallypoint.core.liveness import Liveness, Lost

LEASE_S, GRACE_S = 15.0, 1.0


def watched(*members: str, at: float = 0.0) -> Liveness:
    liveness = Liveness(LEASE_S, GRACE_S)
    for member in members:
        liveness.heard(member, at)
    return liveness


def lost(liveness: Liveness, now: float) -> list[str]:
    """What a check says once the sockets have been polled."""
    found, patience = liveness.check(now)
    assert patience is None
    return [item.member for item in found]


def test_F2_silence_is_tolerated_for_the_lease_and_a_half_second() -> None:
    liveness = watched("a")
    assert liveness.next_check(0.0) == 15.5
    assert lost(liveness, 15.49) == []
    assert lost(liveness, 15.49) == []
    assert liveness.check(15.5)[0] == []
    assert liveness.check(15.5)[0] == [Lost("a", "it was silent for 15 s", 0.0)]
    assert len(liveness) == 0
    assert liveness.next_check(15.5) is None


def test_F3_nobody_is_lost_before_the_sockets_were_polled_past_the_deadline() -> None:
    liveness = watched("a")
    assert lost(liveness, 16.0) == []
    assert liveness.next_check(16.0) == 0.0, "the next check comes right after one poll"
    liveness.heard("a", 16.0)  # what that poll brought
    assert lost(liveness, 16.0) == []
    assert lost(liveness, 31.4) == []
    assert lost(liveness, 31.5) == [], "the earlier mark does not count any more"
    assert lost(liveness, 31.5) == ["a"]


def test_F2_a_broken_connection_is_tolerated_for_the_reconnect_grace() -> None:
    liveness = watched("a", "b")
    liveness.heard("a", 5.0)
    liveness.vanished("a", 6.0)
    liveness.vanished("a", 6.9)
    assert liveness.next_check(6.0) == 1.0
    assert lost(liveness, 6.99) == []
    assert lost(liveness, 7.0) == []
    found, _ = liveness.check(7.0)
    assert found == [Lost("a", "its connection broke and did not come back", 5.0)]
    assert len(liveness) == 1


def test_F2_a_connection_that_comes_back_in_the_grace_is_forgiven() -> None:
    liveness = watched("a")
    liveness.vanished("a", 6.0)
    liveness.heard("a", 6.5)
    assert liveness.next_check(6.5) == 15.5
    assert lost(liveness, 10.0) == lost(liveness, 10.0) == []


def test_a_member_that_left_is_watched_no_more() -> None:
    liveness = watched("a")
    liveness.vanished("a", 1.0)
    liveness.forget("a")
    liveness.forget("a")
    liveness.vanished("a", 1.0)
    assert liveness.next_check(2.0) is None
    assert lost(liveness, 99.0) == []


def test_F3_when_many_connections_break_at_once_everybody_gets_the_lease_once_more() -> None:
    liveness = watched("a", "b", "c", "d")
    for number, member in enumerate("abc"):
        liveness.vanished(member, 1.0 + number / 10)
    found, patience = liveness.check(2.0)
    assert found == []
    assert patience is not None
    assert "3 of 4 nodes" in patience.why
    assert liveness.next_check(2.0) == LEASE_S
    liveness.heard("a", 3.0)
    liveness.heard("d", 16.9)
    assert lost(liveness, 16.9) == []
    assert lost(liveness, 17.0) == []
    assert lost(liveness, 17.0) == ["b", "c"], "patience is had once"


@pytest.mark.parametrize(("members", "missing", "patient"), [(4, 2, False), (100, 5, False)])
def test_F3_a_few_are_simply_lost(members: int, missing: int, patient: bool) -> None:
    names = [f"n{number}" for number in range(members)]
    liveness = watched(*names)
    for name in names[:missing]:
        liveness.vanished(name, 1.0)
    assert lost(liveness, 2.0) == []
    assert lost(liveness, 2.0) == names[:missing]


def test_F3_members_that_fell_silent_together_were_last_heard_a_heartbeat_apart() -> None:
    names = [f"n{number}" for number in range(10)]
    liveness = Liveness(LEASE_S, GRACE_S)
    for number, name in enumerate(names):
        liveness.heard(name, 1.0 + number / 10)
    found, patience = liveness.check(16.5)  # only the first is overdue
    assert found == []
    assert patience is not None
    assert "10 of 10 nodes" in patience.why


def test_F3_after_a_mass_silence_has_passed_the_next_one_gets_patience_too() -> None:
    liveness = watched("a", "b", "c", "d")
    for member in "abc":
        liveness.vanished(member, 1.0)
    assert liveness.check(2.0)[1] is not None
    for member in "abcd":
        liveness.heard(member, 3.0)
    assert lost(liveness, 17.0) == []
    for member in "abc":
        liveness.vanished(member, 17.5)
    assert liveness.check(18.5)[1] is not None


def test_F3_silence_proves_nothing_while_this_process_did_not_run() -> None:
    liveness = watched("a")
    patience = liveness.lagged(30.0, 14.5)
    assert patience is not None
    assert "did not run for 14.5 s" in patience.why
    assert lost(liveness, 30.0) == lost(liveness, 44.9) == []
    assert liveness.next_check(30.0) == LEASE_S
    assert lost(liveness, 45.0) == []
    assert lost(liveness, 45.0) == ["a"]


def test_F3_a_short_lag_is_nothing() -> None:
    assert watched("a").lagged(30.0, 0.9) is None


def test_who_is_here_is_connected_and_not_silent_for_two_thirds_of_the_lease() -> None:
    liveness = watched("a")
    assert liveness.is_here("a", LEASE_S * 0.66)
    assert not liveness.is_here("a", LEASE_S * 0.67)
    assert not liveness.is_here("stranger", 0.0)
    liveness.vanished("a", 1.0)
    assert not liveness.is_here("a", 1.0)
    liveness.heard("a", 1.5)
    assert liveness.is_here("a", 1.5)
