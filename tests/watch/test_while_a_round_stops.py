"""While the workers of a round are stopped, `status` says what is known of its end already."""

from __future__ import annotations

from tests.harness.broken_jobs import CULPRIT, NAN, running
from tests.harness.watched_cluster import WatchedCluster

from rallypoint.cli.watch.status_text import status_lines

LATE = "node-12"


def stopping(*late: str) -> WatchedCluster:
    """The workers of these nodes do not stop after a failure on another one."""
    job = running()
    job.never_stops.update(late)
    job.fail_with(CULPRIT, NAN)
    job.wait(5)
    return job


def test_V1_while_a_round_stops_status_has_the_traceback() -> None:
    job = stopping(LATE)
    assert job.view.state == "stopping"
    text = "\n".join(job.status())
    assert f"waits for   node {LATE} to stop" in text
    assert "| RuntimeError: loss is NaN at step 20" in text


def test_V1_while_a_round_stops_programs_get_its_cause() -> None:
    job = stopping(LATE)
    cause = job.view.past[-1].cause
    assert cause is not None
    assert (cause.node, cause.rank, cause.detail) == (CULPRIT, 171, NAN.detail)
    job.never_stops.clear()
    job.settle()
    past = next(one for one in job.view.past if one.round == 0)
    assert past.cause == cause


def test_V2_while_a_round_stops_the_node_that_has_not_stopped_is_the_slowest() -> None:
    job = stopping(LATE, "node-40")
    assert job.view.past[-1].slowest["stop"].node == LATE
    assert job.view.past[-1].slowest["stop"].seconds >= 5
    whole = " ".join(" ".join(status_lines(job.view, 200, 1000)).split())
    assert f"stop 5 s (node {LATE})" in whole
    assert "first progress 2 s" in whole


def test_V2_a_node_that_is_lost_while_it_stops_is_not_the_slowest_for_ever() -> None:
    job = stopping(LATE, "node-40")
    job.lose(LATE, "its connection was closed")
    assert job.view.past[-1].slowest["stop"].node == "node-40"


def test_what_ends_a_round_by_a_loss_is_told_while_it_stops() -> None:
    job = running(nodes_min=60)
    job.never_stops.add(LATE)
    job.lose(CULPRIT, "its connection was closed")
    cause = job.view.past[-1].cause
    assert cause is not None
    assert (cause.node, cause.rank, cause.text) == (CULPRIT, None, "its connection was closed")
