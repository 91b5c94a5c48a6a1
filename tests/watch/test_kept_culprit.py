"""What a history holds of a job that hangs: all of its agents may be killed before it ends (V7)."""

from __future__ import annotations

from tests.harness.job_machine import CANDIDATE, RULES

from rallypoint.coordinator.watching import LOOK_S, STATUS_S, JobWatch
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.job_state import new_job
from rallypoint.core.sessions import Sessions
from rallypoint.core.watch.advice import behind
from rallypoint.core.watch.history_file import HistoryLine, StatusLine
from rallypoint.core.watch.node_progress import NodeProgress


class Place:
    """A job of two nodes that runs, with a history, and a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[HistoryLine] = []
        self._sessions = Sessions(new_job(RULES), 1)
        self._watch = JobWatch(self._sessions, lambda: self.now_s, lambda number: None)
        self._watch.write_to(self.lines.append, took_over=False)
        for number in range(2):
            hello = m.Attach(f"node-{number}", "host", f"life-{number}", 1, RULES)
            self._sessions.attach(number, "10.0.0.1", hello, 0.0)
            self._says(number, 1, m.Join(1, CANDIDATE))
        self._stamp = jobs.stamp(self._sessions.job)
        for number in range(2):
            self._says(number, 2, m.Enrolled(self._stamp))
        assert self._sessions.job.started

    def _says(self, number: int, report_number: int, report: m.Report) -> None:
        self._sessions.received(number, m.Numbered(report_number, report), self.now_s)
        self._watch.noted()

    def at(self, now_s: float, steps: tuple[int, int], quiet_s: float) -> None:
        """Both nodes tell their steps at this time; that of node-1 is so old."""
        self.now_s = now_s
        for number, step in enumerate(steps):
            old_s = quiet_s if number else 0.5
            told = NodeProgress(
                self._stamp,
                running_s=now_s,
                furthest=step,
                quiet_s=old_s,
                step=step,
                rank=number * CANDIDATE.workers,
                silent_s=old_s,
            )
            self._watch.heard(number, m.Heartbeat(1, None, False, told, ()))

    @property
    def culprits(self) -> list[str]:
        """The node that is behind, of each status in the history; `-`: none is."""
        views = [line.view for line in self.lines if isinstance(line, StatusLine)]
        found = [behind(view) for view in views]
        return ["-" if each is None else each.node.node for each in found]


async def test_V7_a_history_names_the_rank_that_hangs_soon_after_it_hangs() -> None:
    place = Place()
    for second in range(int(3 * LOOK_S)):
        place.at(1.0 + second, (second, 1), float(second))
    assert place.culprits.count("node-1") == 1, "it is told once, until the next one is due"
    assert set(place.culprits) == {"-", "node-1"}
    for second in range(int(3 * LOOK_S), int(3 * LOOK_S + STATUS_S)):
        place.at(1.0 + second, (second, 1), float(second))
    assert place.culprits[-2:] == ["node-1", "node-1"]
