"""The choice of refusals that are logged. Pure.

Unknown peers must neither fill a log nor hide a line that matters.
"""

from __future__ import annotations

LINES_MAX = 64
WINDOW_S = 60.0
"""The window in seconds for which lines are limited; after it a line has the number of omitted
ones."""
REMEMBERED = 1024
"""The most subjects (address and reason) that are remembered; a remembered one gets no second
line."""


class RefusalLog:
    """The choice of the refusals that get a line. Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], None] = {}
        self._lines = self._left_out = 0
        self._end_s = float("-inf")

    def is_logged(self, subject: tuple[str, str], now_s: float) -> bool:
        """Return whether this refusal gets a line, and note it. `subject`: its address and reason.

        It gets none if the subject had one before, or the lines of this window are used up.
        """
        if subject in self._logged:
            return False
        if now_s >= self._end_s and not self._left_out:
            self._end_s, self._lines = now_s + WINDOW_S, 0
        if self._lines == LINES_MAX:
            self._left_out += 1
            return False
        self._lines += 1
        self._logged[subject] = None
        if len(self._logged) > REMEMBERED:
            del self._logged[next(iter(self._logged))]
        return True

    @property
    def due_s(self) -> float | None:
        """The time at which to call `left_out`; None: no refusal was left out."""
        return self._end_s if self._left_out else None

    def left_out(self) -> int:
        """Return how many refusals have got no line, because too many came, since the last call."""
        number, self._left_out = self._left_out, 0
        return number
