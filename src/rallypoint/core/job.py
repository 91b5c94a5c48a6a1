"""The job: a round machine, the reports of failures, the restart ledger and the verdict.

    step(job, event, at) -> effects

Pure, like the round machine that it contains; `at` is the host's monotonic time in seconds, used
only to date reports against each other. The coordinator feeds it and does what it says.

A round ends at once when the first failure is known, but nobody is blamed before every
participant has stopped or is lost (`RoundSettled`): then the first cause is picked, the ledger
charged if that was a worker's failure, and either the next round is released or a verdict given.
"""

from __future__ import annotations

from typing import TypeGuard, assert_never

from msgspec.structs import replace

from rallypoint.core import cause as causes
from rallypoint.core import (
    checkpoint,
    fitness,
    fitness_state,
    hang,
    job_enrolment,
    job_fitness,
    job_machines,
    job_requests,
    restarts,
    round_state,
)
from rallypoint.core import event_kinds as kinds
from rallypoint.core.events import (
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeSucceeded,
    RoundBroken,
    RoundFailed,
    RoundOver,
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
    leave_now,
    succeeded_meanwhile,
    time_is_over,
    want_checkpoint,
)
from rallypoint.core.job_rounds import former_life_gone, is_member, run_round, stop_order
from rallypoint.core.job_state import (
    FormerLifeGone,
    JobEffect,
    JobEvent,
    PersonWants,
    PlacesDead,
    RoundIsOver,
    SessionLost,
    close,
    note_dead,
    note_loss,
    note_step,
)
from rallypoint.core.job_state import JobState as JobState
from rallypoint.core.job_state import ended_job as ended_job
from rallypoint.core.job_state import new_job as new_job
from rallypoint.core.job_state import stamp as stamp
from rallypoint.core.job_state import status as status
from rallypoint.core.job_state import verdict_to as verdict_to
from rallypoint.core.messages import (
    Assigned,
    Cancel,
    CheckpointAnswered,
    Claim,
    CollectStacks,
    Detailed,
    Doing,
    Drain,
    Enrolled,
    Failed,
    Finishing,
    FromNode,
    HangSuspected,
    HelperDied,
    Join,
    Leave,
    NotEnrolled,
    Proved,
    Report,
    StacksCollected,
    StartNow,
    Succeeded,
    ToNode,
)
from rallypoint.core.model import NodeLoss, NodeRef, Outcome, Stamp
from rallypoint.core.round_state import MemberState, RoundPhase, is_active, working
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.worker_exits import WorkerExit

_OF_PARTICIPANTS = (
    Enrolled
    | NotEnrolled
    | Finishing
    | Succeeded
    | CheckpointAnswered
    | HangSuspected
    | StacksCollected
)
"""The reports that count only from a node that takes part in the active round."""
_OF_NO_ROUND = Join | Drain | Cancel | Leave
_IN_A_ROUND = frozenset(
    {
        Doing.ENROLLING,
        Doing.ENROLLED,
        Doing.RUNNING,
        Doing.FINISHING,
        Doing.SUCCEEDED,
        Doing.SUCCEEDED_WHEN_ASKED,
    }
)


def step(job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
    """Apply one event to the job, and return the effects to carry out, in order.

    Safe to apply twice.
    """
    observe(job, at)
    if isinstance(event, FromNode) and not _is_of_this_life(job, event.message):
        return resync(job, event.ref, at)
    if job.verdict is not None:
        # A node that joins after the end has not heard the verdict.
        return [verdict_to(job, event.ref)] if _joins(event) else []
    effects: list[JobEffect] = []
    match event:
        case FromNode(ref, report) if isinstance(report, _OF_PARTICIPANTS):
            if not _takes_part(job, ref):
                return []
        case SessionLost() | FromNode(_, Leave()):
            # It leaves as it was asked to, or has succeeded, and is not lost.
            effects += before_it_goes(job, event, at)
    holds = job.round.fitness.holds
    if job.verdict is None:
        effects += _apply(job, event, at)
    return effects + _told_of_losses(job, holds) + keep_notice(job, at)


def observe(job: JobState, at: float) -> None:
    """Note the time on the coordinator's clock, by which quarantines end."""
    known = job.round.fitness
    if known.now:
        known.now = max(known.now, at)
    else:
        fitness_state.begin(known, job.round.bad_routes, at)
    if job.ran_s and job.ran_since is None:
        job.ran_since = at


def heard(job: JobState, node_id: str, progress: NodeProgress | None, at: float) -> None:
    """Apply a node's heartbeat. O(1), but for the first step of a round.

    `progress` says how far its workers are; None: the heartbeat does not say.
    """
    observe(job, at)
    if progress is None:
        return
    progressed(job, progress.stamp, progress.furthest)
    job.phases.pop(node_id, None)
    if progress.phase_left_s is not None:
        job.phases[node_id] = hang.WorkerPhase(progress.stamp, at + progress.phase_left_s)


def progressed(job: JobState, named: Stamp, furthest: int) -> None:
    """Note that workers have reported a step in this round; `furthest` -1: they have not.

    O(1), except for the first step of a round.
    """
    if furthest >= 0 and named.incarnation == job.incarnation:
        fitness.stepped(job.round, named.round)


def _told_of_losses(job: JobState, holds: int) -> list[JobEffect]:
    """Return events for machines in a quarantine numbered above `holds`, begun for lost nodes."""
    known = job.round.fitness
    if known.holds == holds or job.verdict is not None:
        return []
    return [
        kinds.NODE_HELD_BACK(fitness.held_text(machine), node_id=machine.node_id)
        for machine in known.machines.values()
        if machine.hold is not None
        and machine.hold.number > holds
        and machine.reason is fitness_state.Why.LOSSES
    ]


def _is_of_this_life(job: JobState, report: Report) -> bool:
    """Return whether a report is about no round, or about a round of this life of the job."""
    return isinstance(report, _OF_NO_ROUND) or report.stamp.incarnation == job.incarnation


def _apply(job: JobState, event: JobEvent, at: float) -> list[JobEffect]:
    match event:
        case FromNode(ref, report):
            return _reported(job, ref, report, at)
        case SessionLost(ref, why, last_heard_at, wall_time):
            return _lost(job, ref, NodeLoss(ref.node_id, last_heard_at, why, wall_time), at)
        case TimerEnded(timer):
            return _timer_ended(job, timer, at)
        case NodeJoined():
            return run_round(job, event, at)
        case FormerLifeGone():
            return former_life_gone(job, at)
        case PlacesDead(places):
            note_dead(job, places)
            return []
        case PersonWants():
            return job_requests.wants(job, event, at)
        case RoundIsOver(reason):
            return run_round(job, RoundOver(job.round.round, reason), at)
        case _:
            assert_never(event)


def _reported(job: JobState, ref: NodeRef, report: Report, at: float) -> list[JobEffect]:
    match report:
        case Join(seq, candidate):
            joined = NodeJoined(ref, seq, candidate, job.round.settings)
            return run_round(job, joined, at)
        case Failed():
            return _failed(job, ref, report, at)
        case HelperDied():
            return _helper_died(job, ref, report, at)
        case Detailed():
            if report.stamp.round == job.round.round - 1:
                causes.add_details(job.reports, ref.node_id, report.failures)
            return []
        case Enrolled(named):
            return job_enrolment.enrolled(job, ref, named.round, at)
        case NotEnrolled():
            return job_enrolment.failed(job, ref, report, at)
        case Drain():
            return drains(job, ref, report, at)
        case CheckpointAnswered():
            return job_requests.saved(job, ref, report) + answered(job, ref, report, at)
        case Succeeded(named):
            return _succeeded(job, NodeSucceeded(ref, named.round), at)
        case Finishing(named) if job.notice is not None and job.notice.round == named.round:
            job.notice.finishing = True  # because they were asked, for all that is known
            return []
        case Finishing(named):
            return run_round(job, WorkersFinishing(named.round, ref), at)
        case Cancel(why, signal):
            return close(job, Outcome.CANCELLED, f"cancelled on node {ref}: {why}", signal)
        case HangSuspected():
            return _hang_suspected(job, ref, report, at)
        case StacksCollected():
            return _stacks_collected(job, ref, report, at)
        case Proved():
            return job_machines.proved(job, ref, report, at)
        case Leave():
            return run_round(job, NodeLeft(ref), at)
        case _:
            assert_never(report)


def _timer_ended(job: JobState, timer: Timer, at: float) -> list[JobEffect]:
    match timer.kind:
        case TimerKind.READY | TimerKind.ENROLMENT:
            return job_enrolment.time_is_over(job, timer, at)
        case TimerKind.CHARGE:
            restarts.forget(job.ledger, timer.id)
            return []
        case TimerKind.PROBATION:
            if timer in timers_wanted(job):
                fitness.minute_over(job.round)
            return []
        case TimerKind.STACKS | TimerKind.NOTICE | TimerKind.BACKOFF | TimerKind.RUNTIME:
            if timer not in timers_wanted(job):
                return []
            if timer.kind is TimerKind.STACKS:
                return _end_inquiry(job, at)
            if timer.kind is TimerKind.NOTICE:
                return end_notice(job, at)
            if timer.kind is TimerKind.RUNTIME:
                return time_is_over(job, at)
            job.backoff_s = 0.0
            return run_round(job, RoundReleased(timer.round), at)
        case _:
            return run_round(job, TimerEnded(timer), at)


def _succeeded(job: JobState, event: NodeSucceeded, at: float) -> list[JobEffect]:
    if job.notice is not None and job.notice.round == event.round:
        return succeeded_meanwhile(job, event, at)
    if is_member(job, event.ref):
        job.succeeded_at.setdefault(event.ref.node_id, at)
    return run_round(job, event, at)


def timers_wanted(job: JobState) -> dict[Timer, float]:
    """Return every timer that the job wants now, with its length in seconds; none after its end."""
    if job.verdict is not None:
        return {}
    wanted = round_state.timers_wanted(job.round)
    wanted.update(restarts.timers_wanted(job.ledger, job.round.settings))
    wanted.update(job_enrolment.timers_wanted(job))
    wanted.update(job_fitness.timers_wanted(job))
    if (inquiry := _inquiry(job)) is not None:
        wanted[Timer(TimerKind.STACKS, inquiry.round, str(inquiry.number))] = hang.COLLECT_S
    if job.notice is not None:
        wanted.update(checkpoint.timers_wanted(job.notice))
    if job.round.settings.max_runtime_s and job.ran_since is not None and not _is_ending(job):
        left_s = max(job.round.settings.max_runtime_s - job.ran_s, 0.0)
        wanted[Timer(TimerKind.RUNTIME)] = left_s
    if job.backoff_s:
        wanted[Timer(TimerKind.BACKOFF, job.round.round)] = job.backoff_s
    return wanted


def _is_ending(job: JobState) -> bool:
    """Return whether the time of the job (`--max-runtime`) is over.

    A last checkpoint is awaited then.
    """
    return job.notice is not None and job.notice.then.ends


def resync(job: JobState, ref: NodeRef, at: float) -> list[JobEffect]:
    """Return the orders that a node may have missed while it was disconnected. O(1)."""
    if job.verdict is not None:
        return [verdict_to(job, ref)]
    if not is_member(job, ref):
        return []
    member, assignment = job.round.members[ref.node_id], job.assigned.get(ref.node_id)
    if member.state is MemberState.RUNNING and assignment is not None:
        named = stamp(job, assignment.round)
        effects: list[JobEffect] = [ToNode(ref, Assigned(named, assignment))]
        if job.started:
            effects.append(ToNode(ref, StartNow(named)))
        if job.notice is not None and ref.node_id in job.notice.awaited:
            effects.append(want_checkpoint(job, job.notice, ref, at))
        effects += job_machines.drain_excluded(job, ref)
        return effects + job_requests.ask_again(job, ref)
    if member.state is MemberState.STOPPING and job.end_reason is not None:
        return [ToNode(ref, stop_order(job, job.round.round - 1, job.end_reason))]
    if member.state is MemberState.LEAVING:
        return [leave_now(job, ref)]
    return job_machines.ask_again(job, ref)


def agrees(job: JobState, ref: NodeRef, claim: Claim) -> bool:
    """Return whether an agent that resumes its session may continue what it claims to do.

    True if it claims to be in no round, to drain or to stop its workers, or if the job has ended.
    Else false if it is no member, or claims a round that this life of the job has never formed.
    """
    if claim.doing not in _IN_A_ROUND or job.verdict is not None:
        return True
    if claim.stamp is None or not is_member(job, ref):
        return False
    return claim.stamp.incarnation == job.incarnation and claim.stamp.round <= job.round.round


def _lost(job: JobState, ref: NodeRef, loss: NodeLoss, at: float) -> list[JobEffect]:
    if not is_member(job, ref):
        return []
    member = job.round.members[ref.node_id]
    note_loss(job, member, loss)
    # What a round loses first ends it, which every node tells; the rest only the host can tell.
    ends_round = member.works
    kind = kinds.NODE_LOST if ends_round else kinds.OTHER_NODE_LOST
    record = kind(node_id=ref.node_id, node=ref, why=loss.reason)
    return [record, *run_round(job, NodeLost(ref, loss.reason), at)]


def _failed(job: JobState, ref: NodeRef, report: Failed, at: float) -> list[JobEffect]:
    if not _is_report_due(job, ref, report.stamp.round):
        return []
    note_step(job, report.furthest)
    progressed(job, report.stamp, report.furthest)
    if not (failures := _ranked(job, ref, report)):
        return []
    if report.lacking is not None:
        job.lacking[ref.node_id] = report.lacking
    node_id, first = ref.node_id, failures[0]
    if is_collateral(job, at - first.age_s):
        return end_notice(job, at, causes.describe_failure(node_id, first))
    known = {r.failure.local_rank for r in job.reports if r.node_id == node_id}
    for failure in failures:
        if failure.local_rank not in known:  # one for each worker, however many a node tells of
            known.add(failure.local_rank)
            job.reports.append(causes.NodeFailure(node_id, failure, at))
    text = causes.describe_failure(node_id, first)
    return run_round(job, RoundFailed(report.stamp.round, text, node_id), at)


def _ranked(job: JobState, ref: NodeRef, report: Failed) -> list[WorkerExit]:
    """Return the failures of this node's workers with their global ranks.

    A failure of a local rank that the node does not have is left out.
    """
    node_id = ref.node_id
    first, workers = job.assigned[node_id].base_rank, job.round.members[node_id].candidate.workers
    own = (failure for failure in report.failures if 0 <= failure.local_rank < workers)
    return [replace(failure, rank=first + failure.local_rank) for failure in own]


def _helper_died(job: JobState, ref: NodeRef, report: HelperDied, at: float) -> list[JobEffect]:
    if not _is_report_due(job, ref, report.stamp.round):
        return []
    if job.breakdown is None:
        job.breakdown = causes.Breakdown(ref.node_id, report.text, at - report.age_s)
    return run_round(job, RoundBroken(report.stamp.round, report.text, ref.node_id), at)


def _hang_suspected(
    job: JobState, suspect: NodeRef, report: HangSuspected, at: float
) -> list[JobEffect]:
    """Ask every node whose workers run for their steps and stacks, if `--hang-timeout` is on.

    Asks nothing while an earlier question is open, while nodes or the whole job wait for a last
    checkpoint, or while a worker is in a phase that may take longer than a step. Ignores a
    suspected start once a worker of the round has reported a step.
    """
    state, notice, named = job.round, job.notice, report.stamp
    if not state.settings.hang_timeout_s or not is_active(state, named.round) or _inquiry(job):
        return []
    if notice is not None and notice.then.leaves:
        return []
    if report.in_start and state.fitness.has_stepped:
        return []
    if any(phase.stamp == named and at < phase.until for phase in job.phases.values()):
        return []
    asked = working(state)
    job.inquiries += 1
    awaited = {ref.node_id for ref in asked}
    job.inquiry = hang.Inquiry(job.inquiries, state.round, awaited)
    text = (
        f"a worker of node {suspect} makes no progress: collecting the steps and stacks of all "
        "workers"
    )
    record = kinds.HANG_SUSPECTED(text, node_id=suspect.node_id)
    question = CollectStacks(stamp(job), job.inquiries)
    return [record, *(ToNode(ref, question) for ref in asked)]


def _stacks_collected(
    job: JobState, ref: NodeRef, report: StacksCollected, at: float
) -> list[JobEffect]:
    """Note one node's answer about its workers; if it is the last one, end the question."""
    inquiry = _inquiry(job)
    if inquiry is None or report.number != inquiry.number:
        return []
    node_id = ref.node_id
    if node_id not in inquiry.awaited:
        return []
    note_step(job, report.furthest)
    inquiry.awaited.discard(node_id)
    known = report.known, report.is_waited_for
    inquiry.found.append(hang.StepsFound(node_id, report.behind, report.furthest, *known))
    return [] if inquiry.awaited else _end_inquiry(job, at)


def _end_inquiry(job: JobState, at: float) -> list[JobEffect]:
    """End the open question about a hang, as all nodes have answered, or the time for it is over.

    The worker that is blamed counts as failed, unless its node has succeeded or gone since. If none
    is blamed, report why no worker hangs.
    """
    inquiry, job.inquiry = _inquiry(job), None
    if inquiry is None:
        return []
    blamed = hang.blamed(inquiry.found, job.world_workers)
    if blamed is None:
        why = "every worker has made progress since"
        if any(one.is_waited_for for one in inquiry.found):
            why = "a worker is in a phase that may take longer"
        return [kinds.HANG_SUSPECTED(f"{why}: no worker hangs")]
    node_id, failure = blamed
    member = job.round.members.get(node_id)
    if member is None or member.state is not MemberState.RUNNING or member.succeeded:
        # The others may have waited for it; whoever still hangs is suspected again.
        text = f"the workers of node {node_id}, which were behind, have succeeded since: none hangs"
        return [kinds.HANG_SUSPECTED(text)]
    return _failed(job, member.ref, Failed(stamp(job, inquiry.round), (failure,)), at)


def _inquiry(job: JobState) -> hang.Inquiry | None:
    """Return the open question about a hang, if its round is active."""
    inquiry = job.inquiry
    return inquiry if inquiry is not None and is_active(job.round, inquiry.round) else None


def _joins(event: JobEvent) -> TypeGuard[NodeJoined | FromNode]:
    return isinstance(event, NodeJoined) or (
        isinstance(event, FromNode) and isinstance(event.message, Join)
    )


def _takes_part(job: JobState, ref: NodeRef) -> bool:
    members = job.round.members
    return is_member(job, ref) and members[ref.node_id].state is MemberState.RUNNING


def _is_report_due(job: JobState, ref: NodeRef, round_: int) -> bool:
    """Return whether the node is in this round, which is active, or which it has yet to stop."""
    if not is_member(job, ref):
        return False
    state, member = job.round, job.round.members[ref.node_id]
    if state.phase is RoundPhase.ACTIVE:
        return round_ == state.round and member.state is MemberState.RUNNING
    return round_ == state.round - 1 and member.state is MemberState.STOPPING
