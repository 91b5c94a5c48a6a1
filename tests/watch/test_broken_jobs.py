"""A person who is called at night finds the culprit in the first lines of `rallypoint status`: ten
jobs of 64 nodes, each broken in another way."""

from __future__ import annotations

import re

import pytest
from tests.watch.broken_jobs import BROKEN, CULPRIT, NODES, PAGES

from rallypoint.cli.watch.status_text import LINES_MAX, status_lines

NAMED = (
    r"  behind .*\(node (\S+)\)",
    r"  silent +node (\S+):",
    r"  waits for .*missing(?: since the last round)?: (\S+)$",
    r"  waits for +a checkpoint of node (\S+)$",
    r"  waits for +node (\S+):",
    r"rank \d+ \(node (\S+), local rank \d+\)",
    r"node (\S+) was lost",
    r"not reached by .* \((\S+)\)",
)
"""Where a person looks, in this order."""


def culprit_of(lines: list[str]) -> str | None:
    """The node that these lines name first, known to nobody who has not read them."""
    # A sentence that was wrapped is one again.
    text = re.sub(r"\n {14}(?!\|)", " ", "\n".join(lines))
    for pattern in NAMED:
        if (found := re.search(pattern, text, re.MULTILINE)) is not None:
            return found[1]
    return None


@pytest.mark.parametrize("name", BROKEN)
def test_the_culprit_and_the_reason_are_in_the_first_lines(name: str) -> None:
    make, reason = BROKEN[name]
    lines = make().status()
    assert len(lines) <= LINES_MAX
    assert culprit_of(lines) == CULPRIT
    assert reason in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_person_sees_is_what_was_reviewed(name: str) -> None:
    """`python -m tests.watch.broken_jobs --rewrite` writes the pages."""
    page = PAGES / f"{name.replace(' ', '-')}.txt"
    assert "\n".join(BROKEN[name][0]().status()) + "\n" == page.read_text()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(width: int) -> None:
    for make, reason in BROKEN.values():
        view = make().view
        lines = status_lines(view, width)
        assert max(map(len, lines)) <= width
        assert len(lines) <= LINES_MAX
        assert reason in " ".join(" ".join(lines).split())


def test_a_healthy_job_names_nobody() -> None:
    from tests.watch.broken_jobs import running

    job = running()
    assert culprit_of(job.status()) is None
    assert job.view.state == "running"
    assert job.view.world_nodes == NODES


def test_lines_that_do_not_fit_are_counted() -> None:
    view = BROKEN["worker exception"][0]().view
    assert status_lines(view, 80, 5)[-1] == "  ... 10 more lines: --all"
