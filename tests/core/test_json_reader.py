"""JSON that comes from elsewhere: whatever the bytes are, there is a value or one error."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from rallypoint.core.json_reader import (
    MAX_DEPTH,
    MAX_VALUES,
    UnreadableJsonError,
    check_kind,
    read_as,
    read_object,
    read_value,
)


class Known(Struct):
    name: str
    number: int = 0


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


UNREADABLE = {
    "open brackets": (b"[" * 100_000, "levels of brackets"),
    "closed brackets": (b"[" * 100_000 + b"]" * 100_000, "levels of brackets"),
    "open objects": (b'{"a":' * 100_000, "levels of brackets"),
    "one level too many": (nested(MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
    "many lists": (b"[" + b"[]," * MAX_VALUES + b"[]]", f"more than {MAX_VALUES} values"),
    "an integer of 6000 digits": (b'{"a":' + b"9" * 6000 + b"}", "another form"),
    "an integer of 65 bits": (b'{"a":[18446744073709551616]}', "64 bits"),
    "not a number": (b'{"a":NaN}', "is not JSON"),
    "infinity": (b'{"a":-Infinity}', "is not JSON"),
    "a float without bounds": (b'{"a":1e999}', "another form"),
    "half of a surrogate pair": (rb'{"a":"\ud800"}', "is not JSON"),
    "the other half": (rb'{"\udc00":1}', "is not JSON"),
    "a surrogate in UTF-8": (b'{"a":"\xed\xa0\x80"}', "is not UTF-8"),
    "bytes that are no UTF-8": (b'{"a":"\xff"}', "is not UTF-8"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), "is not JSON"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "is not JSON"),
    "nothing": (b"", "is not JSON"),
    "a cut object": (b'{"a":', "is not JSON"),
    "more after the end": (b"{}{}", "is not JSON"),
    "a control character": (b'{"a":"\x01"}', "is not JSON"),
    "null": (b"null", "but null"),
    "an array": (b"[{}]", "but an array"),
    "a string": (b'"kind"', "but a string"),
    "a number": (b"7", "but a number"),
    "a boolean": (b"true", "but true or false"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_F10_what_is_no_object_of_json_is_one_error(name: str) -> None:
    data, why = UNREADABLE[name]
    with pytest.raises(UnreadableJsonError, match=why) as raised:
        read_object(data)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("name", [name for name in UNREADABLE if name[:2] not in ("a ", "an")])
def test_F10_a_value_of_a_known_form_is_read_or_is_one_error(name: str) -> None:
    with pytest.raises(UnreadableJsonError):
        read_as(UNREADABLE[name][0], Known)


def test_F10_what_a_known_form_does_not_name_is_skipped() -> None:
    assert read_as(b'{"name":"a","more":[[{"x":1e5}]]}', Known) == Known("a")
    with pytest.raises(UnreadableJsonError, match="levels of brackets"):
        read_as(b'{"name":"a","more":' + b"[" * 100_000, Known)


def test_F10_a_text_with_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UnreadableJsonError, match="is not UTF-8"):
        read_object('{"a":"\ud800"}')


def test_F10_the_size_is_limited() -> None:
    assert read_object(b'{"a":1}', 7) == {"a": 1}
    with pytest.raises(UnreadableJsonError, match="has 8 bytes; at most 7 are read"):
        read_object(b'{"a":1} ', 7)


def test_F10_objects_as_deep_as_is_allowed_are_read() -> None:
    assert isinstance(read_object(nested(MAX_DEPTH)), dict)


@pytest.mark.parametrize(
    ("data", "is_text"),
    [
        (b"<html>", True),
        (b"404 page not found\n", True),
        (b"not found", True),
        (b" \n", False),
        ("<h\u00e9>".encode() * 1000, True),
        (b' \n{"kind"', False),
        (b"\xef\xbb\xbf{}", False),
        ("{}".encode("utf-16"), False),
        (b"[", False),
    ],
)
def test_F10_text_of_another_program_is_told_from_broken_json(data: bytes, is_text: bool) -> None:
    with pytest.raises(UnreadableJsonError) as raised:
        read_object(data)
    assert raised.value.is_text is is_text


def test_F10_the_kinds_of_a_value_are_checked() -> None:
    check_kind({"name": "a", "more": 1}, Known)
    wrong: list[Any] = [{"name": 7}, {"number": 1}, [], None, {"name": "a", "number": "7"}]
    for value in wrong:
        with pytest.raises(UnreadableJsonError, match="another form"):
            check_kind(value, Known)


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(_values)
def test_F10_every_value_within_the_limits_is_read(value: Any) -> None:
    assert read_value(json.dumps(value).encode()) == value
    assert read_value(json.dumps(value, ensure_ascii=False)) == value


@given(st.binary(max_size=60))
def test_F10_any_bytes_are_a_value_or_one_error(data: bytes) -> None:
    for read in (read_value, read_object, lambda each: read_as(each, Known)):
        with suppress(UnreadableJsonError):
            read(data)
