"""Colours: where a terminal has them, and never in place of the text."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace
from tests.harness.broken_jobs import BROKEN, broken, healthy

from rallypoint.cli.watch import terminal
from rallypoint.cli.watch.status_text import status_lines
from rallypoint.observe.printing import Painted, Tint, printed


@pytest.mark.parametrize(
    ("choice", "is_terminal", "variables", "wanted"),
    [
        ("auto", True, {"TERM": "xterm"}, True),
        ("auto", False, {"TERM": "xterm"}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_shown_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    is_terminal: bool,
    variables: dict[str, str],
    wanted: bool,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert terminal.shows_colours(choice) is wanted


@pytest.mark.parametrize("name", BROKEN)
def test_with_colours_the_text_is_the_same(name: str) -> None:
    lines = status_lines(broken(name).view, 80, where="h:1", clock="12:00:00")
    plain, coloured = printed(*lines), printed(*lines, colour=True)
    assert "\x1b" not in plain
    assert coloured != plain
    for tint in (*Tint, None):
        coloured = coloured.replace(tint.value if tint else "\x1b[0m", "")
    assert coloured == plain


def test_what_is_wrong_is_red_and_what_runs_is_green() -> None:
    red, green = Tint.BAD.value, Tint.GOOD.value
    hangs = status_lines(broken("one rank hangs").view, 80)
    assert f"{red}no progress" in printed(hangs[0], colour=True)
    assert f"{red}behind" in printed(hangs[1], colour=True)
    assert f"{green}running" in printed(status_lines(healthy().view, 80)[0], colour=True)


def test_no_text_of_a_node_becomes_a_colour() -> None:
    line = Painted(("\x1b[31mnode", Tint.GOOD), ("\x1b[2J", None))
    assert printed(line, colour=True) == "\x1b[32m\\x1b[31mnode\x1b[0m\\x1b[2J\n"
    assert printed(line) == "\\x1b[31mnode\\x1b[2J\n"


def test_the_time_of_day_is_in_the_first_line() -> None:
    view = replace(healthy().view, since_s=3.0)
    assert status_lines(view, 80, clock="12:34:56")[0].endswith(", round 0 (12:34:56)")
