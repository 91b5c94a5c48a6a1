"""The terminal of a command about a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rallypoint.cli.watch.status_text import LINES_MAX
from rallypoint.core.settings import Setting
from rallypoint.observe.printing import LINE_MAX, REPORT_MAX, print_text
from rallypoint.process.logs.plan import colour_wanted, drawing_wanted

ALL_LINES = 1_000_000
COLOUR = Setting(
    "--color",
    "auto|always|never",
    "colours; auto: in a terminal, unless NO_COLOR is set or TERM is dumb",
    "choice",
    default="auto",
)
"""The option of the commands that print in colours."""


def shows_colours(choice: str) -> bool:
    """Return whether lines are printed in colours.

    `choice` is the value of `--color`; `auto` depends on the terminal, NO_COLOR and TERM.
    """
    if choice != "auto":
        return choice == "always"
    no_color, term = os.environ.get("NO_COLOR"), os.environ.get("TERM")
    return colour_wanted(is_terminal=is_terminal(), no_color=no_color, term=term)


def can_redraw() -> bool:
    """Return whether stdout is a terminal in which lines can be replaced."""
    return is_terminal() and drawing_wanted(term=os.environ.get("TERM"))


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def can_ask() -> bool:
    """Return whether stdin and stdout are terminals, so that a person can be asked."""
    return is_terminal() and sys.stdin is not None and sys.stdin.isatty()


def says_yes(question: str) -> bool:
    """Ask a person on the terminal, and return whether the answer is yes. Blocks.

    Raises KeyboardInterrupt.
    """
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def screen_size() -> tuple[int, int]:
    """Return the columns and rows of the terminal.

    Where stdout is no terminal there are 200 of each.
    """
    if not is_terminal():
        return 200, 200
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 80, LINES_MAX + 1
    return size.columns or 80, size.lines or LINES_MAX + 1


def print_lines(lines: Sequence[str], *, colour: bool = False) -> bool:
    """Print any number of lines, without leaving any out. Returns and raises as `print_text`."""
    at_once = REPORT_MAX // (2 * LINE_MAX)
    starts = range(0, len(lines), at_once)
    return all(print_text(*lines[start : start + at_once], colour=colour) for start in starts)
