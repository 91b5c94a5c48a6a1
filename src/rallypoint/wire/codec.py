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
"""The protocol version since which an agent knows messages that a person has caused: the end of a
round, or the request for a checkpoint."""
FAILURES_WITH_TEXT = 8
"""The number of failures of a report, from the first one, that keep their texts: a report must fit
into a frame."""

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
    """Return an agent's report with numbers and texts cut to what the coordinator accepts.

    Workers may report anything. Failures after the first `FAILURES_WITH_TEXT` lose their texts.
    """
    report = limits.fit(report)
    if isinstance(report, Failed | Detailed):
        whole, rest = report.failures[:FAILURES_WITH_TEXT], report.failures[FAILURES_WITH_TEXT:]
        bare = [replace(failure, message="", detail="", log_file="", reason="") for failure in rest]
        report = replace(report, failures=(*whole, *bare))
    return report


def for_version(message: ToAgent, version: int) -> ToAgent | None:
    """Return the message for an agent of this protocol version; None: it does not get the message.

    An old agent is told of growth as the reason, where a round ends at a person's request. It gets
    no request for a checkpoint that a person wants.
    """
    if version >= WITH_REQUESTS:
        return message
    match message:
        case StopNow(stamp, reason) if reason.kind is EndKind.REQUEST:
            return StopNow(stamp, replace(reason, kind=EndKind.GROWTH))
        case CheckpointWanted(kind=EndKind.REQUEST):
            return None
    return message


def decode_to_coordinator(payload: bytes) -> ToCoordinator:
    """Decode a message of an agent to the coordinator.

    Raises MessageError, also for a value out of its limits.
    """
    return _decode(_to_coordinator, payload, limits.MAX_SAID)


def decode_to_agent(payload: bytes) -> ToAgent:
    """Decode a message of the coordinator to an agent.

    Raises MessageError, also for a value out of its limits.
    """
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
    """Check the addresses of a future leader in a message, which all nodes dial.

    Raises MessageError.
    """
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
