"""The history of one job, as its coordinator knows it.

Pure; bounded in memory.

It has what happened, round by round, and the use of the time. It gets every record of an event
(`event_kinds.py`) and the nodes' reports about their workers, and looks at the job's state after
each event. The views of `job_view.py`, the file of `--history` and the output of commands are made
from it.

A coordinator that takes a job over begins a new history: with the sums of the former one
(`carried.py`), and with what the nodes report again, their progress and their last rounds
(`core/round_record.py`). Facts that only the former coordinator knew are a gap, and are shown as
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from rallypoint.core import round_record
from rallypoint.core.event_kinds import LOG_STORAGE_THERE, PATTERN_UNMATCHED, Record
from rallypoint.core.job_state import JobState, note_step
from rallypoint.core.limits import MAX_UNIX_TIME
from rallypoint.core.model import Outcome, Verdict
from rallypoint.core.round_record import (
    ROUNDS_SHOWN,
    CarriedRound,
    ReportedRound,
    RoundRecord,
    first_cause,
)
from rallypoint.core.watch import carrying, goodput, turns
from rallypoint.core.watch.carried import Carried
from rallypoint.core.watch.goodput import Goodput
from rallypoint.core.watch.node_progress import NodeProgress

SCHEMA = 1
"""The schema of written lines: raised when the meaning of a field changes. Fields may be added."""
ENTRIES_MAX = 1000
"""The most events that are kept, the newest ones."""
UnixTime = Annotated[float, Meta(ge=0, le=MAX_UNIX_TIME)]
"""The time in Unix seconds. A reader refuses negative numbers, and dates after the year 9998."""
RATE_S = 60.0
"""The period in seconds over which steps per second are computed."""


class HistoryEntry(Struct, frozen=True):
    """One event of the job."""

    number: int
    """The number of the event in this history. Each event has a larger one than those before, also
    those of former coordinators."""
    time: UnixTime
    """The time in Unix seconds, by the coordinator's clock."""
    event: str
    """The name of the kind of event, as in `core/event_kinds.py`."""
    level: str
    round: int
    text: str
    node: str = ""
    is_wrong: bool = False
    """Whether the event reports a fault that neither a person nor a plan wanted."""


class NodeReport(Struct, frozen=True):
    """The last report of a node about its workers' progress, and its time of arrival."""

    progress: NodeProgress
    at: float


class _Seen(Struct):
    """The state of the job's rounds, as the history last saw it."""

    round: int = -1
    """The active round; -1: none."""
    newest: int = -1
    """The last round that was active under this coordinator; -1: none was."""
    has_told_end: bool = False
    """Whether the former coordinator's sums say already how the last round ended."""
    closed: int = -1
    """The last round whose record is complete, and was put among the news; -1: none."""
    is_over: bool = False
    cant_log: set[str] = field(default_factory=set)
    """The nodes of the newest round that have reported unwritable log files."""
    has_told_unmatched: bool = False
    """Whether it was reported that `--progress-pattern` has matched nothing."""
    before: int = -1
    """The newest round that another coordinator has formed; -1: none has."""
    ended_at: float = 0.0
    """When the newest round was ended."""
    stopping: set[str] = field(default_factory=set)
    """The nodes of the newest round that were to stop its workers, and have not reported yet that
    they have."""


class JobHistory:
    """The history of one life of a job. Times are seconds on the host's clock."""

    def __init__(
        self,
        at: float,
        wall_time: Callable[[float], float],
        number: int = 0,
    ) -> None:
        """Begin an empty history at `at`.

        `wall_time` turns a time of the host's clock into Unix seconds. `number` is larger than
        those of the events that former coordinators may have reported.
        """
        self.account = Goodput(at, at)
        self.entries: deque[HistoryEntry] = deque(maxlen=ENTRIES_MAX)
        self.rounds: deque[RoundRecord] = deque(maxlen=ROUNDS_SHOWN + 1)
        self.rounds_formed = 0
        self.told: dict[str, NodeReport] = {}
        """The newest progress report of each node of the newest round, by node id."""
        self.news: deque[HistoryEntry | RoundRecord] = deque(maxlen=ENTRIES_MAX)
        """The newest events and ended rounds that the host has not passed on yet; the host takes
        them from here."""
        self.known_since: float | None = None
        """The Unix time of the takeover; only former coordinators knew the single events before it.
        None: there was none."""
        self.changed_at = at
        """The time since when the job has been spending its present kind of time."""
        self.steps: deque[tuple[float, int]] = deque()
        """Times, each with the furthest step of the newest round then; about the last minute."""
        self._wall_time = wall_time
        self._numbers = number
        self._seen = _Seen()

    def record(self, record: Record, round_: int, at: float) -> None:
        """Add an event to the newest ones, and to the news for the host."""
        self._numbers += 1
        entry = HistoryEntry(
            self._numbers,
            self._wall_time(at),
            record.name,
            record.kind.level.name,
            round_,
            record.text,
            record.node_id,
            record.kind.is_wrong,
        )
        self.entries.append(entry)
        self.news.append(entry)

    def carried(self, at: float) -> Carried:
        """Return the sums that the next coordinator is to continue."""
        newest = None
        if self._seen.round >= 0 and self.rounds:
            one, steps = self.rounds[-1], self.account.steps
            newest = CarriedRound(
                one.round,
                one.nodes,
                one.workers,
                one.formed,
                steps.furthest_before,
                steps.resumed,
                max(steps.step, steps.step_carried),
            )
        sums = carrying.carried(self.account, at, self._wall_time(at), self.rounds_formed, newest)
        return replace(sums, has_told_unmatched=self._seen.has_told_unmatched)

    def take_over(self, newest: int, at: float, *, is_active: bool) -> None:
        """Note that another coordinator has led the job.

        `newest` is the round that it formed last; -1: none. `is_active`: that round may still be
        active.
        """
        now, seen = self._wall_time(at), self._seen
        self.known_since, seen.before = now, newest
        if newest < 0:
            return
        self.rounds.append(RoundRecord(newest, formed=now, ended=None if is_active else now))
        if is_active:
            seen.round = seen.newest = newest

    def carry_on(self, before: Carried, at: float) -> None:
        """Continue the sums of a former coordinator; called after `take_over`.

        The time since its report is counted as the kind of time that the job spent then.
        """
        ago_s = carrying.gap_s(before, self._wall_time(at))
        carrying.carry_on(self.account, before, ago_s, self._seen.round)
        self.rounds_formed, self.changed_at = before.rounds, at - ago_s
        self._seen.has_told_unmatched = before.has_told_unmatched
        self._seen.has_told_end = (newest := before.newest) is None
        # It may have been told before the newest round was formed.
        if newest is not None and self.rounds and self.rounds[-1].round == newest.number:
            past, size = self.rounds[-1], (newest.nodes, newest.workers)
            past.formed, (past.nodes, past.workers) = newest.formed, size

    def told_again(
        self, job: JobState, node_id: str, told: Sequence[ReportedRound], at: float
    ) -> None:
        """Note a node's reports about rounds that another coordinator has formed.

        They are only shown, and decide nothing.
        """
        before = [
            one
            for one in told
            if one.stamp.incarnation in job.numbers and one.stamp.round <= self._seen.before
        ]
        round_record.add(self.rounds, node_id, before, lambda age_s: self._wall_time(at - age_s))
        # Why a round ended may have become known after its nodes were told.
        newest = max(self._seen.newest, self._seen.before)
        judged = {newest: job.end_reason, newest - 1: job.last_end}
        for past in self.rounds if job.verdict is None else ():
            if (reason := judged.get(past.round)) is not None:
                past.ends(reason)

    def stopped(self, node_id: str, at: float) -> None:
        """Note that a node has stopped the workers of an ended round. O(1).

        The record of the round gets the time that it took.
        """
        seen = self._seen
        if node_id in seen.stopping:
            seen.stopping.remove(node_id)
            self.rounds[-1].took(node_id, (("stop", at - seen.ended_at),))

    def noted(self, job: JobState, at: float) -> None:
        """Look at the job after something has happened to it.

        Takes its changes of rounds, its verdict, the furthest step and the present kind of time
        into the history. O(1), but for a round that begins, ends or is judged: O(number of nodes).
        """
        seen, before = self._seen, self.account.now
        if seen.newest >= 0:
            goodput.reached(self.account, job.furthest_step, at)
        while job.turns:
            match job.turns.popleft():
                case turns.RoundFormed() as turn:
                    self._formed(job, turn, at)
                case turns.RoundEnded() as turn:
                    self._ended(job, turn, at)
                case turns.RoundJudged() as turn:
                    self._judged(turn, at)
        if job.verdict is not None and not seen.is_over:
            seen.is_over = True
            self._over(job, job.verdict, at)
        goodput.noted(self.account, job, at)
        if self.account.now is not before:
            self.changed_at = at
        if self.rounds and self.rounds[-1].ended is None:
            self._sum()

    def progressed(
        self, job: JobState, node_id: str, progress: NodeProgress, at: float
    ) -> Record | None:
        """Note a progress report of a node of the newest round, even after its end.

        Return an event to show, that a log file can't be written or that the pattern of steps
        matches nothing; None: there is none. Reports of other rounds are ignored.
        """
        named = progress.stamp
        if named.incarnation != job.incarnation or named.round != self._seen.newest:
            return None
        if node_id not in job.assigned:
            return None
        self.told[node_id] = NodeReport(progress, at)
        note_step(job, progress.furthest)
        before = self.account.now
        goodput.told(self.account, node_id, progress, at)
        if self.account.now is not before:
            self.changed_at = at
        furthest, steps = self.account.steps.step, self.steps
        if furthest >= 0 and (not steps or furthest > steps[-1][1]):
            steps.append((self.account.steps.advanced_at or at, furthest))
            while len(steps) > 2 and steps[1][0] < at - RATE_S:
                steps.popleft()
        if progress.cant_log and node_id not in self._seen.cant_log:
            self._seen.cant_log.add(node_id)
            return LOG_STORAGE_THERE(progress.cant_log, node=node_id, node_id=node_id)
        if not progress.unmatched or job.furthest_step >= 0 or self._seen.has_told_unmatched:
            return None
        self._seen.has_told_unmatched = True
        return PATTERN_UNMATCHED(progress.unmatched, node_id=node_id)

    def ended_rounds(self, at: float, still_stopping: Collection[str]) -> list[RoundRecord]:
        """Return the last rounds that have ended, the newest last.

        While nodes stop the workers of the newest one, its record has the time that this has taken
        up to now. `still_stopping` are the nodes in the job that have not stopped theirs yet.
        """
        ended, seen = [one for one in self.rounds if one.ended is not None], self._seen
        if ended and seen.newest == ended[-1].round != seen.closed:
            newest = ended[-1] = replace(ended[-1], slowest=dict(ended[-1].slowest))
            for node_id, told in self.told.items():
                newest.took(node_id, told.progress.phases)
            for node_id in sorted(seen.stopping.intersection(still_stopping)):
                newest.took(node_id, (("stop", at - seen.ended_at),))
        return ended

    @property
    def newest_round(self) -> int:
        """The last round that was active under this coordinator; 0 also if there was none."""
        return max(self._seen.newest, 0)

    @property
    def steps_per_s(self) -> float | None:
        """The steps per second of about the last minute; None: too little is known."""
        if len(self.steps) < 2:
            return None
        (first_at, first), (last_at, last) = self.steps[0], self.steps[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None

    def _formed(self, job: JobState, turn: turns.RoundFormed, at: float) -> None:
        if self.rounds and self.rounds[-1].ended is not None:
            self._close()
        goodput.formed(self.account, set(turn.nodes), at, job.furthest_step)
        self.told.clear()
        self.steps.clear()
        seen, formed = self._seen, self._wall_time(at)
        seen.stopping.clear()
        seen.cant_log.clear()
        seen.round = seen.newest = turn.round
        self.rounds_formed += 1
        past = RoundRecord(turn.round, len(turn.nodes), turn.workers, turn.why, formed)
        self.rounds.append(past)

    def _ended(self, job: JobState, turn: turns.RoundEnded, at: float) -> None:
        reason, seen = turn.reason, self._seen
        if turn.round != seen.round:  # Another coordinator had ended it.
            if not seen.has_told_end:
                goodput.taken_over(self.account, reason)
            for past in self.rounds:
                if past.round == turn.round:
                    past.ends(reason)
            return
        goodput.ended(self.account, reason, at, is_hang=turn.is_hang)
        newest = self.rounds[-1]
        if reason.node_id:
            newest.took(reason.node_id, (("detect", reason.age_s),))
        newest.ends(reason)
        self._stops(job, at)

    def _stops(self, job: JobState, at: float) -> None:
        """Note the end of the newest round: all its nodes are to stop their workers."""
        seen = self._seen
        self.rounds[-1].ended, seen.ended_at = self._wall_time(at), at
        seen.round, seen.stopping = -1, set(job.assigned)
        self._sum()

    def _judged(self, turn: turns.RoundJudged, at: float) -> None:
        if turn.round == self._seen.newest:
            goodput.judged(self.account, turn.reason.kind)
        past = next((one for one in self.rounds if one.round == turn.round), None)
        if past is None:
            return
        past.cause = first_cause(turn.cause) or past.cause
        past.end, past.end_text = str(turn.reason.kind.value), turn.text
        if past is self.rounds[-1]:
            goodput.pass_time(self.account, at)
            self._sum()
            self._close()

    def _over(self, job: JobState, verdict: Verdict, at: float) -> None:
        has_succeeded = verdict.outcome is Outcome.SUCCEEDED
        goodput.over(self.account, at, has_succeeded=has_succeeded)
        if not self.rounds:
            return
        newest = self.rounds[-1]
        if newest.ended is None:
            newest.end, newest.end_text = str(verdict.outcome.value), verdict.text
            self._stops(job, at)
        newest.cause = newest.cause or first_cause(verdict.cause)
        self._sum()
        self._close()

    def _close(self) -> None:
        """Complete the record of the newest round, and put it among the news, once.

        A round of a former coordinator is left out until a node has reported why it began.
        """
        newest, seen = self.rounds[-1], self._seen
        if seen.closed != newest.round and newest.why:
            seen.closed = newest.round
            for node_id, one in self.told.items():
                newest.took(node_id, one.progress.phases)
            self.news.append(replace(newest))

    def _sum(self) -> None:
        newest, account = self.rounds[-1], self.account
        newest.first_step, newest.last_step = account.steps.resumed, account.steps.step
        newest.seconds = {
            str(kind.value): seconds for kind, seconds in goodput.of_round(account).items()
        }
