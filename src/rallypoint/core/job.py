"""The job: a round machine, the reports of failures, the restart ledger and the verdict.

    step(job, event, at) -> effects

Pure, like the round machine that it contains; `at` is the host's monotonic time in seconds, used
only to date reports against each other. The coordinator feeds it and does what it says.

A round ends at once when the first failure is known, but nobody is blamed before every
participant has stopped or is lost (`RoundSettled`): then the first cause is picked, the ledger
charged if that was a worker's failure, and either the next round is released or a verdict given.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.core import cause as causes
from rallypoint.core import job_enrolment, job_hang, restart, round_timers
from rallypoint.core import notice as notices
from rallypoint.core.events import (
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSucceeded,
    RoundBroken,
    RoundFailed,
    RoundReleased,
    Timer,
    TimerEnded,
    TimerKind,
    WorkersFinishing,
)
from rallypoint.core.job_departures import (
    answered,
    before_it_goes,
    drains,
    end_notice,
    is_collateral,
    keep_notice,
    succeeded_meanwhile,
    want_checkpoint,
)
from rallypoint.core.job_departures import (
    is_leaving as is_leaving,
)
from rallypoint.core.job_events import (
    Assign,
    CheckpointAnswered,
    EnrolmentFailed,
    FailuresDetailed,
    GiveVerdict,
    HangSuspected,
    HelperDied,
    JobCancelled,
    JobEffect,
    JobEvent,
    LeaveNow,
    NodeDrains,
    NodeEnrolled,
    NodeFailed,
    Record,
    SessionLost,
    StacksCollected,
    StartWorkers,
    StopWorkers,
)
from rallypoint.core.job_rounds import is_member, run_round
from rallypoint.core.job_state import JobState as JobState
from rallypoint.core.job_state import close
from rallypoint.core.job_state import ended_job as ended_job
from rallypoint.core.job_state import new_job as new_job
from rallypoint.core.job_state import status as status
from rallypoint.core.model import NodeLoss, NodeRef, Outcome, WorkerFailure
from rallypoint.core.round_state import Phase, Standing

_OF_PARTICIPANTS = (
    NodeEnrolled
    | EnrolmentFailed
    | WorkersFinishing
    | NodeSucceeded
    | CheckpointAnswered
    | HangSuspected
    | StacksCollected
)
"""What only a node can tell that takes part in the round that is active."""


def step(job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
    """Apply one event and return what must be done, in order. Safe to apply twice."""
    if job.verdict is not None:
        # Whoever comes too late to have been told with the others is told now.
        return [GiveVerdict(event.ref, job.verdict)] if isinstance(event, NodeJoined) else []
    if isinstance(event, _OF_PARTICIPANTS) and not _takes_part(job, event.ref):
        return []
    effects: list[JobEffect] = []
    if isinstance(event, SessionLost | NodeLeft):
        # It goes as it was told to, or has succeeded, and is not lost.
        effects += before_it_goes(job, event.ref, at)
    if job.verdict is None:
        effects += _apply(job, event, at)
    return effects + keep_notice(job, at)


def _apply(job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
    match event:
        case SessionLost(ref, why, last_heard_at, wall_time):
            return _lost(job, ref, NodeLoss(ref.node_id, last_heard_at, why, wall_time), at)
        case NodeFailed():
            return _failed(job, event, at)
        case HelperDied():
            return _helper_died(job, event, at)
        case FailuresDetailed():
            _detail(job, event, at)
            return []
        case NodeEnrolled(ref, round_):
            return job_enrolment.enrolled(job, ref, round_, at)
        case EnrolmentFailed():
            return job_enrolment.failed(job, event, at)
        case TimerEnded(timer) if timer.kind in (TimerKind.READY, TimerKind.ENROLMENT):
            return job_enrolment.time_is_over(job, timer, at)
        case NodeDrains():
            return drains(job, event, at)
        case CheckpointAnswered():
            return answered(job, event, at)
        case NodeSucceeded(ref, round_):
            if job.notice is not None and job.notice.round == round_:
                return succeeded_meanwhile(job, event, at)
            if is_member(job, ref):
                job.succeeded_at[ref.node_id] = at
            return run_round(job, event, at)
        case WorkersFinishing(round_) if job.notice is not None and job.notice.round == round_:
            job.notice.finishing = True  # because they were asked, for all that is known
            return []
        case JobCancelled(ref, why, signal):
            return close(job, Outcome.CANCELLED, f"cancelled on node {ref}: {why}", signal)
        case TimerEnded(timer) if timer.kind is TimerKind.CHARGE:
            restart.forget(job.ledger, timer.id)
            return []
        case HangSuspected():
            return job_hang.suspected(job, event)
        case StacksCollected():
            return _blame(job, job_hang.collected(job, event), at)
        case TimerEnded(timer) if timer.kind is TimerKind.STACKS:
            due = timer in timers_wanted(job)
            return _blame(job, job_hang.conclude(job), at) if due else []
        case TimerEnded(timer) if timer.kind is TimerKind.NOTICE:
            return end_notice(job, at) if timer in timers_wanted(job) else []
        case TimerEnded(timer) if timer.kind is TimerKind.BACKOFF:
            if timer not in timers_wanted(job):
                return []
            job.backoff_s = 0.0
            return run_round(job, RoundReleased(timer.round), at)
        case _:
            return run_round(job, event, at)


def timers_wanted(job: JobState) -> dict[Timer, float]:
    """Every wait that the state asks for, with its length in seconds."""
    if job.verdict is not None:
        return {}
    wanted = round_timers.timers_wanted(job.round)
    wanted.update(restart.timers_wanted(job.ledger, job.round.settings))
    wanted.update(job_enrolment.timers_wanted(job))
    wanted.update(job_hang.timers_wanted(job))
    if job.notice is not None:
        wanted.update(notices.timers_wanted(job.notice))
    if job.backoff_s:
        wanted[Timer(TimerKind.BACKOFF, job.round.round)] = job.backoff_s
    return wanted


def truth(job: JobState, ref: NodeRef, at: float) -> list[JobEffect]:
    """What a member that may have missed messages must be told now. O(1)."""
    if job.verdict is not None:
        return [GiveVerdict(ref, job.verdict)]
    member = job.round.members.get(ref.node_id)
    if member is None or member.ref != ref:
        return []
    assignment = job.assigned.get(ref.node_id)
    if member.standing is Standing.RUNNING and assignment is not None:
        effects: list[JobEffect] = [Assign(ref, assignment)]
        if job.started:
            effects.append(StartWorkers(ref, assignment.round))
        if job.notice is not None and ref.node_id in job.notice.awaited:
            effects.append(want_checkpoint(job.notice, ref, at))
        return effects
    if member.standing is Standing.STOPPING and job.end_reason is not None:
        return [StopWorkers(ref, job.round.round - 1, job.end_reason)]
    return [LeaveNow(ref)] if member.standing is Standing.LEAVING else []


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
    return [record, *run_round(job, NodeLost(ref, loss.reason), at)]


def _failed(job: JobState, event: NodeFailed, at: float) -> list[JobEffect]:
    if not _is_report_due(job, event.ref, event.round):
        return []
    failures = _ranked(job, event)
    if not failures:
        return []
    node_id, first = event.ref.node_id, failures[0]
    if is_collateral(job, at - first.age_s):
        return end_notice(job, at, causes.describe_failure(node_id, first))
    known = {r.failure.local_rank for r in job.reports if r.node_id == node_id}
    for failure in failures:
        if failure.local_rank not in known:  # one for each worker, however many a node tells of
            known.add(failure.local_rank)
            job.reports.append(causes.Report(node_id, failure, at))
    text = causes.describe_failure(node_id, first)
    return run_round(job, RoundFailed(event.round, text, node_id), at)


def _ranked(job: JobState, event: NodeFailed) -> list[WorkerFailure]:
    """The failures of workers that this node has. Which ranks they are its world says."""
    node_id = event.ref.node_id
    first, workers = job.assigned[node_id].base_rank, job.round.members[node_id].candidate.workers
    own = (failure for failure in event.failures if 0 <= failure.local_rank < workers)
    return [replace(failure, rank=first + failure.local_rank) for failure in own]


def _helper_died(job: JobState, event: HelperDied, at: float) -> list[JobEffect]:
    if not _is_report_due(job, event.ref, event.round):
        return []
    if job.breakdown is None:
        job.breakdown = causes.Breakdown(event.ref.node_id, event.text, at)
    return run_round(job, RoundBroken(event.round, event.text, event.ref.node_id), at)


def _blame(job: JobState, found: NodeFailed | Record | None, at: float) -> list[JobEffect]:
    """What an inquiry about a hang has come to, if it is over."""
    if isinstance(found, NodeFailed):
        return _failed(job, found, at)
    return [] if found is None else [found]


def _takes_part(job: JobState, ref: NodeRef | None) -> bool:
    if ref is None:  # the job's own word
        return True
    member = job.round.members.get(ref.node_id)
    return member is not None and member.ref == ref and member.standing is Standing.RUNNING


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
                known = report.failure
                report.failure = replace(failure, rank=known.rank, age_s=known.age_s)
