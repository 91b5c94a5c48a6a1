"""The folding of the tracebacks that workers print when Ctrl-C interrupts all of them. Pure.

The console gets one line for all of them; log files keep everything. From `begin` on, a traceback
is held back until it has ended, with those that it is chained to. One that ends in a
KeyboardInterrupt is counted instead of shown. Every other traceback is shown whole, and so is one
that takes longer than HOLD_S or more than HOLD_BYTES.
"""

from __future__ import annotations

import re
from math import inf

from msgspec import Struct, field

HOLD_S = 2.0
HOLD_BYTES = 64 * 1024

# Torch puts the rank before each line.
_TRACEBACK = re.compile(rb"(\[rank\d+\]: )?Traceback \(most recent call last\):")
_CHAINED = (b"During handling of the above", b"The above exception was the direct cause")
_INTERRUPT = re.compile(rb"KeyboardInterrupt(:|\r?\Z)")


class _Held(Struct):
    """A traceback of one stream that is not shown yet, as far as it was received."""

    mark: bytes
    since_s: float
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    is_ended: bool = False
    is_chained: bool = False
    is_interrupt: bool = False


class Interrupts:
    """The tracebacks of all streams that are not shown until it is known how they end.

    Each stream, which is named by its descriptor, has one at most. One that ends in a
    KeyboardInterrupt is counted, not shown.
    """

    def __init__(self) -> None:
        self._folds = False
        self._held: dict[int, _Held] = {}
        self._folded: set[int] = set()

    def begin(self) -> None:
        """Begin to hold tracebacks back: the workers are being interrupted now."""
        self._folds = True

    def feed(self, fd: int, lines: bytes, prefix: int, now_s: float) -> bytes:
        """Return the lines to show now: of these whole lines, and of those held back before.

        Tracebacks are held back. Each line begins with a prefix of `prefix` bytes.
        """
        if not self._folds or not lines:
            return lines
        return b"".join(
            self._feed_line(fd, line + b"\n", line[prefix:], now_s)
            for line in lines[:-1].split(b"\n")
        )

    def take(self, fd: int) -> bytes:
        """Return the traceback that was held back for this stream, and hold it back no longer.

        Empty if there was none, or if it ended in a KeyboardInterrupt: then it is counted.
        """
        held = self._held.pop(fd, None)
        if held is None:
            return b""
        if held.is_interrupt:
            self._folded.add(fd)
            return b""
        return b"".join(held.lines)

    def due_at(self) -> float:
        """Return when the oldest traceback will have been held back for HOLD_S.

        Infinity: none is held back.
        """
        return min((held.since_s for held in self._held.values()), default=inf) + HOLD_S

    def overdue(self, now_s: float) -> list[int]:
        """Return the streams, by descriptor, whose lines were held back for HOLD_S or longer."""
        return [fd for fd, held in self._held.items() if held.since_s + HOLD_S <= now_s]

    def summary(self) -> bytes:
        """Return the line that counts the interrupted workers since the last call.

        Empty if there is none.
        """
        count, self._folded = len(self._folded), set()
        who = "1 worker was" if count == 1 else f"{count} workers were"
        return f"rallypoint: {who} interrupted (KeyboardInterrupt)\n".encode() if count else b""

    def _feed_line(self, fd: int, line: bytes, body: bytes, now_s: float) -> bytes:
        held, begun = self._held.get(fd), _TRACEBACK.match(body)
        shown = b""
        if held is not None and held.is_ended and not _goes_on(held, body):
            shown, held = self.take(fd), None
        if held is None:
            if begun is None:
                return shown + line
            held = self._held[fd] = _Held(begun[1] or b"", now_s)
        held.lines.append(line)
        held.size += len(line)
        if begun is not None:
            held.is_ended = held.is_chained = held.is_interrupt = False
        else:
            said = body.removeprefix(held.mark)
            if held.is_ended:
                held.is_chained = held.is_chained or said.startswith(_CHAINED)
            elif said[:1].strip():
                held.is_ended, held.is_interrupt = True, _INTERRUPT.match(said) is not None
        if held.size > HOLD_BYTES:
            held.is_interrupt = False
            shown += self.take(fd)
        return shown


def _goes_on(held: _Held, body: bytes) -> bool:
    """Return whether a line may lead from the ended traceback to a chained one."""
    said = body.removeprefix(held.mark)
    if _TRACEBACK.match(body):
        return held.is_chained
    return not said.strip() or said.startswith(_CHAINED)
