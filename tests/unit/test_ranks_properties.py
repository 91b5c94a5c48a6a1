"""The order of ranks against a model that is too simple to be wrong (R4)."""

from __future__ import annotations

import random
from typing import Any

from rallypoint.core.model import Candidate, NodeRef, Place
from rallypoint.core.ranks import Seat, natural_key, order


def plain_order(previous: list[Place], seats: list[Seat]) -> list[Seat]:
    """The words of behaviour R4, one after the other, at any cost."""
    left = sorted(
        seats,
        key=lambda s: (natural_key(s.candidate.topology), natural_key(s.ref.node_id)),
    )
    row: list[Seat | None] = [None] * len(previous)
    survivors = []

    def fill(fits: Any) -> None:
        for index, place in enumerate(previous):
            for seat in list(left):
                if row[index] is None and fits(place, seat):
                    row[index] = seat
                    left.remove(seat)

    fill(lambda p, s: (p.node_id, p.incarnation) == (s.ref.node_id, s.ref.incarnation))
    survivors = [seat for seat in row if seat is not None]
    fill(lambda p, s: p.node_id == s.ref.node_id)
    fill(lambda p, s: (p.workers, p.role) == s.shape)
    fill(lambda p, s: True)
    world = [seat for seat in row if seat is not None] + left
    if survivors:
        world.remove(survivors[0])
        world.insert(0, survivors[0])
    return world


def test_R4_order_agrees_with_the_plain_words() -> None:
    dice = random.Random(4)
    names = [f"n{number}" for number in (1, 2, 3, 4, 9, 10, 11, 20)]
    for _ in range(2000):
        previous = [
            Place(name, dice.choice("xy"), dice.randint(1, 2), dice.choice("pq"))
            for name in dice.sample(names, dice.randint(0, 6))
        ]
        seats = [
            Seat(
                NodeRef(name, dice.choice("xy")),
                Candidate(dice.randint(1, 2), dice.choice("pq"), "a", 1, dice.choice(["", "r1"])),
            )
            for name in dice.sample(names, dice.randint(0, 8))
        ]
        assert order(previous, seats) == plain_order(previous, seats)


def test_R4_the_first_order_does_not_depend_on_who_came_first() -> None:
    dice = random.Random(5)
    for _ in range(200):
        seats = [
            Seat(NodeRef(f"n{number}", "x"), Candidate(1, "p", "a", 1, dice.choice(["", "r1"])))
            for number in dice.sample(range(30), 6)
        ]
        expected = order([], seats)
        dice.shuffle(seats)
        assert order([], seats) == expected
