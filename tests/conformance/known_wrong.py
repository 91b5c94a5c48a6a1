"""Where torch 2.13's stores don't do what the suite asks for; each is tested to be still so.

A test that is listed must fail on every subject with the trait. When torch is mended it passes,
which fails the suite, and the line here and in docs/stores.md can go.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.conformance.stores import Subject


class Wrong(NamedTuple):
    """A test that fails on all subjects with the trait; one that would hang is not run."""

    trait: str
    test: str
    reason: str
    hangs: bool = False


KNOWN_WRONG: tuple[Wrong, ...] = (
    *(
        Wrong(trait, test, "a timeout of 0 is for ever", hangs=True)
        for trait in ("hash-torch", "file-torch")
        for test in ("test_a_timeout_of_zero_is_over_at_once", "test_a_barrier_can_be_only_entered")
    ),
)


def what_is_wrong(subject: Subject, test: str) -> Wrong | None:
    """Why this test can't pass on this subject; None if it must."""
    for wrong in KNOWN_WRONG:
        if wrong.test == test and wrong.trait in subject.traits():
            return wrong
    return None
