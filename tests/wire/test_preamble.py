"""One port, three callers (static mode): the first bytes tell sessions from the round store."""

from __future__ import annotations

import pytest

from rallypoint.wire.handshake import ClientHandshake
from rallypoint.wire.preamble import PREAMBLE_BYTES, Preamble, classify

VALIDATE = bytes.fromhex("00cef7853c")


@pytest.mark.parametrize(
    ("first_bytes", "verdict"),
    [
        (ClientHandshake("job", b"t" * 32, bytes(32)).hello(), Preamble.SESSION),
        (b"RLYP", Preamble.SESSION),
        (b"RLYE", Preamble.STORE),
        (b"RLYE\x01more", Preamble.STORE),
        (VALIDATE, Preamble.STORE),
        (VALIDATE + b"\x0d", Preamble.STORE),
        (b"", Preamble.UNDECIDED),
        (b"R", Preamble.UNDECIDED),
        (b"RLY", Preamble.UNDECIDED),
        (b"\x00", Preamble.UNDECIDED),
        (VALIDATE[:4], Preamble.UNDECIDED),
        (b"RLYX", Preamble.FOREIGN),
        (b"GET / HTTP/1.1\r\n", Preamble.FOREIGN),
        (b"\x00\x00", Preamble.FOREIGN),
        (b"\x00\x3c\x85\xf7\xce", Preamble.FOREIGN),
        (b"\x01", Preamble.FOREIGN),
    ],
)
def test_callers_are_told_apart_by_their_first_bytes(first_bytes: bytes, verdict: Preamble) -> None:
    assert classify(first_bytes) is verdict


def test_five_bytes_always_decide() -> None:
    for first in range(256):
        for start in (b"", b"RLY", VALIDATE[:3]):
            first_bytes = (start + bytes([first]) * PREAMBLE_BYTES)[:PREAMBLE_BYTES]
            assert classify(first_bytes) is not Preamble.UNDECIDED
