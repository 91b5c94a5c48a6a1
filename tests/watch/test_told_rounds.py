"""How the rounds before a takeover ended, as nodes tell it (V3)."""

from __future__ import annotations

from collections import deque
from itertools import permutations

import pytest

from rallypoint.core.model import EndKind, EndReason, Stamp
from rallypoint.core.round_record import ReportedRound, RoundRecord, add

HEARD = EndReason(EndKind.FAILURE, "rank 4 was killed by SIGSEGV")
JUDGED = EndReason(EndKind.LOSS, "node n2 was lost")


def told(number: int, end: EndReason | None, why: str) -> ReportedRound:
    return ReportedRound(Stamp(1, number), 3, 3, why, 30.0 - number, 20.0 - number, end)


FIRST = "the first round"
MISSED = (told(0, HEARD, FIRST),)
"""The node heard of the end of round 0, and took no part in round 1."""
TOOK_PART = (told(0, JUDGED, FIRST), told(1, None, JUDGED.text))


@pytest.mark.parametrize("order", list(permutations((MISSED, TOOK_PART, MISSED), 3)))
def test_V3_the_reason_of_an_end_is_the_judged_one_whichever_node_tells_first(
    order: tuple[tuple[ReportedRound, ...], ...],
) -> None:
    rounds: deque[RoundRecord] = deque()
    for number, rounds_told in enumerate(order):
        add(rounds, f"n{number}", rounds_told, lambda ago: 1000.0 - ago)
    assert (rounds[0].end, rounds[0].end_text) == ("loss", JUDGED.text)


def test_V3_what_a_node_has_heard_counts_where_no_node_knows_more() -> None:
    rounds: deque[RoundRecord] = deque()
    add(rounds, "n1", MISSED, lambda ago: 1000.0 - ago)
    assert (rounds[0].end, rounds[0].end_text) == ("failure", HEARD.text)
