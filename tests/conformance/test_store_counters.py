"""Counters: decimal text that is added to, however many do so at once."""

from __future__ import annotations

import pytest
from tests.conformance.stores import FAILURE, Call, Pair

from rallypoint.elastic.stores.store import Store


def test_adding_returns_the_sum(pair: Pair) -> None:
    a, b = pair
    assert a.add("n", 5) == 5
    assert b.add("n", -7) == -2
    assert a.add("n", 0) == -2


def test_adding_nothing_makes_a_counter(pair: Pair) -> None:
    a, b = pair
    assert a.add("n", 0) == 0
    assert b.get("n") == b"0"


def test_a_counter_is_a_value_in_decimal_text(pair: Pair) -> None:
    a, b = pair
    a.add("n", -12)
    assert b.get("n") == b"-12"
    a.set("n", "40")
    assert b.add("n", 2) == 42


def test_a_counter_has_64_bits(pair: Pair) -> None:
    a, b = pair
    assert a.add("n", 2**63 - 1) == 2**63 - 1
    assert b.add("n", -1) == 2**63 - 2
    assert b.add("m", -(2**63)) == -(2**63)
    assert b.get("m") == b"-9223372036854775808"


def test_a_sum_beyond_64_bits_is_refused(pair: Pair) -> None:
    a, b = pair
    a.set("n", str(2**63 - 1))
    with pytest.raises(FAILURE):
        a.add("n", 1)
    assert b.get("n") == b"9223372036854775807"


def test_text_after_a_number_is_ignored(pair: Pair) -> None:
    a, b = pair
    a.set("n", "12abc")
    assert b.add("n", 1) == 13
    assert a.get("n") == b"13"


@pytest.mark.parametrize("value", ["abc", "-", "99999999999999999999"])
def test_adding_to_what_is_no_number_is_refused(pair: Pair, value: str) -> None:
    a, b = pair
    a.set("n", value)
    with pytest.raises(FAILURE):
        a.add("n", 1)
    assert b.get("n") == value.encode()


def test_no_addition_is_lost(pair: Pair) -> None:
    callers = [Call(add_often, store.clone()) for store in pair for _ in range(3)]
    seen = [value for caller in callers for value in caller.result()]
    assert sorted(seen) == list(range(1, 6 * 25 + 1))


def add_often(store: Store) -> list[int]:
    return [store.add("n", 1) for _ in range(25)]


def test_one_of_many_wins_a_comparison(pair: Pair) -> None:
    clones = [pair[number % 2].clone() for number in range(6)]
    claims = [
        Call(clone.compare_set, "owner", "", str(number)) for number, clone in enumerate(clones)
    ]
    answers = {claim.result() for claim in claims}
    assert answers == {pair.a.get("owner")}
