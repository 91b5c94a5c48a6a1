"""The table of `rallypoint status` on a coordinator of many jobs."""

from __future__ import annotations

import pytest

from rallypoint.cli.watch.status_text import LINES_MAX, table_lines
from rallypoint.core.watch.job_view import JobLine


def line(job: str, state: str = "running", reason: str = "") -> JobLine:
    return JobLine(job, state, 60.0, 8, 64, 2, 1000, 5000, 0.97, reason)


def hundred() -> list[JobLine]:
    """Of which two stand still, one has failed and one was lost; 90 run."""
    jobs = [line(f"train-{number:03}") for number in range(90)]
    jobs += [line(f"done-{number}", "succeeded") for number in range(6)]
    jobs += [line("a-failed", "failed", "rank 3 exited"), line("b-lost", "infrastructure")]
    jobs += [line("waits", "waiting", "2 more nodes"), line("stuck", "no progress")]
    return jobs


def test_of_many_jobs_those_that_do_not_run_well_come_first_and_the_rest_is_counted() -> None:
    lines = table_lines(hundred(), 120)
    assert len(lines) == LINES_MAX
    names = [line.split()[0] for line in lines]
    assert names[:6] == ["JOB", "stuck", "waits", "a-failed", "b-lost", "train-000"]
    assert lines[-1] == "and 78 more jobs (--all): 72 running, 6 succeeded"
    assert "failed (infrastructure)" in lines[4]


def test_all_jobs_are_shown_when_asked_for_or_when_they_fit() -> None:
    assert len(table_lines(hundred(), 120, 1000)) == 101
    fits = hundred()[: LINES_MAX - 1]
    assert len(table_lines(fits, 120)) == LINES_MAX
    assert "--all" not in table_lines(fits, 120)[-1]
    assert "--all" in table_lines(hundred()[:LINES_MAX], 120)[-1]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_terminal_of_few_lines_has_at_least_the_count(most: int) -> None:
    lines = table_lines(hundred(), 120, most)
    assert len(lines) == max(most, 2)
    assert "(--all)" in lines[-1]


def test_long_names_of_jobs_leave_room_for_what_they_do() -> None:
    long = "train-" * 20
    head, first, second = table_lines([line(long, "waiting"), line(long + "b", "running")], 80)
    assert head.startswith("JOB ")
    assert "…  waiting  " in first
    assert "…  running  " in second
    assert first.startswith("train-train-train-")
    assert long in table_lines([line(long, "waiting")], 200)[1]


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_of_the_table_is_wider_than_the_terminal(width: int) -> None:
    jobs = [line("x" * 60, "waiting", "y" * 300), *hundred()]
    for most in (LINES_MAX, 1000):
        assert max(map(len, table_lines(jobs, width, most))) <= width
