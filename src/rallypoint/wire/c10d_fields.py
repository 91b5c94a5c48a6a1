"""The opcodes, limits and fields of the c10d `TCPStore` protocol, for both sides.

All integers are little-endian; a string is a u64 length and that many bytes. Numbers 0 to 18 are
those of torch 2.12 to 2.15; none was reused since 2.5.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum

VALIDATE_MAGIC = 0x3C85F7CE
MAX_KEY_BYTES = 8192
MAX_VALUE_BYTES = 8 << 20
MAX_KEYS_PER_REQUEST = 131_072
MAX_REQUEST_BYTES = 1 << 30

STOP_WAITING = b"\x00"
WAIT_CANCELED = b"\x01"
READY = b"\x00"
NOT_READY = b"\x01"

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
I64 = struct.Struct("<q")
I64_MIN, I64_MAX = -(2**63), 2**63 - 1
_LEADING_INTEGER = re.compile(rb"\s*([+-]?\d{1,20})")


class Opcode(IntEnum):
    """The kinds of requests of a TCPStore client. The number is the first byte of a request."""

    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    GETNUMKEYS = 7
    DELETE_KEY = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13
    QUEUE_PUSH = 14
    QUEUE_POP = 15
    QUEUE_LEN = 16
    LIST_KEYS = 17
    BARRIER = 18


def encode_string(value: bytes | bytearray) -> bytes:
    """Encode a string as a field of a reply or of a request: its length, then its bytes."""
    return b"".join((U64.pack(len(value)), value))


def encode_i64(number: int) -> bytes:
    """Encode a counter or another number of a reply as a signed integer of 64 bits.

    Raises struct.error if it does not fit.
    """
    return I64.pack(number)


def encode_ping(nonce: int) -> bytes:
    """Encode the reply to a PING, which repeats the number in it."""
    return U32.pack(nonce)


def counter_of(value: bytes | bytearray) -> int | None:
    """Return the counter that a stored value holds: its leading decimal number, as C parses it.

    None if the value begins with no number, or with one that does not fit into 64 bits.
    """
    number = _LEADING_INTEGER.match(value)
    if number is None or not I64_MIN <= int(number[1]) <= I64_MAX:
        return None
    return int(number[1])
