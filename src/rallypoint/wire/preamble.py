"""The kinds of first bytes of a connection: one port may serve sessions and the round store.

A torch client opens with VALIDATE (opcode 0, then a fixed little-endian u32), a node that enrols
with `RLYE`, a session with `RLYP`. No two of them share a first byte or a prefix of any length
that matters, so at most five bytes must be looked at.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import pack

SESSION_MAGIC = b"RLYP"
ENROLMENT_MAGIC = b"RLYE"
STORE_MAGIC = b"\x00" + pack("<I", 0x3C85F7CE)

PREAMBLE_BYTES = max(len(SESSION_MAGIC), len(ENROLMENT_MAGIC), len(STORE_MAGIC))


class Preamble(Enum):
    """The kinds of peers, by the first bytes of their connections.

    SESSION is an agent or a command that talks to the coordinator. STORE is a TCPStore client, or a
    node that enrols with the round store. UNDECIDED: too few bytes have come.
    """

    SESSION = auto()
    STORE = auto()
    FOREIGN = auto()
    UNDECIDED = auto()


def classify(first_bytes: bytes) -> Preamble:
    """Return the kind of a peer from the first bytes of its connection.

    UNDECIDED: more bytes are needed; 5 are enough.
    """
    if first_bytes.startswith(SESSION_MAGIC):
        return Preamble.SESSION
    if first_bytes.startswith((STORE_MAGIC, ENROLMENT_MAGIC)):
        return Preamble.STORE
    known = (SESSION_MAGIC, ENROLMENT_MAGIC, STORE_MAGIC)
    if any(magic.startswith(first_bytes) for magic in known):
        return Preamble.UNDECIDED
    return Preamble.FOREIGN


def describe_foreign(first_bytes: bytes) -> str:
    """Return a clause that says what a peer seems to be by its first bytes, for a message."""
    requests = (b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ")
    if first_bytes.startswith((b"HTTP/", b"<!DOCTYPE", b"<html", *requests)):
        return "it looks like HTTP"
    if first_bytes.startswith(b"SSH-"):
        return "it looks like SSH"
    if first_bytes.startswith(b"\x16\x03"):
        return "it looks like TLS"
    if first_bytes.startswith(STORE_MAGIC):
        return "it looks like a client of torch's TCPStore"
    if first_bytes.startswith(ENROLMENT_MAGIC):
        return "it looks like a node that enrols at a round store"
    return f"it began with {first_bytes[:16]!r}"
