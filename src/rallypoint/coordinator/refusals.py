"""Tells of strangers that were turned away: a few lines, and how many more there were.

Each address and reason is told once, so that a mistyped token is seen; a flood is counted by kind,
and must neither fill a log nor hide what matters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum

from rallypoint.store.refusal_log import WINDOW_S, RefusalLog


class Kind(Enum):
    """Why; the value goes on from a number of connections."""

    FOREIGN = "did not speak Rallypoint"
    SILENT = "did not introduce themselves"
    UNPROVEN = "failed the handshake"


class Refusals:
    """For the thread of the loop. `say` gets lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._say, self._log = say, RefusalLog()
        self._more: Counter[Kind] = Counter()
        self._last = ""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, peer: str, kind: Kind, why: str) -> None:
        """The connection from `peer` was closed. `why` goes on from "closed the connection"."""
        address = peer.rpartition(":")[0]
        # What strangers send differs each time.
        reason = why if kind is Kind.UNPROVEN else kind.name
        if self._log.is_told((address, reason), self._loop.time()):
            self._say(f"closed the connection from {peer}: {why}")
            return
        self._more[kind] += 1
        self._last = address
        if self._timer is None:
            self._timer = self._loop.call_later(WINDOW_S, self.tell_more)

    def tell_more(self) -> None:
        """Say how many there were of whom nothing was said, and begin to count anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log.left_out()
        more, self._more = self._more, Counter()
        if more:
            kinds = ", ".join(f"{count} {kind.value}" for kind, count in more.items())
            self._say(
                f"closed {more.total()} more connections within {WINDOW_S:g} s, the last from "
                f"{self._last}: {kinds}"
            )
