"""Barriers: nobody passes before all have come."""

from __future__ import annotations

import pytest
from tests.conformance.stores import SHORT_S, Call, Pair

from rallypoint.elastic.stores.store import Store
from rallypoint.errors import StoreTimeoutError


def test_nobody_passes_before_all_have_come(pair: Pair) -> None:
    def come(store: Store) -> int:
        store.add("came", 1)
        store.barrier("b", 4)
        return store.add("came", 0)

    clones = [store.clone() for store in (*pair, *pair)]
    calls = [Call(come, clone) for clone in clones]
    assert [call.result() for call in calls] == [4] * 4


def test_one_alone_passes_at_once(pair: Pair) -> None:
    pair.a.barrier("b", 1)


def test_a_barrier_can_be_only_entered(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(StoreTimeoutError):
        a.barrier("b", 2, 0)
    b.barrier("b", 2, 0)


def test_who_waits_in_vain_is_told(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(StoreTimeoutError):
        a.barrier("b", 3, SHORT_S)
    a.set("k", "v")
    assert b.get("k") == b"v"


def test_the_timeout_of_the_store_counts_if_none_is_given(pair: Pair) -> None:
    pair.a.set_timeout(SHORT_S)
    with pytest.raises(StoreTimeoutError):
        pair.a.barrier("b", 2)


def test_who_gave_up_stays_counted(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(StoreTimeoutError):
        a.barrier("b", 2, SHORT_S)
    b.barrier("b", 2)


def test_a_barrier_that_has_been_passed_stays_open(pair: Pair) -> None:
    a, b = pair
    a.barrier("b", 1)
    b.barrier("b", 1)
    a.barrier("b", 2, SHORT_S)


def test_barriers_of_other_names_are_others(pair: Pair) -> None:
    a, b = pair
    a.barrier("b", 1)
    with pytest.raises(StoreTimeoutError):
        b.barrier("c", 2, SHORT_S)
