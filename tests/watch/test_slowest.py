"""Which node was slowest in each phase of a round."""

from __future__ import annotations

from tests.harness.broken_jobs import CULPRIT, NAN, running
from tests.harness.narrowed import known

from rallypoint.cli.watch.status_text import status_lines
from rallypoint.core.round_record import Slowest
from rallypoint.core.watch.node_progress import NodeProgress


def test_V2_a_round_that_is_over_names_the_slowest_node_of_each_phase() -> None:
    job = running()
    stamp = known(job.agent("node-7").running)
    late = NodeProgress(stamp, 25.0, 0.1, 9.5, 1.0, 12.0, furthest=20, quiet_s=0.0, step=20)
    job.history.progressed(job.job, "node-7", late, job.timers.now_s)
    job.fail_with(CULPRIT, NAN)
    (past,) = [one for one in job.history.rounds if one.ended is not None]
    assert past.slowest["spawn"] == Slowest("node-7", 9.5)
    assert past.slowest["first_progress"] == Slowest("node-7", 12.0)
    assert past.slowest["detect"].node == CULPRIT
    whole = " ".join(" ".join(status_lines(job.view, 100, 1000)).split())
    assert "first progress 12 s (node node-7)" in whole
    assert "spawn 9.5 s (node node-7)" in whole
    assert "slowest" not in " ".join(job.status())


def test_a_node_that_comes_back_late_has_stopped_no_workers_of_the_next_round() -> None:
    job = running()
    job.fail_with(CULPRIT, NAN)
    newest = job.history.rounds[-1]
    assert newest.ended is None
    job.history.stopped("node-7", job.timers.now_s + 60.0)
    assert "stop" not in newest.slowest
