"""Queues: first in, first out, each item once."""

from __future__ import annotations

import pytest
from tests.conformance.stores import SHORT_S, Call, Pair, await_blocked, tell_and

from rallypoint.elastic.stores.store import Store
from rallypoint.errors import StoreQueueEmptyError, StoreTimeoutError


def test_a_queue_gives_back_in_order(pair: Pair) -> None:
    a, b = pair
    for item in (b"1", b"", b"\x00\xff"):
        a.queue_push("q", item)
    assert b.queue_len("q") == 3
    assert [b.queue_pop("q"), a.queue_pop("q"), b.queue_pop("q", False)] == [b"1", b"", b"\x00\xff"]
    assert (a.queue_len("q"), b.queue_len("never")) == (0, 0)


def test_a_pop_that_must_not_wait_says_that_the_queue_is_empty(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(StoreQueueEmptyError):
        b.queue_pop("q", False)
    a.queue_push("q", "1")
    assert b.queue_pop("q", False) == b"1"


def test_a_pop_waits_for_a_push(pair: Pair) -> None:
    a, b = pair
    popper = tell_and(b, "about", b.queue_pop, "q")
    await_blocked(a, "about")
    a.queue_push("q", "1")
    assert popper.result() == b"1"


def test_a_pop_that_waits_in_vain_takes_nothing_later(pair: Pair) -> None:
    a, b = pair
    b.set_timeout(SHORT_S)
    with pytest.raises(StoreTimeoutError):
        b.queue_pop("q")
    a.queue_push("q", "1")
    assert a.queue_len("q") == 1


def test_each_item_goes_to_one_of_many(pair: Pair) -> None:
    a, b = pair
    stores = [store.clone() for store in (a, b, a, b)]
    poppers = [Call(pop_ten, store) for store in stores]
    for number in range(40):
        (a, b)[number % 2].queue_push("q", str(number))
    taken = [int(item) for popper in poppers for item in popper.result()]
    assert sorted(taken) == list(range(40))
    assert a.queue_len("q") == 0


def pop_ten(store: Store) -> list[bytes]:
    return [store.queue_pop("q") for _ in range(10)]


def test_a_queue_is_no_key_but_present_while_it_has_items(pair: Pair) -> None:
    a, b = pair
    before = b.num_keys()
    a.queue_push("q", "1")
    assert b.check(["q"])
    b.wait(["q"])
    assert b.num_keys() == before
    assert b.list_keys() == []
    assert not b.delete_key("q")
    assert a.queue_pop("q") == b"1"
    assert not b.check(["q"])


def test_a_queue_and_a_value_may_have_one_name(pair: Pair) -> None:
    a, b = pair
    a.set("k", "value")
    a.queue_push("k", "item")
    assert b.get("k") == b"value"
    assert b.queue_pop("k") == b"item"
    assert b.get("k") == b"value"


def test_a_push_wakes_who_waits_for_the_queue(pair: Pair) -> None:
    a, b = pair
    waiter = tell_and(b, "about", b.wait, ["q"])
    await_blocked(a, "about")
    a.queue_push("q", "1")
    waiter.result()
    assert b.queue_pop("q") == b"1"


def test_a_wait_for_a_full_queue_and_a_key_ends_with_the_key(pair: Pair) -> None:
    a, b = pair
    a.queue_push("q", "1")
    b.set_timeout(0.5)
    waiter = tell_and(b, "about", b.wait, ["q", "k"])
    await_blocked(a, "about")
    a.set("k", "v")
    waiter.result()


def test_a_push_answers_no_other_question(pair: Pair) -> None:
    a, b = pair
    for number in range(20):
        popper = tell_and(b, f"pop {number}", b.queue_pop, "q")
        await_blocked(a, f"pop {number}")
        a.queue_push("q", "1")
        assert popper.result() == b"1"
        reader = tell_and(b, f"get {number}", b.get, f"k{number}")
        await_blocked(a, f"get {number}")
        a.queue_push("q", "2")
        a.set(f"k{number}", "v")
        assert reader.result() == b"v"
        assert a.queue_pop("q") == b"2"
