"""A library leaves the program's random numbers alone."""

from __future__ import annotations

import random

from rallypoint.store.backoff import uniform


def test_pauses_take_nothing_from_the_programs_sequence() -> None:
    before = random.getstate()
    assert all(0.5 <= uniform(0.5, 1) <= 1 for _ in range(100))
    assert random.getstate() == before
