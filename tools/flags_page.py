"""Writes the list of Rallypoint's own flags into docs/from-torchrun.md, from the table of settings.

    python tools/flags_page.py

A test compares the page with the table.
"""

from __future__ import annotations

import re
from pathlib import Path

from rallypoint.core.settings import GROUPS, is_torchrun

PAGE = Path(__file__).parent.parent / "docs" / "from-torchrun.md"
_HEAD = "| purpose | flags |\n| --- | --- |\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)+")


def with_flags(page: str) -> str:
    """Return the page with the list as the table of settings has it."""
    lines = []
    for title, rows in GROUPS:
        if names := ", ".join(f"`{row.flag}`" for row in rows if not is_torchrun(row)):
            lines.append(f"| {title} | {names} |\n")
    return _TABLE.sub(lambda _: _HEAD + "".join(lines), page)


if __name__ == "__main__":
    PAGE.write_text(with_flags(PAGE.read_text()))
