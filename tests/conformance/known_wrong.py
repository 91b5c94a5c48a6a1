"""Where torch 2.13's stores don't do what the suite asks for; each is tested to be still so.

A test that is listed must fail on every subject with the trait. When torch is mended it passes,
which fails the suite, and the line here and in docs/stores.md can go.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.conformance.stores import Subject


class Wrong(NamedTuple):
    """A test that fails on all subjects with the trait; `hangs`: or hangs, so it is not run."""

    trait: str
    test: str
    reason: str
    hangs: bool = False


KNOWN_WRONG: tuple[Wrong, ...] = (
    Wrong("tcp-a-torch", "test_a_key_without_a_value_is_refused", "the rest is set"),
    Wrong("tcp-b-torch", "test_a_wait_for_what_is_there_returns_at_once", "0 may win", True),
    Wrong("tcp-b-torch", "test_one_object_serves_several_threads", "one wait blocks all", True),
)


def what_is_wrong(subject: Subject, test: str) -> Wrong | None:
    """Why this test can't pass on this subject; None if it must."""
    for wrong in KNOWN_WRONG:
        if wrong.test == test and wrong.trait in subject.traits():
            return wrong
    return None
