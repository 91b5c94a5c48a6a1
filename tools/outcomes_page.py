"""Writes what pages say of outcomes, from their table: `python tools/outcomes_page.py`."""

from __future__ import annotations

import re
from pathlib import Path

from rallypoint.core.outcomes import CODES, SIGNALLED, Outcome

DOCS = Path(__file__).parents[1] / "docs"
_HEAD = """\
| `outcome` | the job | exit code | class of `--exit-code` | afterwards |
| --- | --- | --- | --- | --- |
"""
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)+")
_STATES = re.compile(r"^\| succeeded, .*\n", re.MULTILINE)


def written(page: str) -> str:
    """Return the page with the table of today, and its row of the states of jobs."""
    states = ", ".join(each.value for each in Outcome if not each.row.state)
    page = _STATES.sub(f"| {states} | has ended |\n", page)
    return _TABLE.sub(lambda _: _HEAD + "".join(map(_row, Outcome)), page)


def _row(outcome: Outcome) -> str:
    name, row = outcome.exit_class, outcome.row
    code, shown = (CODES[name], f"`{name}`") if name else (f"{SIGNALLED} + signal", "none")
    return f"| `{outcome.value}` | {row.verb} | {code} | {shown} | {row.then.value} |\n"


PAGES = (DOCS / "settings.md", DOCS / "watching.md")

if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path.read_text()))
