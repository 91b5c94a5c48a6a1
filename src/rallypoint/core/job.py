"""The job: a round machine, the reports of failures, the restart ledger and the verdict.

    step(job, event, at) -> effects

Pure, like the round machine that it contains; `at` is the host's monotonic time in seconds, used
only to date reports against each other. The coordinator feeds it and does what it says.

A round ends at once when the first failure is known, but nobody is blamed before every
participant has stopped or is lost (`RoundSettled`): then the first cause is picked, the ledger
charged if that was a worker's failure, and either the next round is released or a verdict given.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core import cause as causes
from rallypoint.core import restart, round_timers, wording
from rallypoint.core.assign import assignments
from rallypoint.core.events import (
    Effect,
    Event,
    ExpelNode,
    FormWorld,
    JobClosed,
    JoinTimedOut,
    NodeDraining,
    NodeJoined,
    NodeLost,
    RefuseNode,
    RoundFailed,
    RoundReleased,
    RoundSettled,
    StopRound,
    Timer,
    TimerEnded,
    TimerKind,
    TooManyLosses,
    WorldSucceeded,
)
from rallypoint.core.job_events import (
    Assign,
    EnrolmentFailed,
    FailuresDetailed,
    GiveVerdict,
    HostLeaving,
    JobCancelled,
    JobEffect,
    JobEvent,
    NodeDrains,
    NodeEnrolled,
    NodeFailed,
    Record,
    SessionLost,
    StartWorkers,
    StopWorkers,
)
from rallypoint.core.model import (
    Assignment,
    EndKind,
    EndReason,
    JobStatus,
    NodeLoss,
    NodeRef,
    Outcome,
    SharedSettings,
    Verdict,
)
from rallypoint.core.round import step as step_round
from rallypoint.core.round_state import Phase, RoundState, Standing

DRAIN_WINDOW_S = 3.0
"""Drains of all nodes within this time are one stop of the job."""


class JobState(Struct):
    """All that is known of one job. Only `step` changes it."""

    round: RoundState
    ledger: restart.Ledger = field(default_factory=restart.Ledger)
    reports: list[causes.Report] = field(default_factory=list)
    losses: list[NodeLoss] = field(default_factory=list)
    end_reason: EndReason | None = None
    ended_at: float = 0.0
    judged_round: int = 0
    """The forming round whose predecessor has been judged."""
    backoff_s: float = 0.0
    assigned: dict[str, Assignment] = field(default_factory=dict)
    world_workers: int = 0
    enrolled: set[str] = field(default_factory=set)
    started: bool = False
    drained: set[str] = field(default_factory=set)
    drain_began_at: float = 0.0
    drain_world: frozenset[str] = frozenset()
    verdict: Verdict | None = None


def new_job(settings: SharedSettings) -> JobState:
    """A job that nobody has joined yet."""
    return JobState(RoundState(settings))


def step(job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
    """Apply one event and return what must be done, in order. Safe to apply twice."""
    if job.verdict is not None:
        # Whoever comes too late to have been told with the others is told now.
        return [GiveVerdict(event.ref, job.verdict)] if isinstance(event, NodeJoined) else []
    match event:
        case SessionLost(ref, why, last_heard_at, wall_time):
            return _lost(job, ref, NodeLoss(ref.node_id, last_heard_at, why, wall_time), at)
        case NodeFailed():
            return _failed(job, event, at)
        case FailuresDetailed():
            _detail(job, event, at)
            return []
        case NodeEnrolled(ref, round_):
            return _enrolled(job, ref, round_)
        case EnrolmentFailed(ref, round_, text):
            if job.round.phase is not Phase.ACTIVE or round_ != job.round.round:
                return []
            return _close(job, Outcome.INFRASTRUCTURE, f"node {ref}: {text}")
        case NodeDrains():
            return _drains(job, event, at)
        case HostLeaving(ref, why, signal):
            return _close(
                job,
                Outcome.PREEMPTED,
                wording.host_leaves(ref, why, alone=len(job.round.members) < 2),
                signal,
            )
        case JobCancelled(ref, why, signal):
            return _close(job, Outcome.CANCELLED, f"cancelled on node {ref}: {why}", signal)
        case TimerEnded(timer) if timer.kind is TimerKind.CHARGE:
            restart.forget(job.ledger, timer.id)
            return []
        case TimerEnded(timer) if timer.kind is TimerKind.BACKOFF:
            if timer not in timers_wanted(job):
                return []
            job.backoff_s = 0.0
            return _round(job, RoundReleased(timer.round), at)
        case _:
            return _round(job, event, at)


def timers_wanted(job: JobState) -> dict[Timer, float]:
    """Every wait that the state asks for, with its length in seconds."""
    if job.verdict is not None:
        return {}
    wanted = round_timers.timers_wanted(job.round)
    wanted.update(restart.timers_wanted(job.ledger, job.round.settings))
    if job.backoff_s:
        wanted[Timer(TimerKind.BACKOFF, job.round.round)] = job.backoff_s
    return wanted


def truth(job: JobState, ref: NodeRef) -> list[JobEffect]:
    """What a member that may have missed messages must be told now. O(1)."""
    if job.verdict is not None:
        return [GiveVerdict(ref, job.verdict)]
    member = job.round.members.get(ref.node_id)
    if member is None or member.ref != ref:
        return []
    assignment = job.assigned.get(ref.node_id)
    if member.standing is Standing.RUNNING and assignment is not None:
        effects: list[JobEffect] = [Assign(ref, assignment)]
        return [*effects, StartWorkers(ref, assignment.round)] if job.started else effects
    if member.standing is Standing.STOPPING and job.end_reason is not None:
        return [StopWorkers(ref, job.round.round - 1, job.end_reason)]
    return []


def status(job: JobState) -> JobStatus:
    """What a person is told while waiting. O(1)."""
    state = job.round
    active = state.phase is Phase.ACTIVE
    return JobStatus(
        phase=state.phase.value,
        round=state.round,
        joined=state.counts[Standing.JOINED],
        stopping=state.counts[Standing.STOPPING],
        waiting=state.counts[Standing.WAITING],
        standby=state.counts[Standing.STANDBY],
        world_nodes=len(state.places) if active else 0,
        world_workers=job.world_workers if active else 0,
        restarts_used=job.ledger.total,
    )


def _round(job: JobState, event: Event, at: float) -> list[JobEffect]:
    was_here = isinstance(event, NodeJoined) and _is_member(job, event.ref)
    asked = step_round(job.round, event)
    effects: list[JobEffect] = []
    if isinstance(event, NodeJoined) and not was_here and _is_member(job, event.ref):
        effects.append(Record("node_joined", f"node {event.ref} joined", event.ref.node_id))
    for effect in asked:
        if job.verdict is None:
            effects += _perform(job, effect, at)
    return effects


def _is_member(job: JobState, ref: NodeRef) -> bool:
    """This very incarnation takes part."""
    member = job.round.members.get(ref.node_id)
    return member is not None and member.ref == ref


def _perform(job: JobState, effect: Effect, at: float) -> list[JobEffect]:
    match effect:
        case FormWorld():
            return _form(job, effect)
        case StopRound(round_, reason):
            job.ended_at = at
            faults = [report.happened_at for report in job.reports]
            faults += [loss.last_heard_at for loss in job.losses]
            age_s = max(at - min(faults), 0.0) if faults else None
            return _stop(job, round_, replace(reason, age_s=age_s))
        case RoundSettled(round_):
            return _judge(job, round_, at)
        case WorldSucceeded():
            return _close(job, Outcome.SUCCEEDED, "all workers exited with code 0")
        case JoinTimedOut():
            return _close(job, Outcome.TIMED_OUT, wording.nobody_came(job.round.settings, effect))
        case TooManyLosses(count):
            text = wording.too_many_lost(count, job.round.settings)
            return _close(job, Outcome.INFRASTRUCTURE, text, cause=True)
        case ExpelNode(ref, why):
            record = Record("node_expelled", f"node {ref} was expelled: {why}", ref.node_id)
            return [effect, record]
        case RefuseNode():
            return [effect]
        case _:
            assert_never(effect)


def _form(job: JobState, effect: FormWorld) -> list[JobEffect]:
    first = job.end_reason is None
    why = "the first round" if job.end_reason is None else job.end_reason.text
    job.assigned = assignments(effect, job.ledger.total, why)
    job.reports, job.losses, job.end_reason = [], [], None
    job.enrolled, job.drained = set(), set()
    job.started = len(effect.world) == 1
    nodes = len(effect.world)
    job.world_workers = sum(seat.candidate.workers for seat in effect.world)
    size = f"{wording.count(nodes, 'node')}, {wording.count(job.world_workers, 'worker')}"
    text = f"round {effect.round}: {size}"
    effects: list[JobEffect] = [Record("round_formed", text if first else f"{text} ({why})")]
    effects += [Assign(seat.ref, job.assigned[seat.ref.node_id]) for seat in effect.world]
    return effects


def _stop(job: JobState, round_: int, reason: EndReason) -> list[JobEffect]:
    job.end_reason = reason
    effects: list[JobEffect] = [
        StopWorkers(member.ref, round_, reason)
        for member in job.round.members.values()
        if member.standing is Standing.STOPPING
    ]
    text = f"round {round_} ended: {reason.text}"
    return [Record("round_ended", text, reason.node_id), *effects]


def _judge(job: JobState, round_: int, at: float) -> list[JobEffect]:
    if job.judged_round == round_:
        return []
    job.judged_round = round_
    assert job.end_reason is not None
    if job.end_reason.kind is not EndKind.FAILURE:
        # What fails after a round was ended for another reason fails because of that end.
        job.reports = [r for r in job.reports if r.happened_at <= job.ended_at]
    cause = causes.first_cause(round_ - 1, job.reports, job.losses)
    if cause is None or cause.failure is None:
        if cause is not None and job.end_reason.kind is EndKind.FAILURE:
            job.end_reason = EndReason(EndKind.LOSS, causes.describe(cause), cause.node_id)
        if len(job.losses) > 1 and job.end_reason.kind is EndKind.LOSS:
            # Those that were lost with the first, which alone was known when the round ended.
            text = causes.describe_losses(job.losses)
            job.end_reason = EndReason(EndKind.LOSS, text, job.end_reason.node_id)
        return _round(job, RoundReleased(round_), at)
    decision = restart.charge(job.ledger, job.round.settings, cause.failure)
    blame = causes.describe(cause)
    if isinstance(decision, restart.GiveUp):
        return _close(job, Outcome.FAILED, f"{blame}; {decision.reason}", cause=True)
    pause = f" in {decision.delay_s:g} s" if decision.delay_s else ""
    # Told once: the end of the round has named the culprit, unless it was found since.
    named = "" if blame == job.end_reason.text else f": {blame}"
    job.end_reason = EndReason(job.end_reason.kind, blame, cause.node_id)
    record = Record("restart", f"{decision.reason}{pause}{named}", cause.node_id)
    if decision.delay_s:
        job.backoff_s = decision.delay_s
        return [record]
    return [record, *_round(job, RoundReleased(round_), at)]


def _lost(job: JobState, ref: NodeRef, loss: NodeLoss, at: float) -> list[JobEffect]:
    member = job.round.members.get(ref.node_id)
    if member is None or member.ref != ref:
        return []
    takes_part = member.standing in (Standing.RUNNING, Standing.STOPPING)
    if takes_part and not member.succeeded:
        job.losses.append(loss)
    # What a round loses first ends it, which every node tells; the rest only the host can tell.
    ends_round = member.standing is Standing.RUNNING and not member.succeeded
    name = "node_lost" if ends_round else "other_node_lost"
    record = Record(name, f"node {ref} was lost: {loss.reason}", ref.node_id)
    return [record, *_round(job, NodeLost(ref, loss.reason), at)]


def _failed(job: JobState, event: NodeFailed, at: float) -> list[JobEffect]:
    if not _is_report_due(job, event.ref, event.round) or not event.failures:
        return []
    node_id = event.ref.node_id
    known = {(r.node_id, r.failure.local_rank) for r in job.reports}
    job.reports += [
        causes.Report(node_id, failure, at)
        for failure in event.failures
        if (node_id, failure.local_rank) not in known
    ]
    text = causes.describe_failure(node_id, event.failures[0])
    return _round(job, RoundFailed(event.round, text, node_id), at)


def _is_report_due(job: JobState, ref: NodeRef, round_: int) -> bool:
    """The round is running, or ended and not judged yet, and the node took part in it."""
    state = job.round
    member = state.members.get(ref.node_id)
    if member is None or member.ref != ref:
        return False
    if state.phase is Phase.ACTIVE:
        return round_ == state.round and member.standing is Standing.RUNNING
    return round_ == state.round - 1 and member.standing is Standing.STOPPING


def _detail(job: JobState, event: FailuresDetailed, at: float) -> None:
    """Keep when a failure was received and happened, and add what is now known of it."""
    for report in job.reports:
        if report.node_id != event.ref.node_id or event.round != job.round.round - 1:
            continue
        for failure in event.failures:
            if failure.local_rank == report.failure.local_rank:
                report.failure = replace(failure, age_s=report.failure.age_s)


def _enrolled(job: JobState, ref: NodeRef, round_: int) -> list[JobEffect]:
    state = job.round
    member = state.members.get(ref.node_id)
    if state.phase is not Phase.ACTIVE or round_ != state.round or job.started:
        return []
    if member is None or member.ref != ref or member.standing is not Standing.RUNNING:
        return []
    job.enrolled.add(ref.node_id)
    if len(job.enrolled) < len(state.places):
        return []
    job.started = True
    running = [m.ref for m in state.members.values() if m.standing is Standing.RUNNING]
    return [StartWorkers(ref, round_) for ref in running]


def _drains(job: JobState, event: NodeDrains, at: float) -> list[JobEffect]:
    node_id = event.ref.node_id
    member = job.round.members.get(node_id)
    if member is None or member.ref != event.ref or member.standing is Standing.LEAVING:
        return []
    if not job.drained or at - job.drain_began_at > DRAIN_WINDOW_S:
        job.drained, job.drain_began_at = set(), at
        job.drain_world = frozenset(place.node_id for place in job.round.places)
    job.drained.add(node_id)
    others = len(job.round.members) - job.round.counts[Standing.LEAVING] - 1
    if job.drain_world and job.drain_world <= job.drained and not others:
        return _close(job, Outcome.PREEMPTED, f"every node is leaving: {event.why}", event.signal)
    record = Record("node_draining", f"node {node_id} is leaving: {event.why}", node_id)
    return [record, *_round(job, NodeDraining(event.ref, event.why), at)]


def _close(
    job: JobState, outcome: Outcome, text: str, signal: int = 0, *, cause: bool = False
) -> list[JobEffect]:
    """Give the verdict, to everyone, once."""
    state = job.round
    found = None
    if cause:
        round_ = state.round if state.phase is Phase.ACTIVE else max(state.round - 1, 0)
        found = causes.first_cause(round_, job.reports, job.losses)
    last = state.round if state.phase is Phase.ACTIVE else max(state.round - 1, 0)
    budget = state.settings.max_restarts
    job.verdict = Verdict(outcome, text, last, job.ledger.total, budget, found, signal)
    step_round(state, JobClosed())
    effects: list[JobEffect] = [Record("verdict", f"job {outcome.value}: {text}")]
    effects += [GiveVerdict(member.ref, job.verdict) for member in state.members.values()]
    return effects
