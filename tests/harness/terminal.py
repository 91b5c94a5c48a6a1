"""As much of a terminal as Rallypoint's own output needs: rows, a cursor, and what lies above."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|[\r\n]|[^\r\n\x1b]")


class Terminal:
    """Fed with bytes, it shows rows; what has scrolled away is still among them. Narrow characters
    only."""

    def __init__(self, columns: int = 80, height: int = 24) -> None:
        self.columns, self.height = columns, height
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._wraps = True

    @property
    def rows(self) -> list[str]:
        """From the first ever to the last that anything was written to."""
        rows = ["".join(row).rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def is_at_line_start(self) -> bool:
        return self._column == 0 and not self._rows[self._row]

    def feed(self, data: bytes) -> None:
        """Whole characters and escape sequences."""
        for token in _TOKENS.finditer(data.decode()):
            match token[0], token[3]:
                case "\r", _:
                    self._column = 0
                case "\n", _:
                    self._down()
                case _, None:
                    self._put(token[0])
                case _, "A":
                    top = max(0, len(self._rows) - self.height)
                    self._row = max(top, self._row - int(token[2] or 1))
                case _, "J":
                    del self._rows[self._row + 1 :], self._rows[self._row][self._column :]
                case _, "K":
                    begin = 0 if token[2] == "2" else self._column
                    del self._rows[self._row][begin:]
                case _, "h" | "l" if token[2] == "7":
                    self._wraps = token[3] == "h"
                case _, "m":
                    pass
                case _:
                    raise AssertionError(f"unknown: {token[0]!r}")

    def _down(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append([])

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            if self._wraps:
                self._down()
            else:
                self._column -= 1
        row = self._rows[self._row]
        row.extend(" " * (self._column + 1 - len(row)))
        row[self._column] = character
        self._column += 1
