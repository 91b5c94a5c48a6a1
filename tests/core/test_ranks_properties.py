"""The order of ranks against a model that is too simple to be wrong (R4)."""

from __future__ import annotations

import random
from typing import Any

from rallypoint.core.model import Candidate, NodeRef, WorldEntry
from rallypoint.core.ranks import Participant, natural_key, order


def plain_order(previous: list[WorldEntry], nodes: list[Participant]) -> list[Participant]:
    """The words of behaviour R4, one after the other, at any cost."""
    left = sorted(
        nodes,
        key=lambda s: (natural_key(s.candidate.topology), natural_key(s.ref.node_id)),
    )
    row: list[Participant | None] = [None] * len(previous)
    survivors = []

    def fill(fits: Any) -> None:
        for index, place in enumerate(previous):
            for node in list(left):
                if row[index] is None and fits(place, node):
                    row[index] = node
                    left.remove(node)

    fill(lambda p, s: (p.node_id, p.incarnation) == (s.ref.node_id, s.ref.incarnation))
    survivors = [node for node in row if node is not None]
    fill(lambda p, s: p.node_id == s.ref.node_id)
    fill(lambda p, s: (p.workers, p.role) == s.shape)
    fill(lambda p, s: True)
    world = [node for node in row if node is not None] + left
    if survivors:
        world.remove(survivors[0])
        world.insert(0, survivors[0])
    return world


def test_R4_order_agrees_with_the_plain_words() -> None:
    dice = random.Random(4)
    names = [f"n{number}" for number in (1, 2, 3, 4, 9, 10, 11, 20)]
    for _ in range(2000):
        previous = [
            WorldEntry(name, dice.choice("xy"), dice.randint(1, 2), dice.choice("pq"))
            for name in dice.sample(names, dice.randint(0, 6))
        ]
        nodes = [
            Participant(
                NodeRef(name, dice.choice("xy")),
                Candidate(dice.randint(1, 2), dice.choice("pq"), "a", 1, dice.choice(["", "r1"])),
            )
            for name in dice.sample(names, dice.randint(0, 8))
        ]
        assert order(previous, nodes) == plain_order(previous, nodes)


def test_R4_the_first_order_does_not_depend_on_who_came_first() -> None:
    dice = random.Random(5)
    for _ in range(200):
        nodes = [
            Participant(
                NodeRef(f"n{number}", "x"), Candidate(1, "p", "a", 1, dice.choice(["", "r1"]))
            )
            for number in dice.sample(range(30), 6)
        ]
        expected = order([], nodes)
        dice.shuffle(nodes)
        assert order([], nodes) == expected
