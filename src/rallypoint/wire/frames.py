"""Frames: what every byte after the handshake is wrapped in (behaviour F8).

    u32 length of the payload | u64 sequence | 16-byte tag | payload          (big-endian)

The tag is BLAKE2s, keyed with the key of this direction, over sequence and payload. Sequences
start at 0 and grow by one per direction, so a frame can be neither altered, dropped, repeated,
reordered nor reflected. Without a key (`--insecure`) the tag is zeros and only the sequence is
checked: that finds bugs, and stops no attacker.

Source: BLAKE2s keyed mode, RFC 7693.
"""

from __future__ import annotations

from struct import Struct

from rallypoint.errors import ProtocolError
from rallypoint.hashes import blake2s, compare_digest

TAG_BYTES = 16
_HEADER = Struct(">IQ16s")
_SEQUENCE = Struct(">Q")
_NO_TAG = bytes(TAG_BYTES)

HEADER_BYTES = _HEADER.size


class _Tags:
    """The authentication tags of the frames of one direction."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes | None) -> None:
        # Keyed once: to copy that costs half as much as to do it for each frame.
        self._keyed = None if key is None else blake2s(key=key, digest_size=TAG_BYTES)

    def of(self, sequence: int, payload: bytes) -> bytes:
        """Return the tag of the frame with this number and payload; zeros without a key."""
        if self._keyed is None:
            return _NO_TAG
        hashed = self._keyed.copy()
        hashed.update(_SEQUENCE.pack(sequence) + payload)
        return hashed.digest()


class FrameEncoder:
    """The writer of frames for one direction of one connection.

    `key` has at most 32 bytes; None: frames have no authentication tag.
    """

    __slots__ = ("_sequence", "_tags")

    def __init__(self, key: bytes | None) -> None:
        self._tags = _Tags(key)
        self._sequence = 0

    def encode(self, payload: bytes) -> bytes:
        """Return the payload as the next frame. Send each frame once, in the order of the calls."""
        sequence = self._sequence
        self._sequence = sequence + 1
        return _HEADER.pack(len(payload), sequence, self._tags.of(sequence, payload)) + payload


class FrameDecoder:
    """The reader of the frames that the peer sends on one connection.

    Holds at most one frame and one segment.

    After a `ProtocolError` the connection is unusable: every later call raises it again.
    """

    __slots__ = ("_error", "_pending", "_sequence", "_tags", "max_frame_bytes")

    def __init__(self, key: bytes | None, max_frame_bytes: int) -> None:
        """Make a decoder that refuses frames whose payload is longer than `max_frame_bytes`.

        The limit may be raised later. `key` None: frames have no authentication tag.
        """
        self._tags = _Tags(key)
        self.max_frame_bytes = max_frame_bytes
        self._sequence = 0
        self._pending = bytearray()
        self._error: ProtocolError | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that `data` completes, in order; linear for any segmentation.

        Raises ProtocolError on a frame that is too long, out of sequence or wrongly tagged; intact
        frames of the same segment are lost with the connection.
        """
        if self._error is not None:
            raise self._error
        payloads: list[bytes] = []
        source: bytes | bytearray = data
        if self._pending:
            self._pending += data
            source = self._pending
        try:
            consumed = self._parse(source, payloads)
        except ProtocolError as error:
            self._error = error
            self._pending.clear()
            raise
        if source is self._pending:
            del self._pending[:consumed]
        elif consumed < len(data):
            self._pending += data[consumed:]
        return payloads

    def _parse(self, source: bytes | bytearray, payloads: list[bytes]) -> int:
        """Append every complete payload in `source` to `payloads`.

        Returns how many bytes their frames took. Raises ProtocolError.
        """
        start, size = 0, len(source)
        while size - start >= HEADER_BYTES:
            length, sequence, tag = _HEADER.unpack_from(source, start)
            self._check_header(length, sequence)
            end = start + HEADER_BYTES + length
            if end > size:
                break
            payload = bytes(source[start + HEADER_BYTES : end])
            if not compare_digest(tag, self._tags.of(sequence, payload)):
                raise ProtocolError(
                    f"frame {sequence} has a wrong tag: it was altered on its way, or the peer "
                    "uses another key"
                )
            self._sequence = sequence + 1
            payloads.append(payload)
            start = end
        return start

    def _check_header(self, length: int, sequence: int) -> None:
        if length > self.max_frame_bytes:
            raise ProtocolError(
                f"frame {sequence} claims {length} bytes, but at most {self.max_frame_bytes} "
                "are allowed"
            )
        if sequence != self._sequence:
            raise ProtocolError(
                f"frame {sequence} came where frame {self._sequence} was due: "
                "something was lost, repeated or injected"
            )
