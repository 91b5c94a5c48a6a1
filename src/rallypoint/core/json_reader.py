"""A reader of JSON from elsewhere: answers of servers, files that others can write.

The sender may be hostile or broken. Whatever the bytes are, a caller gets a value or one error,
`UnreadableJsonError`. The bytes are limited in size, in depth and in the number of their values.
Numbers are finite, and integers have 64 bits. Text is UTF-8 without unpaired surrogates.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

MAX_BYTES = 64 << 20
MAX_DEPTH = 64
"""The most levels of arrays and objects that are accepted. Known answers have about ten."""
MAX_VALUES = 1 << 20
"""The largest number of values that is accepted. An empty array of two bytes takes 56 bytes in
memory."""

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
_BYTE_ORDER_MARK = "\ufeff"
_MANY_DIGITS = rb"\d{19}"

_T = TypeVar("_T")


class UnreadableJsonError(ValueError):
    """The error for bytes that are refused as JSON.

    The message is the reason, and follows the name of their source: `is not JSON (...)`.
    """

    def __init__(self, why: str, *, is_text: bool = False) -> None:
        """Make the error with its reason.

        `is_text`: the bytes are text that begins as no object or array does, such as a web page.
        The source is probably another program.
        """
        super().__init__(why)
        self.is_text = is_text


def read_object(data: bytes | str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object that is the whole of `data`. Raises UnreadableJsonError."""
    value = read_value(data, max_bytes)
    if not isinstance(value, dict):
        raise UnreadableJsonError(f"is not an object of JSON, but {_kind(value)}")
    return value


def read_value(data: bytes | str, max_bytes: int = MAX_BYTES) -> Any:
    """Return the JSON value that is the whole of `data`. Raises UnreadableJsonError."""
    value = _decoded(data, Any, max_bytes)
    _check(value)
    return value


def read_as(data: bytes | str, kind: type[_T], max_bytes: int = MAX_BYTES) -> _T:
    """Parse the JSON text `data` as this type, which msgspec knows. Raises UnreadableJsonError.

    Fields that the type does not have are skipped. Values that the type leaves open (`Any`) are
    limited in number, but not in depth: use `read_object` for those.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    value: _T = _decoded(data, kind, max_bytes)
    if re.search(_MANY_DIGITS, data):
        try:
            _check(msgspec.to_builtins(value))
        except RecursionError:
            raise _too_deep() from None
    return value


def check_kind(value: object, kind: Any) -> None:
    """Check that a decoded value has this type, which msgspec knows. Raises UnreadableJsonError."""
    try:
        msgspec.convert(value, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise UnreadableJsonError(f"has another form ({error})") from None


def _decoded(data: bytes | str, kind: Any, max_bytes: int) -> Any:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")  # msgspec refuses what this lets pass.
    if len(data) > max_bytes:
        raise UnreadableJsonError(f"has {len(data)} bytes; at most {max_bytes} are read")
    # Each value but the first of a list has a comma, and each list has a bracket.
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise UnreadableJsonError(f"has more than {MAX_VALUES} values")
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeError:
        raise UnreadableJsonError("is not UTF-8") from None
    except msgspec.ValidationError as error:
        raise UnreadableJsonError(f"has another form ({error})") from None
    except msgspec.DecodeError as error:
        why = str(error).removeprefix("JSON is malformed: ")
        raise UnreadableJsonError(f"is not JSON ({why})", is_text=_is_text(data)) from None


def _check(value: object) -> None:
    """Refuse a decoded value with too many levels or too large a number.

    Raises UnreadableJsonError.
    """
    level, depth = [value], 0
    while level:
        below: list[object] = []
        for each in level:
            if isinstance(each, dict | list | tuple):
                if depth == MAX_DEPTH:
                    raise _too_deep()
                below.extend(each.values() if isinstance(each, dict) else each)
            elif isinstance(each, int) and not _LEAST <= each <= _MOST:
                raise UnreadableJsonError("has a number of more than 64 bits")
        level, depth = below, depth + 1


def _too_deep() -> UnreadableJsonError:
    return UnreadableJsonError(f"has more than {MAX_DEPTH} levels of brackets")


def _is_text(data: bytes) -> bool:
    try:
        begin = data.decode()
    except UnicodeDecodeError:
        return False
    begin = begin.removeprefix(_BYTE_ORDER_MARK).lstrip()
    return bool(begin) and not begin.startswith(("{", "["))


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    return names.get(type(value), "null" if value is None else "a number")
