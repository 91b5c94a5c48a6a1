"""Which event happens when: drawn by a seed, and known before anything has happened."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from msgspec import Struct
from tests.fault.soak.bad_nodes import BAD, FAILING, UNCHARGED
from tests.fault.soak.events import ANY, WORKERS, Event, of_backend


class Plan(Struct, frozen=True):
    """What happens at one number."""

    event: str
    has_budget: bool


def events_of(backend: str) -> dict[str, Event]:
    """All events, by name."""
    return ANY | of_backend(backend) | WORKERS | BAD


def cycle(backend: str, seed: int, number: int, only: Sequence[str] = ()) -> list[Plan]:
    """The events of a cycle: first those of a job without restarts, then those of a job with a
    budget. Each event happens once in a job. Workers fail on two machines of a job at most: where
    they fail on three within an hour, the program is taken for the cause."""
    chance = random.Random(f"{seed} {backend} {number}")
    plans = []
    both = [*ANY, *of_backend(backend)]
    left_out = FAILING[number % len(FAILING)]
    bad = tuple(name for name in BAD if name != left_out)
    for has_budget, further in ((False, bad), (True, UNCHARGED if number % 2 else tuple(WORKERS))):
        names = [name for name in (*both, *further) if not only or name in only]
        chance.shuffle(names)
        plans += [Plan(name, has_budget) for name in names]
    return plans


def plan_of(backend: str, seed: int, number: int, only: Sequence[str] = ()) -> Plan:
    """The event of this number, whatever happened before."""
    for which in itertools.count():
        plans = cycle(backend, seed, which, only)
        if number < len(plans):
            return plans[number]
        number -= len(plans)
    raise AssertionError("there is always another cycle")
