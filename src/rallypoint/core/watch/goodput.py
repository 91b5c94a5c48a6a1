"""Where the time of a job goes: which share of it moved the job forward. Pure.

Time is split without gaps or overlaps. What the job does now follows from its state
(`spending_of`), which is looked at after everything that happens; so the sum is the wall time by
construction. What is learnt late moves time from one kind to another, within the round: that a
worker had failed or a node was silent for a while (`DETECT`), that a rank hung (`HANG`), when the
workers were started and when the first step was done.

A step counts once: after a restart those up to the furthest step of the rounds before are done
again (`REDONE`). Steps are those of the worker that is furthest, since ranks of one job train in
step. A worker whose steps become fewer within a round counts them anew, by epoch: then no step is
known to be done again. A job without known steps spends the time of its workers as `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core.job_state import JobState
from rallypoint.core.model import PLANNED, EndKind, EndReason
from rallypoint.core.round_state import MemberState, RoundPhase
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.watch.segments import Segment, Sums, add, relabelled
from rallypoint.core.watch.segments import Spending as Spending

WORKING = "work"
"""The cause of time in which workers work, so that only the program itself is responsible."""
FIRST_ROUND = "start"
"""The cause of lost time before any round has ended."""
HANG_CAUSE = "hang"
STALLED_S, STALLED_STEPS = 60.0, 10
"""The limits, in seconds and in usual durations of a step, of the time between the last step and a
round's end. If it exceeds both, it counts as a hang, not as work."""
UNTOLD_S = 15.0
"""The seconds after which a round without any report counts as one whose agents send none: the use
of its time is not known."""
SEGMENTS_MAX = 64
_AT_WORK = (Spending.STEPS, Spending.UNKNOWN)
_IN_A_ROUND = (Spending.SPAWN, Spending.STARTUP, Spending.REDONE)
_RUNNING = (*_IN_A_ROUND, Spending.STEPS)
_MAY_TRAIN_ON = (Spending.CHECKPOINT, Spending.DETECT, Spending.HANG)


class RoundSteps(Struct):
    """The steps of the newest round, and what is known of its start."""

    formed_at: float | None = None
    """When the round was formed; None: no round is known. For a round of a former coordinator it is
    the time of that one's last report."""
    over_at: float | None = None
    """When a worker failed, a node became silent, or the round was ended for another reason. After
    a hang it is the time of the last step; None: the round has not ended."""
    cause: str = FIRST_ROUND
    """Why the time before the round's first new step is lost: how the round before ended."""
    awaited: set[str] = field(default_factory=set)
    """The nodes that have not reported yet that their workers run."""
    is_told: bool = False
    """Whether some node has reported about its workers."""
    spawned_at: float | None = None
    """The latest start of workers on the nodes that have reported it; None: none has."""
    furthest_before: int = -1
    """The largest step of the rounds before; -1: none is known, or workers count steps anew."""
    resumed: int = -1
    """The first step of this round that was reported; -1: none was."""
    first_at: float = 0.0
    """When the first step of this round that was reported to this coordinator was done; 0: none
    was."""
    step: int = -1
    """The largest step of this round that was reported to this coordinator; -1: none was."""
    step_carried: int = -1
    """The largest step of this round that the former coordinator knew; -1: none."""
    leader: str = ""
    """The node that has reported the largest step of this round; empty: none, or not known."""
    advanced_at: float | None = None
    """When a worker reported the largest step; None: none was reported."""

    @property
    def redone(self) -> int:
        """The number of steps of earlier rounds that this round does again.

        While it runs those yet to come count as well; after its end only those that were done.
        """
        if self.resumed < 0:
            return 0
        last = self.furthest_before
        if self.over_at is not None:
            last = min(last, max(self.step, self.step_carried))
        return max(last - self.resumed + 1, 0)


class Spares(Struct):
    """The standby nodes: their present number, and the node-seconds that they have waited."""

    nodes: int = 0
    node_s: float = 0.0


class Goodput(Struct):
    """The account of one job's time. Only this module and `carrying` change it."""

    begun_at: float
    until: float
    """The time up to which the account is complete."""
    now: Spending | None = Spending.WAITING
    """The present kind of time; None: the job has ended."""
    cause: str = FIRST_ROUND
    """The cause for which time is counted as lost now: `start` before any round has ended, else
    the kind of end of the last one, or `hang`."""
    segments: list[Segment] = field(default_factory=list)
    """The stretches of time of the newest round, and of the wait before it, each of one kind."""
    folded: Sums = field(default_factory=dict)
    """Seconds of the time before `segments`, by kind and cause."""
    steps: RoundSteps = field(default_factory=RoundSteps)
    furthest: int = -1
    """The largest step that the job has ever done; -1: not known."""
    counts_anew: bool = False
    """Whether its workers were seen to count their steps anew within a round, as in each epoch."""
    redone: int = 0
    """The number of steps that were done again in earlier rounds."""
    faults: int = 0
    """The number of rounds that ended by a failure, a loss or a fault of Rallypoint's own
    processes."""
    spares: Spares = field(default_factory=Spares)

    @property
    def lost_steps(self) -> int:
        """The number of steps that were done, and had to be done again or still have to."""
        return self.redone + self.steps.redone


def spending_of(job: JobState) -> Spending | None:
    """Return the kind of time according to the job's state; None: the job has ended.

    Once the workers of a round may start it is `SPAWN` for all that they do, or `CHECKPOINT` before
    nodes leave.
    """
    state = job.round
    if job.verdict is not None:
        return None
    if state.phase is RoundPhase.ACTIVE:
        if not job.started:
            return Spending.RENDEZVOUS
        # For nodes that leave: the round is about to end. For those that join it trains on.
        leaves = job.notice is not None and job.notice.then.leaves
        return Spending.CHECKPOINT if leaves else Spending.SPAWN
    if state.counts[MemberState.STOPPING] or (state.held and not job.backoff_s and not job.former):
        return Spending.STOP
    return Spending.PAUSED if job.backoff_s else Spending.WAITING


def noted(account: Goodput, job: JobState, at: float) -> None:
    """Set the kind of the time after `at` by the job's state, after something has happened. O(1).

    The time up to `at` is accounted for as the kind before.
    """
    if account.now is None:
        return
    spending = spending_of(job)
    if spending is Spending.SPAWN:
        spending = _in_the_round(account)
    elif spending is Spending.CHECKPOINT and account.now in (Spending.SPAWN, Spending.STARTUP):
        spending = account.now
    _enter(account, spending, at)
    account.spares.nodes = job.round.counts[MemberState.STANDBY]


def pass_time(account: Goodput, at: float) -> None:
    """Account for the time until `at`, as the present kind of time."""
    _enter(account, account.now, at)


def formed(account: Goodput, nodes: set[str], at: float, furthest: int = -1) -> None:
    """Begin the account of a round whose nodes are chosen; called before `noted`.

    Folds the account of earlier rounds into sums. `furthest` is the largest step that the job is
    known to have done.
    """
    _enter(account, account.now, at)
    account.furthest = max(account.furthest, furthest)
    before = account.steps
    way = _since(account, before.over_at)
    for segment in account.segments[: len(account.segments) - len(way)]:
        add(account.folded, segment)
    account.segments = way
    account.redone += before.redone
    known = -1 if account.counts_anew else account.furthest
    account.steps = RoundSteps(at, cause=account.cause, awaited=set(nodes), furthest_before=known)


def ended(account: Goodput, reason: EndReason, at: float, *, is_hang: bool) -> None:
    """Note that the newest round has ended for this reason; called before `noted`.

    The time from the fault to the end is counted as its detection, or from the last step as a hang.
    """
    _enter(account, account.now, at)
    _settle(account, at)
    steps = account.steps
    account.cause = HANG_CAUSE if is_hang else str(reason.kind.value)
    if not reason.kind.is_planned:
        account.faults += 1
    begin = at if reason.age_s is None else at - reason.age_s
    spending = Spending.DETECT
    if is_hang and steps.advanced_at is not None:
        begin, spending = steps.advanced_at, Spending.HANG
    # Nodes that wait for each other did no step without the one that was silent.
    steps.over_at = max(begin, steps.formed_at or begin, steps.advanced_at or begin)
    _relabel(account, steps.over_at, at, spending)


def taken_over(account: Goodput, reason: EndReason) -> None:
    """Note why the last round ended, if another coordinator led then and did not say why."""
    if account.cause == FIRST_ROUND:
        account.cause = str(reason.kind.value)
        account.faults += not reason.kind.is_planned


def judged(account: Goodput, kind: EndKind) -> None:
    """Correct why the last round ended, once the coordinator has decided that finally.

    A hang stays one. Called before the next round is `formed`.
    """
    before, account.cause = account.cause, str(kind.value)
    if before in (HANG_CAUSE, account.cause):
        account.cause = before
        return
    account.faults += before in PLANNED and not kind.is_planned
    over_at = account.steps.over_at
    for segment in account.segments:
        if over_at is not None and segment.begin >= over_at and segment.cause == before:
            segment.cause = account.cause


def over(account: Goodput, at: float, *, has_succeeded: bool) -> None:
    """Note that the job ends; called before `noted`.

    If workers succeed, the time after their last reported step counts as work: they may do other
    things.
    """
    _enter(account, account.now, at)
    _settle(account, at, is_at_work=has_succeeded)
    account.steps.over_at = account.steps.over_at or at  # It does no more steps again.


def told(account: Goodput, node_id: str, progress: NodeProgress, at: float) -> None:
    """Note a report of progress from a node of the newest round, perhaps after its end. O(1)."""
    if account.now is None:
        return
    _enter(account, account.now, at)
    steps = account.steps
    steps.is_told = True
    if progress.running_s is not None and (node_id in steps.awaited or not steps.awaited):
        steps.awaited.discard(node_id)
        started_at = max(at - progress.running_s, steps.spawned_at or 0.0)
        steps.spawned_at = started_at
        if not steps.awaited:
            _relabel(account, started_at, at, Spending.STARTUP, only=(Spending.SPAWN,))
    if -1 < progress.furthest < steps.step and node_id == steps.leader:
        _count_anew(account, at)
    if progress.furthest > steps.step:
        steps.leader = node_id
        told_at = at - (progress.quiet_s or 0.0)
        first_at = told_at
        if progress.running_s is not None and progress.first_progress_s is not None:
            first_at = min(at - progress.running_s + progress.first_progress_s, told_at)
        _advanced(account, progress.furthest, first_at, told_at)
    if account.now in _RUNNING:
        account.now = _in_the_round(account)


def reached(account: Goodput, step: int, at: float) -> None:
    """Note that the newest round has reached this step, if the job never got further. O(1)."""
    if account.now is not None and step > max(account.steps.step, account.furthest):
        _enter(account, account.now, at)
        account.steps.leader = ""
        _advanced(account, step, at, at)


def _advanced(account: Goodput, step: int, first_at: float, told_at: float) -> None:
    """Note a larger step than before, done at `told_at`, and correct the kinds of time up to it.

    `first_at` is when the round's first step was done. It counts only if no step of this round was
    reported before.
    """
    steps, until = account.steps, account.until
    before, last_at = steps.furthest_before, steps.advanced_at
    kind = Spending.REDONE if step <= before else Spending.STEPS
    if steps.step < 0:
        # Another coordinator may have heard of an earlier one.
        steps.resumed = step if steps.resumed < 0 else steps.resumed
        steps.first_at = first_at
        _relabel(account, first_at, until, kind, only=_RUNNING)
    elif steps.step <= before < step and last_at is not None:
        # It passed the furthest step of before between the last two reports.
        share = (before + 1 - steps.step) / (step - steps.step)
        passed_at = last_at + share * max(told_at - last_at, 0.0)
        _relabel(account, passed_at, until, Spending.STEPS, only=_RUNNING)
    # It trained on until it came to a checkpoint, or until it noticed what had happened.
    since = steps.first_at if last_at is None else last_at
    _relabel(account, since, told_at, kind, only=_MAY_TRAIN_ON)
    steps.step, steps.advanced_at = step, told_at
    account.furthest = max(account.furthest, step)


def _count_anew(account: Goodput, at: float) -> None:
    account.counts_anew, account.steps.furthest_before = True, -1
    begin = account.steps.formed_at or at
    _relabel(account, begin, at, Spending.STEPS, only=(Spending.REDONE,))


def spent(account: Goodput, at: float) -> Sums:
    """Return the seconds by kind and cause, up to `at`.

    The newest round is counted as if it ended now. The seconds add up to the wall time.
    """
    found = dict(account.folded)
    if account.now is None:
        segments = account.segments
    else:
        copy = replace(
            account, folded=found, spares=Spares(), segments=[replace(x) for x in account.segments]
        )
        _enter(copy, copy.now, at)
        _settle(copy, at)
        segments = copy.segments
    for segment in segments:
        add(found, segment)
    if account.furthest >= 0:
        return found
    known: Sums = {}
    for (spending, cause), seconds in found.items():
        is_startup = spending is Spending.STARTUP
        key = (Spending.UNKNOWN, WORKING) if is_startup else (spending, cause)
        known[key] = known.get(key, 0.0) + seconds
    return known


def of_round(account: Goodput) -> dict[Spending, float]:
    """Return the seconds of the newest round and of the wait before it, by kind."""
    found: dict[Spending, float] = {}
    for segment in account.segments:
        kind = segment.spending
        if kind is Spending.STARTUP and account.furthest < 0:
            kind = Spending.UNKNOWN
        found[kind] = found.get(kind, 0.0) + segment.seconds
    return found


def wall_s(account: Goodput, at: float) -> float:
    """Return how many seconds the job has lasted up to `at`, or up to its end."""
    return (account.until if account.now is None else max(at, account.until)) - account.begun_at


def spare_s(account: Goodput, at: float) -> float:
    """Return the node-seconds of standby nodes up to `at`, or to the job's end."""
    more_s = 0.0 if account.now is None else max(at - account.until, 0.0)
    return account.spares.node_s + account.spares.nodes * more_s


def _settle(account: Goodput, at: float, *, is_at_work: bool = False) -> None:
    """Correct the kinds of time that are known only when a round ends.

    They are time without any report, and a hang since the last step.
    """
    steps = account.steps
    if steps.formed_at is None or steps.over_at is not None:
        return
    if not steps.is_told and steps.step < 0 and at - steps.formed_at > UNTOLD_S:
        _relabel(account, steps.formed_at, at, Spending.UNKNOWN, only=(Spending.SPAWN,))
    if steps.advanced_at is None or is_at_work:
        return
    number = max(steps.step - steps.resumed, 1)
    usual_s = max(steps.advanced_at - steps.first_at, 0.0) / number
    if at - steps.advanced_at > max(STALLED_S, STALLED_STEPS * usual_s):
        _relabel(account, steps.advanced_at, at, Spending.HANG, only=_RUNNING)


def _in_the_round(account: Goodput) -> Spending:
    steps = account.steps
    if steps.step >= 0:
        return Spending.STEPS if steps.step > steps.furthest_before else Spending.REDONE
    is_running = steps.spawned_at is not None and not steps.awaited
    return Spending.STARTUP if is_running else Spending.SPAWN


def _enter(account: Goodput, spending: Spending | None, at: float) -> None:
    """Account for the time until `at`, and set the kind of the time after it."""
    at = max(at, account.until)
    if account.now is not None and at > account.until:
        account.spares.node_s += account.spares.nodes * (at - account.until)
        new = _segment(account, account.now, at)
        last = account.segments[-1] if account.segments else None
        if last is not None and (last.spending, last.cause) == (new.spending, new.cause):
            last.end = at
        else:
            account.segments.append(new)
    account.until, account.now = at, spending
    if len(account.segments) > SEGMENTS_MAX:
        add(account.folded, account.segments.pop(0))


def _segment(account: Goodput, spending: Spending, at: float) -> Segment:
    """Return the segment of this kind from the end of the account until `at`."""
    return Segment(spending, _cause(account, spending), account.until, at)


def _relabel(
    account: Goodput,
    begin: float,
    end: float,
    spending: Spending,
    only: Collection[Spending] = tuple(Spending),
) -> None:
    """Correct the kind and cause of the time from `begin` to `end`, where it is one of `only`."""
    known = Segment(spending, _cause(account, spending), begin, end)
    account.segments = relabelled(account.segments, known, only)


def _cause(account: Goodput, spending: Spending) -> str:
    if spending in _AT_WORK:
        return WORKING
    if spending is Spending.HANG:
        return HANG_CAUSE
    if spending is Spending.CHECKPOINT:
        return str(EndKind.DRAIN.value)  # Of the round that is about to end, not of the last one.
    return account.steps.cause if spending in _IN_A_ROUND else account.cause


def _since(account: Goodput, over_at: float | None) -> list[Segment]:
    """Return the segments of waiting at the end of the account, up to the next round.

    They begin after the newest round's end (`over_at`) and its workers' stop.
    """
    way: list[Segment] = []
    for segment in reversed(account.segments):
        is_on_it = segment.spending in (Spending.WAITING, Spending.PAUSED)
        if not is_on_it or (over_at is not None and segment.begin < over_at):
            break
        way.insert(0, segment)
    return way
