"""Waiting: who is woken by what, and what a timeout says."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.conformance.stores import LIMIT_S, SHORT_S, Call, Pair, await_blocked, tell_and

from rallypoint.elastic.stores.store import Store
from rallypoint.errors import StoreTimeoutError

WRITES: dict[str, Callable[[Store], object]] = {
    "set": lambda store: store.set("k", "1"),
    "add": lambda store: store.add("k", 1),
    "compare_set": lambda store: store.compare_set("k", "", "1"),
    "append": lambda store: store.append("k", "1"),
    "multi_set": lambda store: store.multi_set(["other", "k"], ["0", "1"]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_every_write_wakes_who_waits(pair: Pair, write: Callable[[Store], object]) -> None:
    a, b = pair
    clone = b.clone()
    reader = tell_and(b, "reader", b.get, "k")
    waiter = tell_and(clone, "waiter", clone.wait, ["k"])
    await_blocked(a, "reader")
    await_blocked(a, "waiter")
    write(a)
    assert reader.result() == b"1"
    waiter.result()


def test_a_wait_for_several_keys_ends_with_the_last(pair: Pair) -> None:
    a, b = pair
    a.set("one", "1")
    waiter = tell_and(b, "about", b.multi_get, ["one", "two", "three"])
    await_blocked(a, "about")
    a.set("three", "3")
    a.set("two", "2")
    assert waiter.result() == [b"1", b"2", b"3"]


def test_a_wait_for_what_is_there_returns_at_once(pair: Pair) -> None:
    a, b = pair
    a.set("k", "v")
    b.wait(["k"], 0)
    b.wait(["k", "k"], timedelta(0))
    b.set_timeout(0)
    assert b.get("k") == b"v"


def test_a_timeout_of_zero_is_over_at_once(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(StoreTimeoutError):
        a.wait(["missing"], 0)
    b.set_timeout(0)
    with pytest.raises(StoreTimeoutError):
        b.get("missing")


@pytest.mark.parametrize("timeout_s", [SHORT_S / 10, SHORT_S])
def test_a_wait_for_what_never_comes_ends_after_its_timeout(pair: Pair, timeout_s: float) -> None:
    a, b = pair
    a.set("there", "v")
    start = time.monotonic()
    with pytest.raises(StoreTimeoutError):
        b.wait(["there", "missing"], timeout_s)
    assert time.monotonic() - start >= timeout_s
    assert b.get("there") == b"v", "the store can be used further"


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("missing"),
        lambda store: store.multi_get(["there", "missing"]),
        lambda store: store.wait(["missing"]),
    ],
    ids=["get", "multi_get", "wait"],
)
def test_every_wait_ends_after_the_timeout_of_the_store(
    pair: Pair, call: Callable[[Store], object]
) -> None:
    a, b = pair
    a.set("there", "v")
    b.set_timeout(SHORT_S)
    with pytest.raises(StoreTimeoutError) as raised:
        call(b)
    assert "missing" in str(raised.value)
    a.set("missing", "v")
    b.set_timeout(LIMIT_S)  # It is there, but this machine may be busy.
    call(b)


def test_the_timeout_can_be_read_and_changed(pair: Pair) -> None:
    a, b = pair
    assert a.timeout == timedelta(seconds=LIMIT_S)
    a.set_timeout(timedelta(milliseconds=1500))
    assert a.timeout == timedelta(milliseconds=1500)
    b.set_timeout(7)
    assert b.timeout == timedelta(seconds=7)


def test_a_wait_that_timed_out_takes_no_answer_of_a_later_one(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(StoreTimeoutError):
        b.wait(["k"], SHORT_S)
    a.set("k", "1")
    waiter = tell_and(b, "about", b.get, "later")
    await_blocked(a, "about")
    a.set("k", "2")
    a.set("later", "3")
    assert waiter.result() == b"3"


def test_a_key_that_was_deleted_is_waited_for_again(pair: Pair) -> None:
    a, b = pair
    a.set("k", "old")
    a.delete_key("k")
    waiter = tell_and(b, "about", b.get, "k")
    await_blocked(a, "about")
    a.set("k", "new")
    assert waiter.result() == b"new"


def test_a_comparison_that_fails_makes_no_value(pair: Pair) -> None:
    a, b = pair
    for number in range(20):
        reader = tell_and(b, f"about {number}", b.get, f"k{number}")
        await_blocked(a, f"about {number}")
        assert a.compare_set(f"k{number}", "expected", "desired") == b"expected"
        a.set(f"k{number}", "v")
        assert reader.result() == b"v"


def test_many_wait_for_one_key(pair: Pair) -> None:
    a, b = pair
    clones = [store.clone() for store in (a, b, a, b, a, b)]
    waiters = [Call(clone.get, "k") for clone in clones]
    a.set("k", "v")
    assert [waiter.result() for waiter in waiters] == [b"v"] * 6


def test_two_talk_by_turns(pair: Pair) -> None:
    a, b = pair

    def answer() -> None:
        for turn in range(20):
            b.set(f"answer {turn}", b.get(f"question {turn}"))

    answers = Call(answer)
    for turn in range(20):
        a.set(f"question {turn}", str(turn))
        assert a.get(f"answer {turn}") == b"%d" % turn
    answers.result()


def test_one_object_serves_several_threads(pair: Pair) -> None:
    a, b = pair
    reader = tell_and(b, "about", b.get, "k")
    await_blocked(b, "about")
    b.set("k", "v")
    assert reader.result() == b"v"
    assert a.get("k") == b"v"
