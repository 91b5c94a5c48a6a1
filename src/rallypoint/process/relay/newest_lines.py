"""The newest lines of a stream, for `--progress-pattern`, in bounded memory. Pure."""

from __future__ import annotations

import re
from math import inf

HELD_BYTES = 4096
"""The most bytes that are kept of each stream: its newest ones."""
LINE_BYTES = 1024
"""The length in bytes of the longest line that is read whole; of a longer one only the end is
read."""
MOST_LINES = 16
QUIET_S = 0.1
"""The time in seconds without new data after which an unfinished line counts."""
UNMATCHED_S = 120.0
_ENDS = re.compile(rb"[\r\n]")
_ESCAPES = re.compile(rb"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]")
_CUT_NUMBER = re.compile(r"\A[0-9.,]+")


class NewestLines:
    """The newest lines of one stream that were not yet searched for progress.

    `take` hands each out once. A carriage return ends a line, too, because progress bars use it.
    Times are seconds of any monotonic clock.
    """

    __slots__ = ("_held", "_is_cut", "_rest_is_new", "fed_s")

    def __init__(self) -> None:
        self._held, self._is_cut, self._rest_is_new = b"", False, False
        self.fed_s = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Add received data of the stream."""
        held = data if len(data) >= HELD_BYTES else self._held + data
        self._is_cut = self._is_cut or len(held) > HELD_BYTES or len(data) >= HELD_BYTES
        self._held, self._rest_is_new, self.fed_s = held[-HELD_BYTES:], True, now

    @property
    def has_rest(self) -> bool:
        """Whether there is an unfinished line that was not taken."""
        return self._rest_is_new and bool(self._held)

    def take(self, now: float) -> list[str]:
        """Return the lines since the last call, the newest first, without terminal sequences.

        At most 16; blank ones are left out. An unfinished line counts after QUIET_S without data.
        `now` inf: the stream has ended, and its last line with it.
        """
        *lines, rest = _ENDS.split(self._held)
        is_whole = not self._is_cut
        if lines:
            self._is_cut = False
            if not is_whole:
                del lines[0]  # It may lack its beginning.
        if self.has_rest and self.fed_s + QUIET_S <= now:
            lines, self._rest_is_new = [*lines, rest], False
        self._held = rest
        texts = map(_text, reversed(lines))
        return [text for text in texts if text and not text.isspace()][:MOST_LINES]


def _text(line: bytes) -> str:
    is_cut, line = len(line) > LINE_BYTES, line[-LINE_BYTES:]
    if b"\x1b" in line:
        line = _ESCAPES.sub(b"", line)
    text = line.decode(errors="replace")
    return _CUT_NUMBER.sub("", text) if is_cut else text


class UnmatchedNotice:
    """The timer of the message that no line of output has ever matched the progress pattern.

    It runs while workers do. Times are seconds of any monotonic clock.
    """

    def __init__(self, limit_s: float = UNMATCHED_S) -> None:
        self._left_s, self._began_s = limit_s, inf

    def run(self, now: float) -> None:
        """Let the timer run from now on, because workers do. May be repeated."""
        self._began_s = min(self._began_s, now)

    def stop(self, now: float) -> None:
        """Stop the timer until `run`, because no workers run. May be repeated."""
        self._left_s -= max(now - self._began_s, 0.0) if self._began_s < inf else 0.0
        self._began_s = inf

    def settle(self) -> None:
        """End the timer for good: something has matched, or the message was sent."""
        self._left_s = inf

    def due_at(self) -> float:
        """Return when to send the message that nothing has matched; inf: not at present."""
        return self._began_s + self._left_s
