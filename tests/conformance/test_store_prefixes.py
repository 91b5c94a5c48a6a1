"""Prefixes: parts of a store, each with keys of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.known_wrong import KNOWN_WRONG
from tests.conformance.stores import (
    FAILURE,
    OURS,
    OWN,
    SUBJECTS,
    Pair,
    Subject,
    TorchStore,
    prefixed,
)

from rallypoint.elastic.stores.store import Store

# With the bytes that stores and prefixes of this suite put before it, within 8192.
LONGEST_KEY = "k" * 8150

by_each = pytest.mark.parametrize("by", [OWN, OURS])


def part(store: Store, by: str) -> Store:
    return prefixed(prefixed(store, by, "outer"), by, "inner")


@by_each
def test_prefixes_nest_with_the_outer_first(pair: Pair, by: str) -> None:
    nested = part(pair.a, by)
    nested.set("k", "v")
    nested.multi_set(["l", "m"], ["1", "2"])
    assert pair.b.multi_get([f"outer/inner/{key}" for key in "klm"]) == [b"v", b"1", b"2"]
    pair.b.set("outer/inner/n", "5")
    assert nested.add("n", 1) == 6
    assert not nested.check(["outer/inner/k"])


@by_each
def test_the_same_prefixes_make_the_same_part_on_both_sides(pair: Pair, by: str) -> None:
    a, b = part(pair.a, by), part(pair.b, OWN)
    a.append("k", "a")
    b.append("k", "b")
    assert a.get("k") == b.get("k") == b"ab"
    assert a.compare_set("k", "ab", "c") == b.get("k") == b"c"
    assert a.delete_key("k")
    assert not b.check(["k"])


@by_each
def test_a_part_lists_its_own_keys_only(pair: Pair, by: str) -> None:
    nested = part(pair.a, by)
    pair.b.set("k", "v")
    pair.b.set("outer/k", "v")
    pair.b.set("outer/innermost", "v")
    nested.set("own", "v")
    nested.set("", "v")
    assert sorted(nested.list_keys()) == ["", "own"]


@by_each
def test_an_empty_prefix_is_one_too(pair: Pair, by: str) -> None:
    prefixed(pair.a, by, "").set("k", "v")
    assert pair.b.get("/k") == b"v"


def innermost(store: Store) -> Any:
    return store.inner if isinstance(store, TorchStore) else store


@by_each
def test_the_underlying_store_is_the_one_without_the_prefix(pair: Pair, by: str) -> None:
    outer = prefixed(pair.a, by, "outer")
    underlying = innermost(prefixed(outer, by, "inner")).underlying_store
    underlying.set("k", "v")
    assert pair.b.get("outer/k") == b"v"
    underlying.underlying_store.set("l", "w")
    assert pair.b.get("l") == b"w"


@by_each
def test_the_timeout_is_that_of_the_store(pair: Pair, by: str) -> None:
    part(pair.a, by).set_timeout(7)
    assert pair.a.timeout.total_seconds() == 7
    pair.a.set_timeout(8)
    assert part(pair.a, by).timeout.total_seconds() == 8


@by_each
def test_a_part_has_all_that_its_store_has(pair: Pair, by: str) -> None:
    assert part(pair.a, by).has_extended_api() == pair.a.has_extended_api()


@by_each
def test_a_clone_of_a_part_is_a_part(pair: Pair, by: str) -> None:
    clone = part(pair.a, by).clone()
    clone.set("k", "v")
    assert pair.b.get("outer/inner/k") == b"v"


def test_the_prefix_counts_for_how_long_a_key_may_be(pair: Pair) -> None:
    a, b = pair
    a.set(LONGEST_KEY, "v")
    assert b.get(LONGEST_KEY) == b"v"
    prefixed(a, OURS, "p" * 20).set(LONGEST_KEY, "w")
    assert b.get(f"{'p' * 20}/{LONGEST_KEY}") == b"w"


def test_what_is_longer_than_a_key_may_be_is_refused(pair: Pair, subject: Subject) -> None:
    if subject.kind != "tcp":
        pytest.skip("only a server has that limit")
    a, b = pair
    with pytest.raises(FAILURE):
        a.compare_set("k" * 8193, "", "v")
    assert b.list_keys() == []


def test_every_line_about_what_is_wrong_is_about_a_test_and_a_subject_that_there_are() -> None:
    written = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for wrong in KNOWN_WRONG:
        assert f"def {wrong.test.partition('[')[0]}(" in written
        assert any(set(wrong.traits.split()) <= subject.traits() for subject in SUBJECTS), wrong
