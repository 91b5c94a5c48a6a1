"""The keys of a store: counted, listed, looked for."""

from __future__ import annotations

from tests.conformance.stores import Pair


def test_keys_are_listed_as_they_were_written(pair: Pair) -> None:
    a, b = pair
    names = ["k", "", "é☃", "a/b", "/c"]
    for name in names:
        a.set(name, "v")
    b.add("n", 1)
    b.append("l", "x")
    assert sorted(b.list_keys()) == sorted([*names, "n", "l"])
    a.delete_key("k")
    assert "k" not in b.list_keys()


def test_an_empty_store_has_no_keys(pair: Pair) -> None:
    assert (pair.a.num_keys(), pair.a.list_keys()) == (0, [])


def test_keys_are_counted(pair: Pair) -> None:
    a, b = pair
    before = b.num_keys()
    a.multi_set(["k", "l"], ["1", "2"])
    a.set("k", "3")
    assert b.num_keys() == before + 2
    b.delete_key("k")
    assert a.num_keys() == before + 1


def test_a_check_asks_for_all_keys(pair: Pair) -> None:
    a, b = pair
    a.set("k", "")
    a.set("l", "v")
    assert b.check(["k"])
    assert b.check(["l", "k", "l"])
    assert not b.check(["k", "missing"])
