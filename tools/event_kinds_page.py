"""Writes the table of events into docs/events.md: `python tools/event_kinds_page.py`."""

from __future__ import annotations

from pathlib import Path

from rallypoint.core.event_kinds import KINDS, EventKind

PAGE = Path(__file__).parents[1] / "docs" / "events.md"
BEGIN, END = "<!-- event kinds: begin -->\n", "<!-- event kinds: end -->\n"
_HEAD = """\
| `rallypoint.` | when | level | under `--quiet` | reported by |
| --- | --- | --- | --- | --- |
"""


def section() -> str:
    """Return the table, as it has to stand between the marks."""
    return _HEAD + "".join(map(_row, KINDS))


def written(page: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + section() + END + after


def _row(kind: EventKind) -> str:
    shown = "shown" if kind.quiet else ""
    cells = (f"`{kind.name}`", kind.about, kind.level.name, shown, kind.reported_by.value)
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
