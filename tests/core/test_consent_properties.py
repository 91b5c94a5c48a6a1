"""Whatever is delayed or lost between a leader and its heirs: while the leader is sure no heir may
claim, and none has claimed. Times are true ones; each process has a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from tests.harness.properties import examples

from rallypoint.core import messages as m
from rallypoint.core.model import Epoch, SharedSettings, Stamp
from rallypoint.core.takeover.clock_rates import MARGIN_S, SLEW, with_margin
from rallypoint.core.takeover.consent import Promises, Speaker, fenced_at
from rallypoint.core.takeover.leading import Lead
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process

LEASE_S, HOLD_S, BEAT_S = 15.0, 3.0, 2.0
ROUND = Stamp(1, 3)
EPOCH = Epoch(3, 7).as_int()
Delays = tuple[float | None, float | None]
"""Of a heartbeat and of its answer. None: it is lost."""


class Clock(Struct, frozen=True):
    """Of one process."""

    rate: float

    def at(self, true: float) -> float:
        """What it shows."""
        return 1000.0 + true * self.rate

    def true(self, shown: float) -> float:
        """When it shows that."""
        return (shown - 1000.0) / self.rate


class Heir:
    """Sends heartbeats, and may claim."""

    def __init__(self, rank: int, clock: Clock, claims_after: float, lease_s: float) -> None:
        """It claims as soon as it may, but not before that time."""
        self.rank, self.clock, self._claims_after = rank, clock, claims_after
        self.promises = Promises(lease_s)
        self.promises.assigned(ROUND, rank)
        self.numbers = count(1)
        self._claimed_at = inf

    def free_from(self, now: float) -> float:
        """When it may claim, if it promises nothing more."""
        held_until = with_margin(HOLD_S) / self.clock.rate
        free_from = max(now, held_until, self.clock.true(self.promises.until))
        return min(free_from, self._claimed_at)

    def claim(self, begin: float, end: float) -> None:
        """If that is possible in this time."""
        at = max(self._claims_after, self.free_from(begin))
        if at < min(end, self._claimed_at):
            self.promises.claiming(None)
            self._claimed_at = at


class Cluster:
    """A leader whose register is away, and its heirs."""

    def __init__(
        self, rates: tuple[float, float], claims_after: list[float], lease_s: float = LEASE_S
    ) -> None:
        """`rates`: of the leader's clock, and of the heirs' clocks."""
        self.clock, self.lease_s, clock = Clock(rates[0]), lease_s, Clock(rates[1])
        self.heirs = [
            Heir(rank, clock, after, lease_s) for rank, after in enumerate(claims_after, 1)
        ]
        leader = Leader((), Process("boot", 1, 1), has_workers=True, hold_s=HOLD_S)
        settings = SharedSettings("job", 1, 8, lease_s=lease_s)
        job = JobRecord(settings, 1, 3, True, True, len(claims_after) + 1, leader_rank=0)
        self.lead = Lead(LeadRecord(1, Epoch(3, 7), leader, 0, job), self.clock.at(0.0))
        self.queue: list[tuple[float, int, Callable[[float], None]]] = []
        self.ties = count()

    def run(self, delays: list[Delays]) -> float:
        """Until all of these heartbeats were sent, and then for ever. Returns how long the leader
        was sure."""
        now, sure_until, left = 0.0, 0.0, iter(delays)
        for heir in self.heirs:
            self.later(heir.rank / 7, partial(self.beat, heir, left))
        while self.queue:
            begin, (now, _, event) = now, heappop(self.queue)
            sure_until = max(sure_until, self.check(begin, now))
            event(now)
        return max(sure_until, self.check(now, inf))

    def later(self, at: float, event: Callable[[float], None]) -> None:
        heappush(self.queue, (at, next(self.ties), event))

    def beat(self, heir: Heir, left: Iterator[Delays], now: float) -> None:
        if (delays := next(left, None)) is None:
            return
        number, promise, delay_s = next(heir.numbers), heir.promises.next(0.0, EPOCH), delays[0]
        if delay_s is not None:
            heartbeat = m.Heartbeat(number, promise)
            self.later(now + delay_s, partial(self.hear, heir, heartbeat, delays[1]))
        self.later(now + BEAT_S, partial(self.beat, heir, left))

    def hear(self, heir: Heir, heartbeat: m.Heartbeat, delay_s: float | None, now: float) -> None:
        shown = self.clock.at(now)
        self.lead.heard(heartbeat, shown, Speaker(heir.rank, (ROUND, heir.rank, 0)))
        if self.lead.is_sure(shown) and delay_s is not None:
            self.later(now + delay_s, partial(self.answer, heir, heartbeat.number))

    def answer(self, heir: Heir, number: int, now: float) -> None:
        heir.promises.answered(number, heir.clock.at(now))

    def check(self, begin: float, end: float) -> float:
        """Nothing happens between these times. Returns until when the leader is sure then."""
        sure_until = min(end, self.clock.true(self.lead.sure_until))
        vouched_at = self.lead.vouched_at
        for heir in self.heirs:
            heir.claim(begin, end)
            free_from = heir.free_from(begin)
            assert begin >= sure_until or free_from >= sure_until, "two leaders"
            seen_at = heir.clock.at(0.0)
            waits_until = fenced_at(seen_at, heir.promises.until, self.lease_s)
            is_fenced_at = self.clock.true(vouched_at + self.lease_s)
            assert heir.clock.true(waits_until) >= is_fenced_at, "its workers run"
        return sure_until


DELAYS = st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.1, 0.3, 2.5, 7.0, 16.0, 40.0, None])
SLOW, FAST = 1 - SLEW, 1 + SLEW
RATES = st.sampled_from([(SLOW, FAST), (1.0, 0.92), (1.0, FAST), (SLOW, 1.0), (FAST, SLOW)])
LEASES = st.sampled_from([LEASE_S, 1.0, 120.0])
AFTER = st.sampled_from([0.0, 5.0, 17.0, 20.0, 30.0, inf])


@settings(max_examples=examples(900), deadline=None, database=None, print_blob=True)
@given(
    RATES,
    LEASES,
    st.lists(AFTER, min_size=1, max_size=3),
    st.lists(st.tuples(DELAYS, DELAYS), max_size=60),
)
def test_L2_no_heir_may_claim_while_the_leader_is_sure(
    rates: tuple[float, float], lease_s: float, claims_after: list[float], delays: list[Delays]
) -> None:
    Cluster(rates, claims_after, lease_s).run(delays)


@pytest.mark.parametrize("lease_s", [2.0, 15.0, 600.0])
def test_L4_the_node_of_a_vanished_leader_is_waited_for_half_a_second_more_than_a_lease(
    lease_s: float,
) -> None:
    """That is time enough also if the clock of that node is the slowest, and the other one the
    fastest."""
    cluster = Cluster((SLOW, FAST), [inf], lease_s)
    ends_at = cluster.clock.true(cluster.lead.vouched_at + lease_s)
    seen_at = cluster.heirs[0].clock.at(0.0)
    waits_until = fenced_at(seen_at, -inf, lease_s)
    assert cluster.heirs[0].clock.true(waits_until) > ends_at
    assert waits_until == pytest.approx(seen_at + lease_s + MARGIN_S)


def test_L2_heirs_that_are_heard_keep_their_leader_sure_to_the_end() -> None:
    at_once: Delays = (0.1, 0.1)
    sure_s = Cluster((1.0, 1.0), [0.0, 0.0, 0.0]).run([at_once] * 120)
    assert sure_s == HOLD_S + 3 * LEASE_S
    assert Cluster((1.0, 1.0), [0.0, 0.0, 0.0]).run([(0.1, None)] * 120) == HOLD_S
