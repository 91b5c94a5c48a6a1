"""The keys of `--json-summary` are those that docs/observability.md promises to programs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from tests.harness.command_line import parse
from tests.harness.node_machine import stamp
from tests.harness.timelines import Told

from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.cli.verdict_json import SCHEMA, job_summary
from rallypoint.core import messages as m
from rallypoint.core.model import Cause, Ending, EndKind, EndReason, Outcome
from rallypoint.core.node.events import WorkersGone
from rallypoint.core.watch.goodput_view import GoodputView, TimePart
from rallypoint.core.worker_exits import WorkerExit

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
TABLE = r"\| {} \|.*\|\n\| --- \| --- \|\n((?:\|.*\n)+)"
BLAME = "rank 0 exited with code 3"
NAME = re.compile(r"`(\w+)`")


def rows(head: str) -> dict[str, str]:
    """The rows of the table with this head: names of the first column, and what is said of each."""
    found = re.search(TABLE.format(head), PAGE.read_text().partition("## The summary")[2])
    assert found is not None
    cells = [line.split("|")[1:3] for line in found[1].splitlines()]
    return {name: about for names, about in cells for name in NAME.findall(names)}


def test_the_summary_has_the_keys_of_its_page() -> None:
    told = Told()
    told.line.joining_since = 10.0
    told.run(0, at=15.0)
    told.step(30.0, m.StopNow(stamp(0), EndReason(EndKind.FAILURE, BLAME, "a")))
    told.step(31.0, WorkersGone(stamp(0)))
    told.run(1, at=40.0, count=1, why=BLAME)
    dispatcher = EventDispatcher(lambda: 100.0)
    dispatcher.timeline = told.line
    parts = (TimePart("useful steps", "", 8.123456789),)
    dispatcher.goodput = GoodputView(10.0, 8.0, parts, 7, 1, 1, 10.0, 0.0)
    cause = Cause("a", 1, failure=WorkerExit(3, None))
    how = Ending(Outcome.FAILED, BLAME, cause, 1)
    summary = msgspec.to_builtins(job_summary(parse("train.py"), dispatcher, how, 1, 0))
    page = rows("field")
    assert summary.keys() == page.keys()
    assert summary["schema"] == SCHEMA
    assert all(one.keys() == rows("field of a round").keys() for one in summary["rounds"])
    assert summary["cause"].keys() == set(NAME.findall(page["cause"]))
    assert {"spent", "cause", "seconds"} == summary["goodput"]["parts"][0].keys()
    assert summary["goodput"].keys() < set(NAME.findall(page["goodput"]))
    assert summary["goodput"]["parts"][0]["seconds"] == 8.123457
    (again,) = summary["restarts"]
    assert again.keys() == set(NAME.findall(page["restarts"]))
    assert (again["round"], again["kind"], again["counted"]) == (1, "failure", True)
