"""Where the time of a job goes: which share of it moved the job forward. Pure.

Time is split without gaps or overlaps. What the job does now follows from its state
(`spending_of`), which is looked at after everything that happens; so the sum is the wall time by
construction. What is learnt late moves time from one kind to another, within the round: that a
worker had failed or a node was silent for a while (`DETECT`), that a rank hung (`HANG`), when the
workers were started and when the first step was done.

A step counts once: after a restart those up to the furthest step of the rounds before are done
again (`REDONE`). Steps are those of the worker that is furthest, since ranks of one job train in
step. A job of which no steps are known spends the time of its workers as `UNKNOWN`.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from rallypoint.core.checkpoint import Notice
from rallypoint.core.job_state import JobState
from rallypoint.core.model import EndKind, EndReason
from rallypoint.core.round_state import MemberState, Phase
from rallypoint.core.watch.node_progress import NodeProgress


class Spending(Enum):
    """What a job does with its time."""

    WAITING = "waiting for nodes"
    RENDEZVOUS = "rendezvous"
    SPAWN = "spawn"
    STARTUP = "start-up"
    STEPS = "useful steps"
    REDONE = "steps done twice"
    CHECKPOINT = "checkpoint"
    DETECT = "detecting"
    STOP = "stopping"
    HANG = "hang"
    PAUSED = "standing still"
    UNKNOWN = "running, no steps known"


WORKING = "work"
"""The cause of time that nothing but the program itself causes."""
FIRST_ROUND = "start"
"""The cause of what comes before and in the first round, up to its first step."""
_AT_WORK = (Spending.STEPS, Spending.UNKNOWN)
_RUNNING = (Spending.SPAWN, Spending.STARTUP, Spending.STEPS, Spending.REDONE)


class Segment(Struct):
    """A stretch of time, on the host's clock."""

    spending: Spending
    cause: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


class RoundSteps(Struct):
    """How far the newest round has come."""

    awaited: set[str] = field(default_factory=set)
    """Nodes that have not told yet that their workers run."""
    spawned_at: float | None = None
    """When those that have told were started, the last of them."""
    furthest_before: int = -1
    """The largest step of the rounds before."""
    resumed: int = -1
    """The first step that was heard of."""
    step: int = -1
    """The largest one."""
    advanced_at: float | None = None
    """When that was reported."""


class Goodput(Struct):
    """The account of one job. Changed by the functions of this module only."""

    begun_at: float
    until: float
    """All time up to here is in the account."""
    now: Spending | None = Spending.WAITING
    """None: the job has ended."""
    cause: str = FIRST_ROUND
    """Why the time since the last step was lost: the kind of end of the round before."""
    segments: list[Segment] = field(default_factory=list)
    """Of the newest round, and of the way to it."""
    folded: dict[tuple[Spending, str], float] = field(default_factory=dict)
    """Seconds of the rounds before, by kind and cause."""
    steps: RoundSteps = field(default_factory=RoundSteps)
    lost_steps: int = 0
    """That were done and had to be done again."""
    faults: int = 0
    """Rounds that ended by a failure, a loss or a fault of Rallypoint's own processes."""
    spares: int = 0
    """Nodes that stand by now."""
    spare_s: float = 0.0
    """Node-seconds of standing by."""

    @property
    def furthest(self) -> int:
        """The largest step that the job has ever done; -1: none is known."""
        return max(self.steps.furthest_before, self.steps.step)


def spending_of(job: JobState) -> Spending | None:
    """What the job's own state tells; `SPAWN` for all that happens while a round runs. None: the
    job has ended."""
    state = job.round
    if job.verdict is not None:
        return None
    if state.phase is Phase.ACTIVE:
        notice = job.notice
        return Spending.CHECKPOINT if notice is not None and _stands(notice) else Spending.SPAWN
    if state.counts[MemberState.STOPPING] or (state.held and not job.backoff_s and not job.former):
        return Spending.STOP
    if job.backoff_s:
        return Spending.PAUSED
    is_back = state.counts[MemberState.JOINED] >= state.roster_size > 0
    return Spending.RENDEZVOUS if state.roster_size and not is_back else Spending.WAITING


def _stands(notice: Notice) -> bool:
    """Nodes leave: the round is about to end. (For nodes that join it trains on.)"""
    return notice.kind is EndKind.DRAIN


def noted(account: Goodput, job: JobState, at: float) -> None:
    """Something has happened to the job: look what it does now. O(1)."""
    at = max(at, account.until)
    account.spare_s += account.spares * (at - account.until)
    account.spares = job.round.counts[MemberState.STANDBY]
    spending = spending_of(job)
    if spending is Spending.SPAWN:
        spending = _in_the_round(account)
    elif spending is Spending.CHECKPOINT and account.now in (Spending.SPAWN, Spending.STARTUP):
        spending = account.now
    _enter(account, spending, at)


def formed(account: Goodput, nodes: set[str], at: float) -> None:
    """A round has its nodes; called before `noted`. Folds what was before its way to here."""
    _enter(account, account.now, at)
    way = _since_last_round(account)
    for segment in account.segments[: len(account.segments) - len(way)]:
        _add(account.folded, segment)
    account.segments = way
    account.steps = RoundSteps(set(nodes), furthest_before=account.furthest)


def ended(account: Goodput, reason: EndReason, at: float, *, is_hang: bool) -> None:
    """The newest round has ended for this reason; called before `noted`."""
    _enter(account, account.now, at)
    account.cause = "hang" if is_hang else str(reason.kind.value)
    if not reason.kind.is_planned:
        account.faults += 1
    if is_hang and account.steps.advanced_at is not None:
        _relabel(account, account.steps.advanced_at, at, Spending.HANG)
    elif reason.age_s is not None:
        _relabel(account, at - reason.age_s, at, Spending.DETECT)


def told(account: Goodput, node_id: str, progress: NodeProgress, at: float) -> None:
    """A node of the newest round has told this. O(1)."""
    if account.now is None:
        return
    _enter(account, account.now, at)
    if progress.running_s is not None and node_id in account.steps.awaited:
        account.steps.awaited.discard(node_id)
        started_at = max(at - progress.running_s, account.steps.spawned_at or 0.0)
        account.steps.spawned_at = started_at
        if not account.steps.awaited:
            _relabel(account, started_at, at, Spending.STARTUP, only=(Spending.SPAWN,))
    if progress.furthest > account.steps.step:
        _advanced(account, progress, at)
    if account.now in _RUNNING:
        account.now = _in_the_round(account)


def _advanced(account: Goodput, progress: NodeProgress, at: float) -> None:
    """A larger step than before."""
    told_at = at - (progress.quiet_s or 0.0)
    before, last_at = account.steps.furthest_before, account.steps.advanced_at
    is_again = progress.furthest <= before
    if account.steps.resumed < 0:
        account.steps.resumed = progress.furthest
        first_at = told_at
        if progress.running_s is not None and progress.first_progress_s is not None:
            first_at = at - progress.running_s + progress.first_progress_s
        account.lost_steps += max(before - progress.furthest + 1, 0)
        kind = Spending.REDONE if is_again else Spending.STEPS
        _relabel(account, first_at, at, kind, only=_RUNNING)
    elif account.steps.step <= before < progress.furthest and last_at is not None:
        # It passed the furthest step of before between the last two reports.
        share = (before + 1 - account.steps.step) / (progress.furthest - account.steps.step)
        passed_at = last_at + share * max(told_at - last_at, 0.0)
        _relabel(account, passed_at, at, Spending.STEPS, only=_RUNNING)
    account.steps.step, account.steps.advanced_at = progress.furthest, told_at


def spent(account: Goodput, at: float) -> dict[tuple[Spending, str], float]:
    """Seconds by kind and cause, up to now. They add up to the wall time."""
    found = dict(account.folded)
    last = [] if account.now is None else [_segment(account, account.now, at)]
    for segment in (*account.segments, *last):
        _add(found, segment)
    if account.furthest >= 0:
        return found
    known: dict[tuple[Spending, str], float] = {}
    for (spending, cause), seconds in found.items():
        key = (spending, cause)
        if spending is Spending.STARTUP:
            key = (Spending.UNKNOWN, WORKING)
        known[key] = known.get(key, 0.0) + seconds
    return known


def of_round(account: Goodput) -> dict[Spending, float]:
    """Seconds of the newest round and of the way to it, by kind."""
    found: dict[Spending, float] = {}
    for segment in account.segments:
        found[segment.spending] = found.get(segment.spending, 0.0) + segment.seconds
    return found


def _in_the_round(account: Goodput) -> Spending:
    steps = account.steps
    if steps.step >= 0:
        return Spending.STEPS if steps.step > steps.furthest_before else Spending.REDONE
    is_running = steps.spawned_at is not None and not steps.awaited
    return Spending.STARTUP if is_running else Spending.SPAWN


def _enter(account: Goodput, spending: Spending | None, at: float) -> None:
    """Account for the time until `at`, and spend it so from then on."""
    at = max(at, account.until)
    if account.now is not None and at > account.until:
        new = _segment(account, account.now, at)
        last = account.segments[-1] if account.segments else None
        if last is not None and (last.spending, last.cause, last.end) == (
            new.spending,
            new.cause,
            new.begin,
        ):
            last.end = at
        else:
            account.segments.append(new)
    account.until, account.now = at, spending


def _segment(account: Goodput, spending: Spending, at: float) -> Segment:
    """From where the account ends until `at`."""
    return Segment(spending, _cause(account, spending), account.until, at)


def _relabel(
    account: Goodput,
    begin: float,
    end: float,
    spending: Spending,
    only: tuple[Spending, ...] = tuple(Spending),
) -> None:
    """This time of the newest round was spent so, as is known now."""
    cut: list[Segment] = []
    for segment in account.segments:
        first, last = max(segment.begin, begin), min(segment.end, end)
        if first >= last or segment.spending not in only:
            cut.append(segment)
            continue
        if segment.begin < first:
            cut.append(Segment(segment.spending, segment.cause, segment.begin, first))
        cut.append(Segment(spending, _cause(account, spending), first, last))
        if last < segment.end:
            cut.append(Segment(segment.spending, segment.cause, last, segment.end))
    account.segments = cut


def _cause(account: Goodput, spending: Spending) -> str:
    if spending is Spending.CHECKPOINT:
        return str(EndKind.DRAIN.value)  # Of the round that is about to end, not of the last one.
    return WORKING if spending in _AT_WORK else account.cause


def _since_last_round(account: Goodput) -> list[Segment]:
    """What came after the newest round had ended: it is the way to the next one."""
    way: list[Segment] = []
    for segment in reversed(account.segments):
        if segment.spending not in (Spending.WAITING, Spending.RENDEZVOUS, Spending.PAUSED):
            break
        way.insert(0, segment)
    return way


def _add(sums: dict[tuple[Spending, str], float], segment: Segment) -> None:
    key = (segment.spending, segment.cause)
    sums[key] = sums.get(key, 0.0) + segment.seconds
