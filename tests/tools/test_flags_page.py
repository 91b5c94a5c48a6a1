"""docs/from-torchrun.md says of every option what it does here."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from rallypoint.core.settings import FLAGS, is_torchrun

PAGE = (Path(__file__).parents[2] / "docs" / "from-torchrun.md").read_text()
_, _, AFTER = PAGE.partition("## Every flag\n")
THEIRS, _, OURS = AFTER.partition("## From Python\n")[0].partition("And these are new")


def named(text: str) -> set[str]:
    return set(re.findall(r"`(--[a-z-]+)`", text))


def test_the_page_names_every_option_of_torchrun_and_every_new_one() -> None:
    table = "\n".join(line.partition(" | ")[0] for line in THEIRS.splitlines() if "|" in line)
    assert named(table) == {flag.flag for flag in FLAGS.values() if is_torchrun(flag)}
    assert named(OURS) == {flag.flag for flag in FLAGS.values() if not is_torchrun(flag)}


def test_the_list_of_new_flags_is_the_one_that_the_table_gives() -> None:
    path = str(Path(__file__).parents[2] / "tools" / "flags_page.py")
    written = runpy.run_path(path)["with_flags"](PAGE)
    assert written == PAGE, "run: python tools/flags_page.py"
