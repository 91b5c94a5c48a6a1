"""Values: what one object writes, another one reads."""

from __future__ import annotations

import pytest
from tests.conformance.stores import SHORT_S, Pair

from rallypoint.errors import StoreTimeoutError

LARGEST = 8 << 20


def test_one_object_reads_what_another_wrote(pair: Pair) -> None:
    a, b = pair
    a.set("k", "v")
    assert (a.get("k"), b.get("k")) == (b"v", b"v")
    b.set("k", b"w")
    assert (a.get("k"), b.get("k")) == (b"w", b"w")


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00", bytes(range(256)), "é☃".encode()],
    ids=["empty", "zero", "all-bytes", "utf-8"],
)
def test_a_value_is_any_bytes(pair: Pair, value: bytes) -> None:
    pair.a.set("k", value)
    assert pair.b.get("k") == value


def test_text_is_stored_as_utf_8(pair: Pair) -> None:
    pair.a.set("k", "é☃")
    assert pair.b.get("k") == "é☃".encode()


@pytest.mark.parametrize("key", ["", "/", "//a//", "é☃\U0001f600", "a b\n", "-k", "k" * 8000])
def test_a_key_is_any_text(pair: Pair, key: str) -> None:
    a, b = pair
    a.set(key, "v")
    assert b.get(key) == b"v"
    assert b.check([key])
    assert not b.check([f"{key}x"])
    assert key in b.list_keys()


def test_a_value_may_have_eight_mebibytes(pair: Pair) -> None:
    value = bytes(range(256)) * (LARGEST // 256)
    pair.a.set("k", value)
    assert pair.b.get("k") == value


def test_appending_makes_and_lengthens_a_value(pair: Pair) -> None:
    a, b = pair
    a.append("k", "one")
    b.append("k", b",\x00two")
    assert a.get("k") == b"one,\x00two"
    a.set("s", "set")
    b.append("s", "+more")
    b.append("s", "")
    assert a.get("s") == b"set+more"


def test_a_value_can_grow_beyond_what_can_be_set_at_once(pair: Pair) -> None:
    a, b = pair
    a.set("k", bytes(LARGEST))
    a.append("k", b"end")
    assert b.get("k") == bytes(LARGEST) + b"end"


@pytest.mark.parametrize(
    ("present", "expected", "returned", "then"),
    [
        (None, "", b"new", b"new"),
        (None, "x", b"x", None),
        ("old", "old", b"new", b"new"),
        ("old", "x", b"old", b"old"),
        ("old", "", b"old", b"old"),
        ("", "", b"new", b"new"),
        ("", "x", b"", b""),
    ],
)
def test_compare_set_stores_only_over_what_was_expected(
    pair: Pair, present: str | None, expected: str, returned: bytes, then: bytes | None
) -> None:
    a, b = pair
    if present is not None:
        a.set("k", present)
    assert b.compare_set("k", expected, "new") == returned
    assert a.check(["k"]) == (then is not None)
    if then is not None:
        assert a.get("k") == then


def test_compare_set_takes_binary_values(pair: Pair) -> None:
    a, b = pair
    assert a.compare_set("k", b"", b"\x00\xff") == b"\x00\xff"
    assert b.compare_set("k", b"\x00\xff", b"\xfe") == b"\xfe"
    assert a.get("k") == b"\xfe"


def test_many_values_are_set_and_read_in_order(pair: Pair) -> None:
    a, b = pair
    keys = [f"key {n}" for n in range(300)]
    a.multi_set(keys, [str(n) for n in range(300)])
    assert b.multi_get(keys[::-1]) == [b"%d" % n for n in range(299, -1, -1)]
    assert b.multi_get([keys[1], keys[1]]) == [b"1", b"1"]


def test_no_keys_are_no_error(pair: Pair) -> None:
    a, _ = pair
    a.multi_set([], [])
    assert a.multi_get([]) == []
    assert a.check([])
    a.wait([])


def test_a_key_without_a_value_is_refused(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(ValueError):
        a.multi_set(["k", "l"], ["1"])
    assert not b.check(["k"])


def test_a_deleted_value_is_gone(pair: Pair) -> None:
    a, b = pair
    a.set("k", "v")
    assert b.delete_key("k")
    assert not a.check(["k"])
    a.set_timeout(SHORT_S)
    with pytest.raises(StoreTimeoutError):
        a.get("k")
    b.set("k", "again")
    assert a.get("k") == b"again"


def test_deleting_says_whether_there_was_a_value(pair: Pair) -> None:
    a, b = pair
    a.set("k", "")
    assert b.delete_key("k")
    assert not b.delete_key("k")
    assert not a.delete_key("never")
