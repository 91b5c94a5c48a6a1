"""Who may be connected without having proven anything: slots, who loses one, and when."""

from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.core.admission import PATIENCE_S, AdmissionLimits

LIMIT_S = 10.0


class Door:
    """Connections that wait in the kernel's queue, and what an acceptor does with them."""

    def __init__(self, room: int, **given: float) -> None:
        self.admission = AdmissionLimits(room, LIMIT_S, **given)  # type: ignore[arg-type]
        self.dropped: list[int] = []

    def let_in(self, connection: int, source: str, now: float) -> bool:
        """False: it has to wait."""
        while not self.admission.has_free_slot:
            victim = self.admission.victim(now) if self.admission.slots else None
            if victim is None:
                return False
            self.admission.gone(victim)
            self.dropped.append(victim)
        self.admission.arrived(connection, source, now)
        return True


def test_everybody_gets_a_place_while_there_is_one() -> None:
    door = Door(3)
    assert [door.let_in(n, "a", 0.0) for n in range(4)] == [True, True, True, False]
    door.admission.gone(1)
    assert door.let_in(3, "a", 0.0)
    assert door.dropped == []


def test_who_has_proven_itself_leaves_its_place_but_keeps_its_descriptor() -> None:
    door = Door(4, slots_max=2)
    for number in range(2):
        door.let_in(number, "a", 0.0)
        door.admission.proved(number)
    assert (door.admission.slots, len(door.admission._unproven)) == (2, 0)
    for number in range(2, 4):
        door.let_in(number, "a", 0.0)
        door.admission.proved(number)
    assert door.admission.slots == 0
    assert not door.let_in(4, "a", 1000.0)
    door.admission.gone(0)
    assert door.let_in(4, "a", 1000.0)


def test_of_the_source_that_holds_most_the_oldest_goes_once_it_has_had_its_time() -> None:
    door = Door(4)
    for number, source in enumerate("abba"):
        door.let_in(number, source, number * 0.01)
    assert not door.let_in(4, "c", 0.1)
    assert door.admission.next_victim_at() == PATIENCE_S
    assert door.let_in(4, "c", PATIENCE_S)
    assert door.dropped == [0]
    # "b" holds two now, "a" and "c" one.
    assert door.let_in(5, "c", PATIENCE_S + 0.01)
    assert door.dropped == [0, 1]


def test_nobody_stays_unproven_for_longer_than_the_limit() -> None:
    door = Door(10)
    door.let_in(1, "a", 0.0)
    door.let_in(2, "b", 1.0)
    door.let_in(3, "c", 2.0)
    door.admission.proved(2)
    assert door.admission.next_overdue_at() == LIMIT_S
    assert door.admission.overdue(LIMIT_S) == [1]
    assert door.admission.overdue(LIMIT_S + 2.0) == [1, 3]


def test_a_thousand_nodes_of_one_address_get_in_one_after_the_other_and_none_is_refused() -> None:
    door, takes_s = Door(2000, slots_max=32), 0.1
    proofs: list[tuple[float, int]] = []
    waiting, now = list(range(1000)), 0.0
    while waiting or proofs:
        while waiting and door.let_in(waiting[0], "nat", now):
            heapq.heappush(proofs, (now + takes_s, waiting.pop(0)))
        now, proven = heapq.heappop(proofs)
        door.admission.proved(proven)
    assert door.dropped == []
    assert now < 1000 / 32 * takes_s + 2 * takes_s


def test_a_flood_from_one_source_costs_nobody_else_its_place() -> None:
    door = Door(100)
    slow_node, now = 0, 0.0
    door.let_in(slow_node, "node", now)
    for number in range(1, 20_000):
        now += 1 / 3200
        door.let_in(number, "stranger", now)
    assert len(door.dropped) > 1000
    assert slow_node not in door.dropped
    # The next node need not wait for longer than a stranger's time.
    assert door.let_in(20_001, "another node", now + PATIENCE_S)


Step = tuple[str, int, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("come", "come", "come", "prove", "go", "overdue")),
        st.integers(0, 30),
        st.floats(0.0, 0.3),
    ),
    max_size=200,
)


@given(STEPS, st.integers(1, 12), st.integers(1, 8))
def test_whatever_comes_slots_are_kept_and_only_who_holds_most_loses_one(
    steps: list[Step], room: int, slots: int
) -> None:
    door = Door(room, slots_max=slots)
    unproven: dict[int, tuple[str, float]] = {}
    proven: set[int] = set()
    now, numbers = 0.0, 0
    for what, which, passes_s in steps:
        now += passes_s
        everybody = [*unproven, *proven]
        if what == "come":
            numbers += 1
            source = "abc"[which % 3]
            before = dict(unproven)
            dropped = len(door.dropped)
            came = door.let_in(numbers, source, now)
            for number in door.dropped[dropped:]:
                held = [s for s, _ in before.values()]
                lost, since = before.pop(number)
                assert since + PATIENCE_S <= now
                assert held.count(lost) == max(map(held.count, held))
                assert since == min(at for s, at in unproven.values() if s == lost)
                del unproven[number]
            if came:
                unproven[numbers] = (source, now)
            else:
                assert len(unproven) >= door.admission.slots
        elif what == "prove" and unproven:
            number = list(unproven)[which % len(unproven)]
            door.admission.proved(number)
            del unproven[number]
            proven.add(number)
        elif what == "go" and everybody:
            number = everybody[which % len(everybody)]
            door.admission.gone(number)
            door.admission.gone(number)
            unproven.pop(number, None)
            proven.discard(number)
        elif what == "overdue":
            overdue = door.admission.overdue(now)
            assert overdue == [n for n, (_, at) in unproven.items() if at + LIMIT_S <= now]
        assert len(door.admission._unproven) == len(unproven) <= slots
        assert len(unproven) + len(proven) <= room
