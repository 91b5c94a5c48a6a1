"""The history of one job, as its coordinator has it: what happened, round by round, and where the
time went. Pure; bounded in memory.

It is told of every record of an event (`event_kinds.py`), of what nodes say of their workers, and
looks at the job's state after everything that happens. The views of `job_view.py`, the file of
`--history` and what people are shown are made from it.

A coordinator that takes a job over begins a new history. The nodes tell it again how far they are;
what only the one before knew is a gap, and is named as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core.event_kinds import PATTERN_UNMATCHED, Record
from rallypoint.core.job_state import JobState, note_step
from rallypoint.core.model import Cause, EndReason, Outcome
from rallypoint.core.round_state import Phase
from rallypoint.core.text import signal_name
from rallypoint.core.watch import carrying, goodput
from rallypoint.core.watch.carried import Carried, CarriedRound
from rallypoint.core.watch.goodput import Goodput
from rallypoint.core.watch.node_progress import NodeProgress

SCHEMA = 1
"""Of what is written: raised when the meaning of a field changes. Fields may be added."""
ENTRIES_MAX = 1000
"""So many events are kept, the newest."""
ROUNDS_SHOWN = 3
"""So many rounds that have ended are kept for people, each with a traceback that may be long."""
RATE_S = 60.0
"""Steps a second are those of so long."""


class HistoryEntry(Struct, frozen=True):
    """One event of the job."""

    number: int
    """Counts the events of this history, from 1."""
    time: float
    """Unix seconds, by the coordinator's clock."""
    event: str
    """Its name in the table of event kinds."""
    level: str
    round: int
    text: str
    node: str = ""
    is_wrong: bool = False
    """It tells of something that went wrong, and of nothing that a person or a plan wanted."""


class FirstCause(Struct, frozen=True, omit_defaults=True):
    """What ended a round first: a worker, or the loss of a node."""

    node: str
    text: str
    """How the worker ended, or why the node was lost."""
    rank: int | None = None
    """Of the worker; None: it was a node."""
    local_rank: int = 0
    exit_code: int | None = None
    signal: str = ""
    message: str = ""
    detail: str = ""
    """Its traceback, or the last lines of its stderr."""
    log_file: str = ""
    time: float = 0.0
    """When it ended, by its node's clock."""
    collateral: int = 0
    """How many other failures followed from it."""


def first_cause(cause: Cause | None) -> FirstCause | None:
    """For people and their programs."""
    if cause is None:
        return None
    failure = cause.failure
    if failure is None:
        why = "" if cause.loss is None else cause.loss.reason
        return FirstCause(cause.node_id, why, collateral=cause.collateral)
    return FirstCause(
        cause.node_id,
        failure.clause(),
        failure.rank,
        failure.local_rank,
        failure.code,
        "" if failure.signal is None else signal_name(failure.signal),
        failure.message,
        failure.detail,
        failure.log_file,
        failure.wall_time,
        cause.collateral,
    )


class Slowest(Struct, frozen=True):
    """The node that took longest for a phase of a round, and how long that was."""

    node: str
    seconds: float


class PastRound(Struct):
    """A round, from when it was formed."""

    round: int
    nodes: int
    workers: int
    why: str
    """Why it was formed."""
    formed: float
    """Unix seconds, as `ended`."""
    ended: float | None = None
    end: str = ""
    """The kind of its end: `failure`, `loss`, `drain`, `growth`, `infrastructure`, or the job's
    outcome."""
    end_text: str = ""
    cause: FirstCause | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """By what the job did in it, and on the way to it."""
    first_step: int = -1
    last_step: int = -1
    slowest: dict[str, Slowest] = field(default_factory=dict)
    """By phase: `rendezvous`, `spawn`, and `first_output` and `first_progress` after it, as the
    nodes have told; and `detect`, of the node at which the round ended."""


class Told(Struct, frozen=True):
    """What a node has said of its workers, and when that came."""

    progress: NodeProgress
    at: float


class _Seen(Struct):
    """What was known of the job when it was looked at last."""

    round: int = -1
    """The one that was active; -1: none was."""
    newest: int = -1
    """The last one that was."""
    has_told_end: bool = False
    """Another coordinator has told how the last round ended."""
    closed: int = -1
    """The last one that is over."""
    judged: int = 0
    is_over: bool = False
    has_told_unmatched: bool = False
    """That `--progress-pattern` has matched nothing."""


class JobHistory:
    """Of one life of a job. Times are seconds on the host's clock."""

    def __init__(
        self,
        at: float,
        wall_time: Callable[[float], float],
        number: int = 0,
    ) -> None:
        """`wall_time` dates a time of the host for people. `number`: larger than those
        of the events that the coordinators before may have told of."""
        self.account = Goodput(at, at)
        self.entries: deque[HistoryEntry] = deque(maxlen=ENTRIES_MAX)
        self.rounds: deque[PastRound] = deque(maxlen=ROUNDS_SHOWN + 1)
        self.rounds_formed = 0
        self.told: dict[str, Told] = {}
        """By the ids of the nodes of the newest round."""
        self.news: deque[HistoryEntry | PastRound] = deque(maxlen=ENTRIES_MAX)
        """What has happened, and rounds that have ended, that the host has not passed on yet: it
        takes them from here."""
        self.known_since: float | None = None
        """Unix seconds: what happened before, event by event, another coordinator knew."""
        self.changed_at = at
        """Since when the job does what it does now."""
        self.steps: deque[tuple[float, int]] = deque()
        """The furthest step, now and then, of the newest round."""
        self._wall_time = wall_time
        self._numbers = number
        self._seen = _Seen()

    def record(self, record: Record, round_: int, at: float) -> None:
        """This has happened."""
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
        """What the next coordinator has to know."""
        newest = None
        if self._seen.round >= 0 and self.rounds:
            one, known = self.rounds[-1], self.account.steps.furthest_before
            newest = CarriedRound(one.round, one.nodes, one.workers, one.formed, known)
        sums = carrying.carried(self.account, at, self._wall_time(at), self.rounds_formed, newest)
        return replace(sums, has_told_unmatched=self._seen.has_told_unmatched)

    def carry_on(self, before: Carried, at: float, *, is_active: bool) -> None:
        """Go on where another coordinator was. `is_active`: its newest round may still run."""
        ago_s = carrying.gap_s(before, self._wall_time(at))
        carrying.carry_on(self.account, before, ago_s)
        self.rounds_formed, self.changed_at = before.rounds, at - ago_s
        self._seen.has_told_end = before.newest is None
        self._seen.has_told_unmatched = before.has_told_unmatched
        if is_active and (newest := before.newest) is not None:
            self._seen.round = self._seen.newest = newest.number
            past = PastRound(newest.number, newest.nodes, newest.workers, "", newest.formed)
            self.rounds.append(past)

    def noted(self, job: JobState, at: float) -> None:
        """Something has happened to the job. O(1), but for a round that begins."""
        state, seen = job.round, self._seen
        active = state.round if state.phase is Phase.ACTIVE else -1
        before = self.account.now
        if seen.newest >= 0:
            goodput.reached(self.account, job.furthest_step, at)
        elif job.end_reason is not None and not seen.has_told_end:
            goodput.taken_over(self.account, job.end_reason)
        if seen.round >= 0 and active != seen.round:
            self._ended(job, at)
        if job.judged_round > seen.judged:
            seen.judged = job.judged_round
            self._judged(job, job.judged_round - 1, at)
        if active >= 0 and active != seen.round:
            self._formed(job, at)
            seen.newest = active
        seen.round = active
        if job.verdict is not None and not seen.is_over:
            seen.is_over = True
            self._over(job, at)
        goodput.noted(self.account, job, at)
        if self.account.now is not before:
            self.changed_at = at
        if self.rounds and self.rounds[-1].ended is None:
            self._sum()

    def progressed(
        self, job: JobState, node_id: str, progress: NodeProgress, at: float
    ) -> Record | None:
        """A node of the newest round has said this, perhaps only when that had ended. O(1).
        Returns what a person should know of it."""
        named = progress.stamp
        if named.incarnation != job.incarnation or named.round != self._seen.newest:
            return None
        if node_id not in job.assigned:
            return None
        self.told[node_id] = Told(progress, at)
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
        if not progress.unmatched or job.furthest_step >= 0 or self._seen.has_told_unmatched:
            return None
        self._seen.has_told_unmatched = True
        return PATTERN_UNMATCHED(progress.unmatched, node_id=node_id)

    @property
    def newest_round(self) -> int:
        """The last round that was formed; 0 also if none was."""
        return max(self._seen.newest, 0)

    @property
    def steps_per_s(self) -> float | None:
        """Of the last minute; None: too little is known."""
        if len(self.steps) < 2:
            return None
        (first_at, first), (last_at, last) = self.steps[0], self.steps[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None

    def _formed(self, job: JobState, at: float) -> None:
        goodput.formed(self.account, set(job.assigned), at, job.furthest_step)
        self.told.clear()
        self.steps.clear()
        self.rounds_formed += 1
        why = next((place.why for place in job.assigned.values()), "")
        nodes = len(job.round.world)
        number = job.round.round
        self.rounds.append(PastRound(number, nodes, job.world_workers, why, self._wall_time(at)))

    def _ended(self, job: JobState, at: float) -> None:
        verdict = job.verdict
        # The next round may have been formed at once.
        reason = job.last_end if job.round.phase is Phase.ACTIVE else job.end_reason
        if reason is not None:
            goodput.ended(self.account, reason, at, is_hang=_is_hang(job, reason))
        if not self.rounds:
            return
        newest = self.rounds[-1]
        if reason is not None and reason.age_s is not None:
            newest.slowest["detect"] = Slowest(reason.node_id, reason.age_s)
        newest.ended = self._wall_time(at)
        if reason is not None:
            newest.end, newest.end_text = str(reason.kind.value), reason.text
        elif verdict is not None:
            newest.end, newest.end_text = str(verdict.outcome.value), verdict.text
        self._sum()

    def _judged(self, job: JobState, round_: int, at: float) -> None:
        reason = job.end_reason or job.last_end
        if reason is not None and round_ == self._seen.newest:
            goodput.judged(self.account, reason.kind)
        for past in reversed(self.rounds):
            if past.round == round_:
                past.cause = first_cause(job.last_cause)
                if reason is not None:
                    past.end, past.end_text = str(reason.kind.value), reason.text
                if past is self.rounds[-1]:
                    goodput.pass_time(self.account, at)
                    self._sum()
                    self._close()
                return

    def _over(self, job: JobState, at: float) -> None:
        assert job.verdict is not None
        has_succeeded = job.verdict.outcome is Outcome.SUCCEEDED
        goodput.over(self.account, at, has_succeeded=has_succeeded)
        if not self.rounds:
            return
        newest = self.rounds[-1]
        if newest.ended is None:
            newest.ended = self._wall_time(at)
            newest.end, newest.end_text = str(job.verdict.outcome.value), job.verdict.text
        newest.cause = newest.cause or first_cause(job.verdict.cause)
        self._sum()
        self._close()

    def _close(self) -> None:
        """The newest round is over, and all is known of it."""
        newest, seen = self.rounds[-1], self._seen
        if seen.closed != newest.round:
            seen.closed = newest.round
            newest.slowest |= _slowest(self.told)
            self.news.append(replace(newest))

    def _sum(self) -> None:
        newest, account = self.rounds[-1], self.account
        newest.first_step, newest.last_step = account.steps.resumed, account.steps.step
        newest.seconds = {
            str(kind.value): seconds for kind, seconds in goodput.of_round(account).items()
        }


def _slowest(told: Mapping[str, Told]) -> dict[str, Slowest]:
    found: dict[str, Slowest] = {}
    for node_id, one in told.items():
        for phase, seconds in one.progress.phases:
            if seconds is not None and (phase not in found or seconds > found[phase].seconds):
                found[phase] = Slowest(node_id, seconds)
    return found


def _is_hang(job: JobState, reason: EndReason) -> bool:
    """The round was ended because a worker made no progress."""
    ends = [report.failure for report in job.reports if report.node_id == reason.node_id]
    return any(one.code is None and one.signal is None and one.reason for one in ends)
