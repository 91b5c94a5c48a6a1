"""How long a node waits for a world of a shared job: its join timeout, without standing by."""

from __future__ import annotations

import pytest

from rallypoint.core.round_state import MemberState
from rallypoint.elastic.rendezvous.shared.member import JoinWait, Outlook, Outside, Pending

TIMEOUT_S = 10.0


def pending(*, needed: bool = True, member_state: MemberState = MemberState.JOINED) -> Pending:
    return Pending(member_state, 1, 2, (), needed)


def test_a_node_that_is_needed_waits_for_the_join_timeout() -> None:
    wait = JoinWait(TIMEOUT_S, 100.0)
    assert not wait.must_ask(pending(), 103.0)
    assert wait.left_s(103.0) == 7.0
    assert wait.ends_at == 110.0


def test_R2_no_timeout_applies_to_a_node_that_stands_by() -> None:
    wait = JoinWait(TIMEOUT_S, 100.0)
    assert not wait.must_ask(pending(needed=False), 103.0)
    assert wait.left_s(9999.0) is None


def test_R2_the_time_of_standing_by_does_not_count_for_a_node_that_is_promoted() -> None:
    wait = JoinWait(TIMEOUT_S, 100.0)
    wait.must_ask(pending(needed=False), 103.0)
    assert not wait.must_ask(pending(), 500.0)
    assert wait.left_s(504.0) == 6.0
    wait.must_ask(pending(), 505.0)
    assert wait.left_s(505.0) == 5.0, "it is promoted once"


@pytest.mark.parametrize(
    ("outlook", "stood_by", "left_s"),
    [
        (Outside(), False, 7.0),
        (Outside(), True, TIMEOUT_S),
        (pending(member_state=MemberState.STOPPING), False, TIMEOUT_S),
    ],
    ids=["removed", "removed while it stood by", "its round has ended unseen"],
)
def test_F5_a_node_that_is_in_no_forming_round_asks_again(
    outlook: Outlook, stood_by: bool, left_s: float
) -> None:
    """Its time begins anew if it stood by, or if its round had formed."""
    wait = JoinWait(TIMEOUT_S, 100.0)
    if stood_by:
        wait.must_ask(pending(needed=False), 102.0)
    assert wait.must_ask(outlook, 103.0)
    assert wait.left_s(103.0) == left_s
