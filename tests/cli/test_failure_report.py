"""Which nodes print the whole report of a failure."""

from __future__ import annotations

import pytest

from rallypoint.agent.run import JobEnd
from rallypoint.cli.verdict import kept_text, prints_whole, verdict_view
from rallypoint.config import FailureReport
from rallypoint.core.model import Assignment, Cause, Outcome, Verdict
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.core.text import LEFT

CAUSE_ON = 2


def end_on(node: int, nodes: int, *, seated: bool = True) -> JobEnd:
    place = Assignment(0, node, nodes, node, nodes, node, nodes, "a", 1, 0, "first", True)
    verdict = Verdict(Outcome.FAILED, "why", 0, cause=Cause(f"n{CAUSE_ON}", 0))
    finish = Finish(FinishKind.VERDICT, verdict)
    return JobEnd(finish, "job", 0, 1.0, node=f"n{node}", place=place if seated else None)


@pytest.mark.parametrize(
    ("report", "nodes", "whole"),
    [
        ("auto", 4, {0, 1, 2, 3}),
        ("auto", 5, {0, CAUSE_ON}),
        ("auto", 1000, {0, CAUSE_ON}),
        ("all", 5, {0, 1, 2, 3, 4}),
        ("rank0", 3, {0}),
        ("none", 3, set()),
    ],
)
def test_the_whole_report_is_on_these_nodes(report: str, nodes: int, whole: set[int]) -> None:
    how = FailureReport(report)
    assert {n for n in range(nodes) if prints_whole(how, end_on(n, nodes), nodes)} == whole


def test_a_node_without_a_place_goes_by_the_size_of_the_job() -> None:
    spare = end_on(7, 0, seated=False)
    assert prints_whole(FailureReport.AUTO, spare, 4)
    assert not prints_whole(FailureReport.AUTO, spare, 5)


def test_a_node_that_was_drained_does_not_say_that_the_end_of_the_job_is_kept() -> None:
    failed = Finish(FinishKind.VERDICT, Verdict(Outcome.FAILED, "why", 0))
    drained = Finish(FinishKind.SIGNAL, None, 15, f"{LEFT}: it was drained")
    ends = {"its end ": failed, "this node's record of the job ": drained}
    for text, finish in ends.items():
        how = verdict_view(JobEnd(finish, "job", 0, 1.0))
        assert kept_text(how, "/kept/a", "/kept", "").startswith(f"{text}is kept: ")
        assert kept_text(how, "", "/kept", "full") == f"{text}could not be kept in /kept: full"
        assert kept_text(how, "", "/kept", "") == ""
