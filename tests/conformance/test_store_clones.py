"""Clones: the same store by another object."""

from __future__ import annotations

import gc
from datetime import timedelta

from tests.conformance.stores import LIMIT_S, Pair, await_blocked, tell_and


def test_a_clone_is_the_same_store(pair: Pair) -> None:
    a, b = pair
    clone = a.clone()
    clone.set("k", "v")
    assert (a.get("k"), b.get("k"), clone.get("k")) == (b"v", b"v", b"v")
    assert clone.clone().list_keys() == ["k"]


def test_a_clone_has_the_timeout_of_then(pair: Pair) -> None:
    pair.a.set_timeout(7)
    assert pair.a.clone().timeout == timedelta(seconds=7)


def test_a_clone_has_a_timeout_of_its_own(pair: Pair) -> None:
    clone = pair.a.clone()
    clone.set_timeout(7)
    assert (pair.a.timeout, clone.timeout) == (timedelta(seconds=LIMIT_S), timedelta(seconds=7))


def test_a_clone_works_while_the_other_one_waits(pair: Pair) -> None:
    a, _ = pair
    clone = a.clone()
    reader = tell_and(a, "about", a.get, "k")
    await_blocked(clone, "about")
    clone.set("k", "v")
    assert reader.result() == b"v"


def test_the_end_of_a_clone_harms_nobody(pair: Pair) -> None:
    a, b = pair
    clone = a.clone()
    clone.set("k", "v")
    del clone
    gc.collect(1)  # It is that young; to look through all costs more than all of these tests.
    assert (a.get("k"), b.get("k")) == (b"v", b"v")
