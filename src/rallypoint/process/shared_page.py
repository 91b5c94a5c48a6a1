"""What an agent and its guard share in memory, so that the guard knows it while the agent is
stopped or dead.

    word     until when this node holds its place: nanoseconds on CLOCK_BOOTTIME; 0: no fence
    word     how long the notice is; 0: there is none
    bytes    the notice: what to tell the coordinator when the agent has died

The agent alone writes. A word is aligned and of 8 bytes, which processors read and write whole, so
that nothing is locked and no half of a value is ever seen (as on the board of a round). The length
is taken back before the notice changes and written after it, and the notice is read when its writer
is dead: so it is whole wherever the agent was stopped for good.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

_HELD_UNTIL: Final = 0
_LENGTH: Final = 1
_NOTICE_AT: Final = 16
_NS_PER_S = 1_000_000_000
_LONGEST_NS = 2**62


class SharedPage:
    """Made before the guard is forked. Nobody else may write to it."""

    def __init__(self) -> None:
        self._bytes = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._words = self._bytes.cast("q")

    @property
    def held_until_ns(self) -> int:
        """0: what runs here need not end with any lease."""
        return self._words[_HELD_UNTIL]

    def hold(self, until_s: float) -> None:
        """Seconds on CLOCK_BOOTTIME; 0: no fence."""
        self._words[_HELD_UNTIL] = min(int(until_s * _NS_PER_S), _LONGEST_NS)

    @property
    def notice(self) -> bytes:
        """Empty: nothing is to be told. For who knows that the agent is dead."""
        return bytes(self._bytes[_NOTICE_AT : _NOTICE_AT + self._words[_LENGTH]])

    def leave_notice(self, notice: bytes) -> None:
        """In place of the one before; b"": none. One that is too long is none."""
        self._words[_LENGTH] = 0
        end = _NOTICE_AT + len(notice)
        if end <= len(self._bytes):
            self._bytes[_NOTICE_AT:end] = notice
            self._words[_LENGTH] = len(notice)


def boot_time_ns() -> int:
    """What the word is compared to."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
