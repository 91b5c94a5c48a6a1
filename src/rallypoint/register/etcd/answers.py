"""The schema of etcd's answers, as far as they are used. Pure.

The peer may be another program, or a proxy may be between: each field is checked before its use.
Fields that are not listed here are ignored.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from rallypoint.core.json_reader import UnreadableJsonError, check_kind

Number = Annotated[str, Meta(pattern=r"^-?[0-9]{1,20}\Z")]
"""The text of an integer of 64 bits. The gateway leaves out fields that are zero."""


class _Header(TypedDict):
    revision: NotRequired[Number]
    cluster_id: NotRequired[Number]


class _Headed(TypedDict):
    header: NotRequired[_Header]


class _Answer(_Headed):
    result: NotRequired[_Headed]


class _Dated(TypedDict):
    revision: Number
    cluster_id: NotRequired[Number]


class _Pair(TypedDict):
    key: str
    mod_revision: Number
    value: NotRequired[str]
    version: NotRequired[Number]
    lease: NotRequired[Number]


class _Range(TypedDict):
    header: _Dated
    kvs: NotRequired[list[_Pair]]
    more: NotRequired[bool]
    count: NotRequired[Number]


class _Earlier(TypedDict):
    version: NotRequired[Number]


class _Put(_Answer):
    prev_kv: NotRequired[_Earlier]


class _Deleted(_Answer):
    deleted: NotRequired[Number]


class _Transaction(TypedDict):
    header: _Dated
    succeeded: NotRequired[bool]
    responses: NotRequired[list[dict[str, Any]]]


class _Granted(_Answer):
    ID: Number


class _Left(_Answer):
    TTL: NotRequired[Number]


class _Kept(TypedDict):
    result: NotRequired[_Left]


class _LoggedIn(_Answer):
    token: Annotated[str, Meta(pattern=r"^[!-~]+\Z")]


class _Status(_Answer):
    leader: NotRequired[Number]


class _Change(_Answer):
    canceled: NotRequired[bool]
    events: NotRequired[list[Any]]


class _Line(TypedDict):
    result: NotRequired[_Change]
    error: NotRequired[str | dict[str, Any]]


_FORMS: dict[str, Any] = {
    "/v3/auth/authenticate": _LoggedIn,
    "/v3/kv/deleterange": _Deleted,
    "/v3/kv/put": _Put,
    "/v3/kv/range": _Range,
    "/v3/kv/txn": _Transaction,
    "/v3/lease/grant": _Granted,
    "/v3/lease/keepalive": _Kept,
    "/v3/lease/timetolive": _Left,
    "/v3/maintenance/status": _Status,
    "/v3/watch": _Line,
}


def check_answer(path: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
    """Check the fields that are used in the answer of etcd's gateway to a request.

    `path` and `body` are those of the request. Raises UnreadableJsonError.
    """
    check_kind(answer, _FORMS.get(path, _Answer))
    if path == "/v3/kv/range":
        _check_pairs(answer)
    elif path == "/v3/kv/txn":
        _check_responses(body, answer)


def next_key(page: dict[str, Any], begin: bytes) -> bytes | None:
    """Return the key from which the next page of a range is read; None after the last page.

    `page` is the answer for this page, and `begin` the key from which it was asked for. Raises
    UnreadableJsonError if its last key is before `begin`.
    """
    if not page.get("more"):
        return None
    last = b64decode(page["kvs"][-1]["key"])
    if last < begin:
        raise UnreadableJsonError("has keys from before the page that was asked for")
    return last + b"\0"


def _check_responses(body: dict[str, Any], answer: dict[str, Any]) -> None:
    """Check that each operation of a transaction's executed branch has a response.

    Checks the responses to ranges, too. Raises UnreadableJsonError.
    """
    asked = body.get("success" if answer.get("succeeded") else "failure", ())
    responses = answer.get("responses", [])
    if len(responses) != len(asked):
        raise UnreadableJsonError(f"has {len(responses)} responses to {len(asked)} operations")
    for operation, response in zip(asked, responses, strict=True):
        if "request_range" in operation:
            found = response.get("response_range")
            check_kind(found, _Range)
            _check_pairs(found)


def _check_pairs(found: dict[str, Any]) -> None:
    pairs = found.get("kvs", ())
    if found.get("more") and not pairs:
        raise UnreadableJsonError("promises more keys, and has none")
    for pair in pairs:
        _check_base64(pair)


def _check_base64(pair: dict[str, str]) -> None:
    try:
        for name in ("key", "value"):
            b64decode(pair.get(name, ""), validate=True)
    except ValueError as error:
        raise UnreadableJsonError(f"has a {name} that is not base64 ({error})") from None
