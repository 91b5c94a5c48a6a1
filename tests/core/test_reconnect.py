"""How long a node looks for a coordinator that it has lost (F2): silence, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.core.search import (
    NO_ANSWER_S,
    DialOutcome,
    Search,
    attempted,
    ends_at,
    given_up_text,
    waiting_text,
)

LEASE_S = 15.0
BROKEN_AT = 100.0
LEASE_END = 114.0


def search(timeout_s: float | None = None) -> Search:
    return Search(BROKEN_AT, LEASE_END, LEASE_S, timeout_s)


def met(looking: Search, *attempts: tuple[float, DialOutcome]) -> Search:
    for at, answer in attempts:
        attempted(looking, at, answer, f"{answer.value} at {at:g}")
    return looking


SILENT, REFUSED = DialOutcome.NONE, DialOutcome.REFUSED


def test_F2_silence_is_waited_out_for_two_minutes() -> None:
    looking = met(search(), (105.0, SILENT), (113.0, SILENT))
    assert ends_at(looking) == BROKEN_AT + NO_ANSWER_S == 220.0
    assert waiting_text(looking, LEASE_END) == (
        "waiting for the coordinator to answer, 106 s more at most, to join again as a new node"
    )
    assert given_up_text(looking, 221.0) == (
        "the coordinator was lost: no answer for 121 s (no answer at 113): check the network "
        "between this node and its host; --reconnect-timeout SECONDS waits longer"
    )


def test_F2_before_any_attempt_has_ended_it_is_silence() -> None:
    assert ends_at(search()) == BROKEN_AT + NO_ANSWER_S
    assert waiting_text(search(), LEASE_END)


def test_F2_a_host_that_refuses_is_tried_until_the_lease_ends() -> None:
    looking = met(search(), (100.1, REFUSED), (113.0, REFUSED))
    assert ends_at(looking) == LEASE_END
    assert waiting_text(looking, LEASE_END) == "", "the last line follows at once"
    assert given_up_text(looking, LEASE_END) == (
        "the coordinator was lost: its host refused connections, and no other coordinator answered "
        "within 14 s (refused at 113)"
    )


def test_F2_a_host_that_was_silent_and_refuses_may_be_starting_again() -> None:
    looking = met(search(), (101.0, SILENT), (150.0, REFUSED), (151.0, REFUSED))
    assert ends_at(looking) == 150.0 + LEASE_S
    assert waiting_text(looking, 151.0).startswith("waiting for a coordinator, 14 s more at most")
    met(looking, (152.0, SILENT), (153.0, REFUSED))
    assert ends_at(looking) == 153.0 + LEASE_S, "each row of refusals counts for itself"
    met(looking, (154.0, SILENT), (219.0, REFUSED))
    assert ends_at(looking) == BROKEN_AT + NO_ANSWER_S, "never longer than silence alone"


def test_F2_silence_after_refusals_is_silence() -> None:
    """The host's machine goes down, or its name is gone while its pod is replaced."""
    looking = met(search(), (100.1, REFUSED), (105.0, SILENT))
    assert ends_at(looking) == BROKEN_AT + NO_ANSWER_S


@pytest.mark.parametrize("answer", list(DialOutcome))
@pytest.mark.parametrize(("timeout_s", "ends"), [(0.0, LEASE_END), (5.0, LEASE_END), (60.0, 160.0)])
def test_F2_a_reconnect_timeout_that_was_given_counts_for_both(
    answer: DialOutcome, timeout_s: float, ends: float
) -> None:
    assert ends_at(met(search(timeout_s), (105.0, answer))) == ends


def test_F2_a_lease_longer_than_the_wait_is_still_the_least() -> None:
    looking = Search(BROKEN_AT, 400.0, 300.0, None)
    assert ends_at(looking) == 400.0


@given(
    st.lists(st.tuples(st.floats(0.0, 300.0), st.sampled_from(DialOutcome)), max_size=8).map(
        lambda attempts: sorted(attempts, key=lambda attempt: attempt[0])
    ),
    st.sampled_from([None, 0.0, 30.0, 600.0]),
)
def test_F2_nobody_gives_up_before_the_lease_or_searches_for_ever(
    attempts: list[tuple[float, DialOutcome]], timeout_s: float | None
) -> None:
    looking = met(search(timeout_s), *((BROKEN_AT + at, answer) for at, answer in attempts))
    longest = NO_ANSWER_S if timeout_s is None else timeout_s
    assert LEASE_END <= ends_at(looking) <= max(LEASE_END, BROKEN_AT + longest)
    assert bool(waiting_text(looking, LEASE_END)) == (ends_at(looking) > LEASE_END)
