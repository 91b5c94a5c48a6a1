"""Which event happens when: drawn by a seed, and known before anything has happened."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct
from tests.fault.soak.bad_nodes import BAD, UNCHARGED
from tests.fault.soak.events import ANY, WORKERS, Event, of_backend


class Plan(Struct, frozen=True):
    """What happens at one number."""

    event: str
    has_budget: bool


def events_of(backend: str) -> dict[str, Event]:
    """All events, by name."""
    return ANY | of_backend(backend) | WORKERS | BAD


def cycle(backend: str, seed: int, number: int, only: Sequence[str] = ()) -> list[Plan]:
    """The events of a cycle: first those of a job without restarts, with all bad nodes, then those
    of a job with a budget. Each event happens once in a job."""
    chance = random.Random(f"{seed} {backend} {number}")
    plans = []
    both = [*ANY, *of_backend(backend)]
    for has_budget, further in ((False, tuple(BAD)), (True, (*WORKERS, *UNCHARGED))):
        names = [name for name in (*both, *further) if not only or name in only]
        chance.shuffle(names)
        plans += [Plan(name, has_budget) for name in names]
    return plans


def plan_of(backend: str, seed: int, number: int, only: Sequence[str] = ()) -> Plan:
    """The event of this number, whatever happened before."""
    count = len(cycle(backend, seed, 0, only))
    return cycle(backend, seed, number // count, only)[number % count]
