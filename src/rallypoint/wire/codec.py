"""Messages as bytes: encoding, decoding, and the limits of both (`core/messages.py` has them)."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import limits
from rallypoint.core.messages import (
    CheckpointWanted,
    Detailed,
    Failed,
    HandsOver,
    Heartbeat,
    Report,
    StopNow,
    ToAgent,
    ToCoordinator,
)
from rallypoint.core.model import EndKind, Promise
from rallypoint.errors import MessageError
from rallypoint.wire.address import told_address

MAX_MESSAGE_BYTES = 256 * 1024
WITH_REQUESTS = 3
"""The protocol version since which a round may end, or a checkpoint be requested, for a person."""
FAILURES_WITH_TEXT = 8
"""The most failures of a report that keep their texts, because a report must fit into a frame."""

SHOWN = 40
"""The longest part of an invalid address in an error, in characters."""

_encoder = msgspec.msgpack.Encoder()
_to_coordinator: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)

_M = TypeVar("_M", bound=Struct)


def encode(message: ToCoordinator | ToAgent) -> bytes:
    """Encode one message for one frame."""
    return _encoder.encode(message)


def fitting(report: Report) -> Report:
    """Return the report with numbers and texts cut to what the coordinator accepts.

    The workers' output may contain anything.
    """
    report = limits.fit(report)
    if isinstance(report, Failed | Detailed):
        whole, rest = report.failures[:FAILURES_WITH_TEXT], report.failures[FAILURES_WITH_TEXT:]
        bare = [replace(failure, message="", detail="", log_file="", reason="") for failure in rest]
        report = replace(report, failures=(*whole, *bare))
    return report


def for_version(message: ToAgent, version: int) -> ToAgent | None:
    """Return the message for a peer of this version; None: such a peer does not get it."""
    if version >= WITH_REQUESTS:
        return message
    match message:
        case StopNow(stamp, reason) if reason.kind is EndKind.REQUEST:
            return StopNow(stamp, replace(reason, kind=EndKind.GROWTH))
        case CheckpointWanted(kind=EndKind.REQUEST):
            return None
    return message


def decode_to_coordinator(payload: bytes) -> ToCoordinator:
    """Decode a message. Raises MessageError, also for a value out of its limits."""
    return _decode(_to_coordinator, payload, limits.MAX_SAID)


def decode_to_agent(payload: bytes) -> ToAgent:
    """Decode a message. Raises MessageError, also for a value out of its limits."""
    return _decode(_to_agent, payload, limits.MAX_SENTENCE)


def _decode(decoder: msgspec.msgpack.Decoder[_M], payload: bytes, sentence: int) -> _M:
    try:
        message = decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"a message that does not parse: {error}") from error
    limits.check(message, sentence=sentence)
    _check_addresses(message)
    return message


def _check_addresses(message: Struct) -> None:
    """Check the addresses of a future leader, which all nodes dial. Raises MessageError."""
    match message:
        case Heartbeat(promise=Promise(offers=texts)):
            field = "Heartbeat.promise.offers"
        case HandsOver(addresses=texts):
            field = "HandsOver.addresses"
        case _:
            return
    for text in texts:
        try:
            told_address(text)
        except ValueError as error:
            raise MessageError(f"{field} = {text[:SHOWN]!a} ({error})") from error
