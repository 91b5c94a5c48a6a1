"""F2, F3: who is lost, when, and when patience is called for. Lease 15 s, graces 1 s and 5 s."""

from __future__ import annotations

import pytest

from rallypoint.core.liveness import LEASE_SLACK_S, Lease, Liveness, Lost

LEASE_S, GRACE_S, RESET_GRACE_S = 15.0, 1.0, 5.0


def watched(*members: str, at: float = 0.0) -> Liveness:
    liveness = Liveness(LEASE_S, GRACE_S, RESET_GRACE_S)
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
    assert liveness.check(15.5)[0] == [Lost("a", "it sent no heartbeat for 15 s", 0.0)]
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
    liveness.vanished("a", 6.0, reset=False)
    liveness.vanished("a", 6.9, reset=False)
    assert liveness.next_check(6.0) == 1.0
    assert lost(liveness, 6.99) == []
    assert lost(liveness, 7.0) == []
    found, _ = liveness.check(7.0)
    assert found == [Lost("a", "its connection broke and did not come back", 5.0)]
    assert len(liveness) == 1


def test_F2_a_connection_that_comes_back_in_the_grace_is_forgiven() -> None:
    liveness = watched("a")
    liveness.vanished("a", 6.0, reset=False)
    liveness.heard("a", 6.5)
    assert liveness.next_check(6.5) == 15.5
    assert lost(liveness, 10.0) == lost(liveness, 10.0) == []


def test_F2_twelve_resets_of_0_4_s_and_one_of_1_6_s_are_survived() -> None:
    liveness, now = watched("a", "b"), 0.0
    for length_s in [0.4] * 12 + [1.6]:
        now += 2.0
        liveness.heard("b", now)
        liveness.vanished("a", now, reset=True)
        now += length_s
        assert lost(liveness, now) == lost(liveness, now) == []
        liveness.heard("a", now)


def test_F2_a_connection_that_was_reset_is_tolerated_for_the_reset_grace() -> None:
    liveness = watched("a", "b")
    liveness.vanished("a", 1.0, reset=True)
    assert liveness.next_check(1.0) == RESET_GRACE_S
    assert lost(liveness, 5.9) == lost(liveness, 5.9) == lost(liveness, 6.0) == []
    assert lost(liveness, 6.0) == ["a"]


def test_F2_an_end_of_file_after_a_reset_is_due_before_it() -> None:
    liveness = watched("a", "b", "c")
    liveness.vanished("a", 1.0, reset=True)
    liveness.vanished("b", 2.0, reset=False)
    liveness.vanished("a", 2.0, reset=False)  # the connection was gone already
    assert liveness.next_check(2.0) == GRACE_S
    assert lost(liveness, 3.0) == []
    assert lost(liveness, 3.0) == ["b"]
    assert liveness.next_check(3.0) == 3.0


def test_F2_who_is_known_to_be_dead_is_lost_as_soon_as_its_connection_is_gone() -> None:
    liveness = watched("a", "b", "c", "d", "e")
    for member in "abcd":
        liveness.vanished(member, 1.0, reset=member == "a")
        liveness.died(member, 1.0)
    assert liveness.next_check(1.0) == 0.0
    found, patience = liveness.check(1.0)
    assert [item.member for item in found] == ["a", "b", "c", "d"]
    assert patience is None, "that many are dead is certain"
    assert found[0] == Lost("a", "its agent died, and its workers with it", 0.0)
    assert lost(liveness, 1.0) == []
    assert len(liveness) == 1


def test_F2_what_a_dead_agent_has_said_before_is_heard_before_it_is_lost() -> None:
    liveness = watched("a", "b")
    liveness.died("a", 1.0)
    assert lost(liveness, 1.0) == lost(liveness, 1.1) == []
    liveness.heard("a", 1.2)
    assert liveness.is_dead("a")
    assert liveness.next_check(1.2) == pytest.approx(0.8)
    liveness.vanished("a", 1.3, reset=False)
    assert liveness.check(1.3)[0] == [Lost("a", "its agent died, and its workers with it", 1.2)]


def test_F2_a_dead_agent_whose_connection_never_ends_is_lost_after_the_reconnect_grace() -> None:
    liveness = watched("a", "b")
    liveness.died("a", 1.0)
    assert lost(liveness, 2.0) == []
    assert lost(liveness, 2.0) == ["a"]
    liveness.died("a", 3.0)
    liveness.heard("a", 4.0)  # as a newcomer
    assert lost(liveness, 6.0) == lost(liveness, 6.0) == []


def test_a_member_that_left_is_watched_no_more() -> None:
    liveness = watched("a")
    liveness.vanished("a", 1.0, reset=False)
    liveness.forget("a")
    liveness.forget("a")
    liveness.vanished("a", 1.0, reset=False)
    assert liveness.next_check(2.0) is None
    assert lost(liveness, 99.0) == []


def test_F3_when_many_connections_break_at_once_everybody_gets_the_lease_once_more() -> None:
    liveness = watched("a", "b", "c", "d")
    for number, member in enumerate("abc"):
        liveness.vanished(member, 1.0 + number / 10, reset=False)
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
        liveness.vanished(name, 1.0, reset=False)
    assert lost(liveness, 2.0) == []
    assert lost(liveness, 2.0) == names[:missing]


def test_F3_members_that_fell_silent_together_were_last_heard_a_heartbeat_apart() -> None:
    names = [f"n{number}" for number in range(10)]
    liveness = Liveness(LEASE_S, GRACE_S, RESET_GRACE_S)
    for number, name in enumerate(names):
        liveness.heard(name, 1.0 + number / 10)
    found, patience = liveness.check(16.5)  # only the first is overdue
    assert found == []
    assert patience is not None
    assert "10 of 10 nodes" in patience.why


def test_F3_after_a_mass_silence_has_passed_the_next_one_gets_patience_too() -> None:
    liveness = watched("a", "b", "c", "d")
    for member in "abc":
        liveness.vanished(member, 1.0, reset=False)
    assert liveness.check(2.0)[1] is not None
    for member in "abcd":
        liveness.heard(member, 3.0)
    assert lost(liveness, 17.0) == []
    for member in "abc":
        liveness.vanished(member, 17.5, reset=False)
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


def test_R4_a_member_that_another_agent_waits_for_gets_the_lease_only_once() -> None:
    for waits in (True, False):
        liveness = watched("a", "b", "c", "d")
        if waits:
            liveness.wanted("a", 2.0)
            liveness.wanted("a", 5.0)
        liveness.heard("d", LEASE_S)
        due = LEASE_S + LEASE_SLACK_S
        assert liveness.check(due)[1] is not None, "three of four are missing"
        assert lost(liveness, due) == []
        assert liveness.next_check(due) == (2.0 if waits else LEASE_S)
        assert lost(liveness, due + 2.0) == []  # The sockets are polled once more.
        assert lost(liveness, due + 2.0) == (["a"] if waits else [])


def test_R4_a_member_that_is_heard_is_not_lost_for_the_sake_of_another_agent() -> None:
    liveness = watched("a", "b", "c", "d")
    liveness.wanted("a", 2.0)
    liveness.wanted("stranger", 2.0)
    liveness.heard("a", 3.0)
    liveness.heard("d", LEASE_S)
    due = LEASE_S + LEASE_SLACK_S
    liveness.check(due)
    assert liveness.next_check(due) == LEASE_S
    assert lost(liveness, due + 4.0) == lost(liveness, due + 4.0) == []


def test_R4_a_pause_of_the_coordinator_does_not_count_for_an_agent_that_waits() -> None:
    liveness = watched("a")
    liveness.wanted("a", 1.0)
    assert liveness.lagged(50.0, 40.0) is not None
    assert lost(liveness, 50.0) == lost(liveness, 50.0) == []
    assert liveness.next_check(50.0) == LEASE_S
    end = 50.0 + LEASE_S + LEASE_SLACK_S
    assert lost(liveness, end) == []
    assert lost(liveness, end) == ["a"]


def test_R5_who_comes_back_within_its_lease_hears_how_the_job_ended() -> None:
    liveness = Liveness(LEASE_S, GRACE_S, RESET_GRACE_S)
    for member, reset in (("a", False), ("b", True)):
        liveness.heard(member, 0.0)
        liveness.vanished(member, 1.0, reset=reset)
    liveness.job_ended()
    end = LEASE_S + LEASE_SLACK_S
    assert liveness.check(LEASE_S) == ([], None)
    assert liveness.next_check(1.0) == end - 1.0
    liveness.check(end)
    assert [lost.member for lost in liveness.check(end)[0]] == ["a", "b"]


def test_F2_a_heartbeat_that_a_later_ones_answer_has_overtaken_is_waited_for_no_more() -> None:
    lease = Lease(6.0, 1.5, has_fence=True)
    unheard, heard = lease.beat(10.0), lease.beat(11.5)
    assert lease.unanswered_s(12.0) == 2.0
    assert lease.answered(heard) == 11.5
    assert lease.unanswered_s(12.0) == 0.0
    assert lease.answered(unheard) is None
