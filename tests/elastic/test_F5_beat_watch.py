"""Behaviour F5: who stopped counting, as one observer sees it."""

from __future__ import annotations

import pytest

from rallypoint.core.model import NodeRef
from rallypoint.elastic.rendezvous.shared.member import READS, BeatWatch, Suspect
from rallypoint.testing.clock import FakeClock

LEASE_S = 10.0
A, B = NodeRef("a", "a.1"), NodeRef("b", "b.1")


class Observer:
    """Reads the counters of two nodes."""

    def __init__(self) -> None:
        self.clock, self.watch = FakeClock(1000.0), BeatWatch(LEASE_S)
        self.beats = {A: 0, B: 0}

    def read_after(self, seconds: float, *, counting: NodeRef | None = B) -> list[NodeRef]:
        """Who is suspected after another read; `counting` has counted before it."""
        self.clock.advance(seconds)
        if counting is not None:
            self.beats[counting] += 1
        self.watch.read(self.beats, self.clock.now())
        return [suspect.ref for suspect in self.watch.suspects()]


@pytest.fixture
def late() -> Observer:
    """It would suspect A at its next read."""
    observer = Observer()
    for _ in range(4):
        observer.read_after(3.0)
    return observer


def begins_anew(observer: Observer) -> bool:
    """Whether A is suspected after a whole lease, and no sooner."""
    return [observer.read_after(3.0) for _ in range(4)] == [[], [], [], [A]]


def test_F5_who_stands_still_for_a_lease_is_suspected_with_what_was_seen() -> None:
    observer = Observer()
    for _ in range(4):
        assert observer.read_after(3.0) == []
    assert observer.read_after(3.0) == [A]
    assert observer.watch.suspects() == [Suspect(A, 0, 12.0)]
    assert observer.watch.suspects(patience_s=2.0) == [Suspect(A, 0, 12.0)]
    assert observer.watch.suspects(patience_s=2.5) == []
    assert observer.read_after(3.0, counting=A) == []


def test_F5_nobody_is_suspected_by_who_has_not_looked() -> None:
    assert BeatWatch(LEASE_S).suspects() == []


def test_F5_a_lease_must_have_passed_however_often_was_read() -> None:
    observer = Observer()
    observer.read_after(0.0)
    for _ in range(33):
        assert observer.read_after(0.3) == []


def test_F5_reads_that_are_close_to_each_other_count_as_one() -> None:
    """A lease has passed, and many reads, but only two that were apart."""
    observer = Observer()
    observer.read_after(0.0)
    for _ in range(2):
        observer.read_after(4.95)
        for _ in range(2 * READS):
            assert observer.read_after(0.05) == []
    assert observer.read_after(2.0) == [A]


def test_F5_two_late_reads_are_not_enough() -> None:
    """Spaced by just less than a gap, two reads reach the lease: a third one is waited for."""
    observer = Observer()
    observer.read_after(0.0)
    assert observer.read_after(5.0) == []
    assert observer.read_after(5.0) == []
    assert observer.read_after(5.0) == [A]


def test_F5_a_gap_in_ones_own_reading_starts_everything_anew(late: Observer) -> None:
    assert late.read_after(LEASE_S / 2 + 0.1) == []
    assert begins_anew(late)


def test_F5_who_was_not_watched_meanwhile_is_new(late: Observer) -> None:
    late.watch.read({B: 99}, late.clock.now())
    assert late.read_after(3.0) == []
    assert begins_anew(late)


def test_F5_another_life_of_a_node_is_another_counter(late: Observer) -> None:
    del late.beats[A]
    late.beats[NodeRef("a", "a.2")] = 0
    assert late.read_after(3.0) == []


@pytest.mark.parametrize("seconds", [-1.0, -1e-9, float("nan")])
def test_a_fake_clock_never_goes_back(seconds: float) -> None:
    clock = FakeClock(5.0)
    with pytest.raises(ValueError, match="can't advance by"):
        clock.advance(seconds)
    assert clock.now() == 5.0


def test_clocks_beside_each_other_differ_by_offset_and_rate() -> None:
    clock = FakeClock()
    other = clock.beside(offset_s=-20.0, rate=0.5)
    clock.advance(10.0)
    assert (clock.now(), other.now()) == (10.0, -15.0)
