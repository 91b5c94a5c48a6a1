"""The blocks of commands in a page of docs/, to be run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> list[str]:
    """What stands between fences, in order."""
    return re.findall(r"^```\w*\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.M | re.S)


def commands(block: str) -> list[str]:
    """One for each line that is no comment and does not go on in the next one."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]
