"""The beginning and the end of a job's rounds: the world that is formed, and the judgement."""

from __future__ import annotations

from math import inf
from typing import assert_never

from msgspec.structs import replace

from rallypoint.config import Endpoint
from rallypoint.core import cause as causes
from rallypoint.core import event_kinds as kinds
from rallypoint.core import fitness, job_fitness, restarts
from rallypoint.core import text as words
from rallypoint.core.events import (
    Effect,
    ExpelNode,
    FormWorld,
    JoinTimedOut,
    NodeJoined,
    NodeLeft,
    ProveNode,
    RefuseNode,
    RoundEvent,
    RoundReleased,
    RoundSettled,
    RoundStarted,
    StandingChanged,
    StopDelayed,
    StopRound,
    TooManyLosses,
    WorldSucceeded,
)
from rallypoint.core.fitness import Judgement, why_held_back
from rallypoint.core.fitness_state import Why
from rallypoint.core.job_state import JobEffect, JobState, close, renumber, stamp, workers_started
from rallypoint.core.messages import Assigned, Expelled, StopNow, ToNode
from rallypoint.core.model import (
    Assignment,
    Cause,
    EndKind,
    EndReason,
    NodeLoss,
    NodeRef,
    Outcome,
    SharedSettings,
)
from rallypoint.core.ranks import worker_ranks
from rallypoint.core.round import count_loss
from rallypoint.core.round import step as step_round
from rallypoint.core.round_state import MemberState
from rallypoint.core.settings import MAX_SECONDS, MAX_TOLD_BYTES, MAX_TOLD_WORKERS
from rallypoint.core.text import named
from rallypoint.core.watch.names import gaps_in_names
from rallypoint.core.watch.turns import RoundEnded, RoundFormed, RoundJudged

QUOTES = len('"",')
"""The number of characters that a list in JSON needs for an address besides its own: two quotes and
a comma."""


def run_round(job: JobState, event: RoundEvent, at: float) -> list[JobEffect]:
    """Pass an event to the rounds' state machine, carry out its effects; return the job's."""
    was_here = isinstance(event, NodeJoined) and is_member(job, event.ref)
    asked = step_round(job.round, event)
    effects: list[JobEffect] = []
    if isinstance(event, NodeJoined) and not was_here and is_member(job, event.ref):
        held = why_held_back(job.round, event.ref.node_id)
        how = f"; it is {held}" if held and held != fitness.UNPROVEN else ""
        joined = kinds.NODE_JOINED(node_id=event.ref.node_id, node=event.ref, how=how)
        effects.append(joined)
    for effect in asked:
        if job.verdict is None:
            effects += perform(job, effect, at)
    return effects


def is_member(job: JobState, ref: NodeRef) -> bool:
    """Return whether this agent has joined the job, and has not gone."""
    member = job.round.members.get(ref.node_id)
    return member is not None and member.ref == ref


def perform(job: JobState, effect: Effect, at: float) -> list[JobEffect]:
    """Carry out an effect of the state machine of rounds, and return the job's effects."""
    match effect:
        case FormWorld():
            return _form(job, effect, at)
        case StopRound(round_, reason):
            job.ended_at = at
            faults = [report.happened_at for report in job.reports]
            faults += [loss.last_heard_at for loss in job.losses]
            # Of what happened before a takeover nobody knows when.
            known = [fault for fault in faults if fault > 0]
            age_s = min(max(at - min(known), 0.0), MAX_SECONDS) if known else None
            return _stop(job, round_, replace(reason, age_s=age_s))
        case StopDelayed():
            text = _many_are_slow_to_stop(effect, job.round.settings)
            return [kinds.PATIENCE(text)]
        case RoundSettled(round_):
            return _judge(job, round_, at)
        case WorldSucceeded():
            return close(job, Outcome.SUCCEEDED, "all workers exited with code 0")
        case JoinTimedOut():
            return close(job, Outcome.TIMED_OUT, _nobody_came(job.round.settings, effect))
        case TooManyLosses(count):
            text = _too_many_lost(count, job.round.settings)
            if job.breakdown is not None:
                text += f"; now {job.breakdown.text}"
            return close(job, Outcome.INFRASTRUCTURE, text, cause=True)
        case ExpelNode(ref, why, final):
            is_open = job.end_reason is not None and job.end_reason.kind is EndKind.FAILURE
            if is_open and not final and job.judged_round != job.round.round:
                # It would not stop, and may have been silent for less than a lease: what tells of
                # a lost peer follows from that.
                job.losses.append(NodeLoss(ref.node_id, at, why))
            record = kinds.NODE_EXPELLED(node_id=ref.node_id, node=ref, why=why)
            return [ToNode(ref, Expelled(stamp(job), why, final)), record]
        case RefuseNode():
            return [effect]
        case ProveNode(ref):
            return job_fitness.ask_to_prove(job, ref)
        case _:
            assert_never(effect)


def former_life_gone(job: JobState, at: float) -> list[JobEffect]:
    """Let the first round form, as no worker of the job's former life can be left.

    Does nothing if the round did not wait for that.
    """
    if not job.former:
        return []
    job.former = 0
    return run_round(job, RoundReleased(job.round.round), at)


def _form(job: JobState, effect: FormWorld, at: float) -> list[JobEffect]:
    if job.next_incarnation:
        renumber(job, job.next_incarnation)
    first = job.end_reason is None
    why = "the first round" if job.end_reason is None else job.end_reason.text
    after = None if job.end_reason is None else job.end_reason.kind
    job.assigned = _assignments(effect, job.ledger.total, why, after)
    if "tensorflow" in job.round.settings.env_styles:
        job.assigned = _told_of_each_other(job.assigned, effect)
    job.reports, job.losses, job.breakdown, job.store_lost = [], [], None, None
    job.last_end, job.end_reason = job.end_reason, None
    job.enrolled, job.drained, job.stopped, job.succeeded_at = set(), set(), set(), {}
    job.told_to_go, job.phases = {}, {}
    job.unreached, job.lacking, job.withdrawn = {}, {}, 0
    enrols = len(effect.world) > 1 and effect.world[0].candidate.enrols
    job.started, job.started_at = not enrols, None
    if job.started:
        workers_started(job, at)
        step_round(job.round, RoundStarted(effect.round))
    nodes = len(effect.world)
    job.world_workers = sum(node.candidate.workers for node in effect.world)
    job.turns.append(RoundFormed(effect.round, frozenset(job.assigned), job.world_workers, why))
    size = f"{words.count(nodes, 'node')}, {words.count(job.world_workers, 'worker')}"
    text = f"round {effect.round}: {size}"
    effects: list[JobEffect] = [kinds.ROUND_FORMED(text if first else f"{text} ({why})")]
    place = stamp(job, effect.round)
    effects += [
        ToNode(node.ref, Assigned(place, job.assigned[node.ref.node_id])) for node in effect.world
    ]
    return effects


def _assignments(
    formed: FormWorld, restart_count: int, why: str, after: EndKind | None
) -> dict[str, Assignment]:
    """Return the assignment of each node, by node id. O(N) together, O(1) each."""
    world = formed.world
    master = world[0].candidate
    world_size = sum(node.candidate.workers for node in world)
    return {
        node.ref.node_id: Assignment(
            round=formed.round,
            group_rank=group_rank,
            group_world_size=len(world),
            base_rank=ranks.base_rank,
            world_size=world_size,
            base_role_rank=ranks.base_role_rank,
            role_world_size=ranks.role_world_size,
            master_addr=master.address,
            master_port=master.store_port,
            restart_count=restart_count,
            why=why,
            enrol=len(world) > 1 and master.enrols,
            after=after,
            coordinator_port=next(iter(master.ports), 0),
        )
        for group_rank, (node, ranks) in enumerate(zip(world, worker_ranks(world), strict=True))
    }


def _told_of_each_other(
    assigned: dict[str, Assignment], formed: FormWorld
) -> dict[str, Assignment]:
    """Return the assignments with the addresses of all workers added, for TF_CONFIG. O(N) each.

    They are unchanged if the addresses are too many or too long.
    """
    addresses = tuple(
        str(Endpoint(node.candidate.address, port))
        for node in formed.world
        for port in node.candidate.ports[1:]
    )
    size = sum(len(address) + QUOTES for address in addresses)
    if len(addresses) > MAX_TOLD_WORKERS or size > MAX_TOLD_BYTES:
        return assigned
    return {
        node_id: replace(place, worker_addresses=addresses) for node_id, place in assigned.items()
    }


def stop_order(job: JobState, round_: int, reason: EndReason) -> StopNow:
    """Return the message that tells a node to end this round."""
    return StopNow(stamp(job, round_), reason)


def _stop(job: JobState, round_: int, reason: EndReason) -> list[JobEffect]:
    job.end_reason = reason
    job.turns.append(RoundEnded(round_, reason, _is_hang(job, reason)))
    stop = stop_order(job, round_, reason)
    effects: list[JobEffect] = [
        ToNode(member.ref, stop)
        for member in job.round.members.values()
        if member.state is MemberState.STOPPING
    ]
    kind = kinds.ROUND_CHANGED if reason.kind.is_planned else kinds.ROUND_ENDED
    return [kind(node_id=reason.node_id, round=round_, why=reason.text), *effects]


def _is_hang(job: JobState, reason: EndReason) -> bool:
    """Return whether the round was ended because a worker made no progress."""
    ends = [report.failure for report in job.reports if report.node_id == reason.node_id]
    return any(one.code is None and one.signal is None and one.reason for one in ends)


def _judge(job: JobState, round_: int, at: float) -> list[JobEffect]:
    if job.judged_round == round_:
        return []
    job.judged_round = round_
    assert job.end_reason is not None
    job.reports = _reports_that_count(job, job.end_reason)
    if job.store_lost is not None and job.end_reason.kind is EndKind.FAILURE:
        job.losses.append(job.store_lost)
    effects = _send_away(job, at)
    cause = causes.first_cause(round_ - 1, job.reports, job.losses, job.breakdown)
    job.last_cause = cause
    if job.verdict is not None:
        return effects
    lived_s = inf if job.started_at is None else job.ended_at - job.started_at
    reach = restarts.StepReach(job.furthest_step, lived_s)
    if cause is None or cause.failure is None:
        return effects + _judge_without_failure(job, round_, cause, reach, at)
    return effects + _judge_failure(job, round_, cause, reach, at)


def presumed_cause(job: JobState) -> Cause | None:
    """Return the presumed first cause of a round's end that has not been judged yet.

    Some of its nodes may still stop their workers, and report. None: no round is ending, or neither
    a worker nor a node is to blame.
    """
    if job.end_reason is None or job.judged_round == job.round.round or job.verdict is not None:
        return None
    losses = job.losses
    if job.store_lost is not None and job.end_reason.kind is EndKind.FAILURE:
        losses = [*losses, job.store_lost]
    reports = _reports_that_count(job, job.end_reason)
    return causes.first_cause(job.round.round - 1, reports, losses, job.breakdown)


def _reports_that_count(job: JobState, reason: EndReason) -> list[causes.NodeFailure]:
    """Return the failures that may be the first cause of this end of a round."""
    if reason.kind is EndKind.REQUEST:
        return []  # The workers were to be stopped, whatever had happened to one of them.
    reports = job.reports
    if reason.kind is not EndKind.FAILURE:
        # What fails after a round was ended for another reason fails because of that end.
        reports = [r for r in reports if r.happened_at <= job.ended_at]
    if reason.kind in (EndKind.LOSS, EndKind.DRAIN):
        # A failure that only tells of a lost peer yields to the loss, also of a node that is back,
        # and to a node that leaves.
        reports = causes.without_consequences(reports, {reason.node_id})
    return causes.without_collateral_of_drains(reports, job.told_to_go)


def _judge_without_failure(
    job: JobState, round_: int, cause: Cause | None, reach: restarts.StepReach, at: float
) -> list[JobEffect]:
    """Judge the end of a round for which no worker is to blame: nothing is charged.

    The next round may form.
    """
    assert job.end_reason is not None
    if job.breakdown is not None and job.end_reason.kind is EndKind.FAILURE:
        text, node_id = job.breakdown.text, job.breakdown.node_id
        job.end_reason = EndReason(EndKind.INFRASTRUCTURE, text, node_id)
    if cause is not None and job.end_reason.kind is EndKind.FAILURE:
        job.end_reason = EndReason(EndKind.LOSS, causes.describe(cause), cause.node_id)
    if len(job.losses) > 1 and job.end_reason.kind is EndKind.LOSS:
        # Those that were lost with the first, which alone was known when the round ended.
        text = causes.describe_losses(job.losses)
        job.end_reason = EndReason(EndKind.LOSS, text, job.end_reason.node_id)
    is_planned = job.end_reason.kind.is_planned
    job.crash_loop = restarts.after_another_end(job.crash_loop, reach, is_planned=is_planned)
    _note_judgement(job, round_ - 1, job.end_reason.text)
    effects: list[JobEffect] = []
    if cause is not None and cause.loss is job.store_lost:
        machine = job_fitness.name_of(job.round, cause.node_id)
        # It ends this round after all.
        for effect in count_loss(job.round, machine, cause.node_id):
            effects += perform(job, effect, at)
    return effects + run_round(job, RoundReleased(round_), at)


def _judge_failure(
    job: JobState, round_: int, cause: Cause, reach: restarts.StepReach, at: float
) -> list[JobEffect]:
    """Judge the end of a round for which a worker is to blame.

    The failure is charged to the restart budget, unless its machine alone is at fault; an earlier
    one may be charged after all. Then the next round may form, if need be after a backoff, or the
    job ends.
    """
    assert job.end_reason is not None
    assert cause.failure is not None
    blame, said = causes.describe(cause), job.end_reason.text
    settings, failure = job.round.settings, cause.failure
    is_final = failure.code in settings.no_restart_exit_codes
    is_final = is_final or failure.message.startswith(words.UNGUARDED)
    judged = Judgement(1) if is_final else job_fitness.judge(job, cause)
    effects: list[JobEffect] = []
    if failure.message.startswith(words.CANT_LOG):
        node = cause.node_id
        effects.append(kinds.LOG_STORAGE_THERE(failure.message, node=node, node_id=node))
    for machine in filter(None, (judged.held, judged.released)):
        effects += run_round(job, StandingChanged(machine), at)
    job.end_reason = EndReason(EndKind.FAILURE, blame, cause.node_id)
    if not judged.charges:
        _note_judgement(job, round_ - 1, blame)
        text = f"{blame}: not charged, since {judged.text}"
        return [*effects, kinds.RESTART(text, node_id=cause.node_id), *_released(job, round_, at)]
    job.crash_loop = restarts.after_failure(job.crash_loop, failure, reach)
    decision = restarts.charge(job.ledger, settings, failure, job.crash_loop)
    if judged.charges > 1 and isinstance(decision, restarts.Restart):
        decision = restarts.charge(job.ledger, settings, failure, job.crash_loop)
    if isinstance(decision, restarts.GiveUpJob):
        job.no_progress = decision.no_progress
        text = "; ".join(filter(None, (blame, judged.text, decision.reason)))
        _note_judgement(job, round_ - 1, text)
        return effects + close(job, Outcome.FAILED, text, cause=True)
    _note_judgement(job, round_ - 1, blame)
    # Told once: the end of the round has named the culprit, unless it was found since.
    text = restarts.describe(decision, "" if blame == said else blame)
    if judged.text:
        text += f"; {judged.text}"
    effects.append(kinds.RESTART(text, node_id=cause.node_id))
    if decision.delay_s:
        job.backoff_s = decision.delay_s
        return effects
    return effects + _released(job, round_, at)


def _released(job: JobState, round_: int, at: float) -> list[JobEffect]:
    return run_round(job, RoundReleased(round_), at)


def _send_away(job: JobState, at: float) -> list[JobEffect]:
    """Expel the nodes whose machines lack a resource for workers, if enough others remain.

    Their machines are held back, and they count as lost instead of failed.
    """
    effects: list[JobEffect] = []
    for node_id, lacking in job_fitness.leaving(job):
        machine = job_fitness.name_of(job.round, node_id)
        if not fitness.minimum_remains(job.round, machine):
            continue
        report = next((r for r in job.reports if r.node_id == node_id), None)
        said = job_fitness.words_of(lacking) if report is None else report.failure.message
        why = f"it can't start workers: {said}"
        job.reports = [r for r in job.reports if r.node_id != node_id]
        job.losses.append(NodeLoss(node_id, at if report is None else report.happened_at, why))
        fitness.hold_back(job.round, machine, node_id, Why.LACKING, why)
        member = job.round.members.get(node_id)
        if member is not None:
            effects.append(kinds.NODE_EXPELLED(node_id=node_id, node=member.ref, why=why))
            effects.append(ToNode(member.ref, Expelled(stamp(job), why, True)))
            effects += run_round(job, NodeLeft(member.ref), at)
        effects += run_round(job, StandingChanged(machine), at)
    return effects


def _note_judgement(job: JobState, round_: int, text: str) -> None:
    assert job.end_reason is not None
    job.turns.append(RoundJudged(round_, job.end_reason, text, job.last_cause))


def _nobody_came(settings: SharedSettings, timeout: JoinTimedOut) -> str:
    """Return the sentence for the end of a job for which too few nodes have joined.

    It says how long it has waited, which nodes have joined, and, if known, which are missing.
    """
    waited = f"waited {settings.join_timeout_s:g} s for {words.count(settings.min_nodes, 'node')}"
    if len(timeout.joined) >= settings.min_nodes:
        waited += (
            f" with a multiple of {settings.world_multiple_of} workers ({named.world_multiple_of})"
        )
    here = f"only {len(timeout.joined)} joined: {words.names(timeout.joined) or 'none'}"
    missing = f"; missing: {words.names(timeout.missing)}" if timeout.missing else ""
    gaps = gaps_in_names(timeout.joined)
    if not missing and 0 < len(gaps) <= settings.min_nodes - len(timeout.joined):
        missing = f"; by the names of the others, missing: {words.names(tuple(gaps))}"
    held_back = ""
    if timeout.held_back:
        held_back = f"; did not reach the round store: {words.names(timeout.held_back)}"
    return f"{waited}, {here}{missing}{held_back}"


def _many_are_slow_to_stop(delayed: StopDelayed, settings: SharedSettings) -> str:
    """Return which nodes have not stopped, and how much longer they are waited for, as a clause."""
    late = f"{len(delayed.late)} of {delayed.nodes} nodes have not stopped after"
    late += f" {delayed.after_s:g} s ({words.names(delayed.late)})"
    return f"{late}: waiting up to {settings.stop_patience_s:g} s more ({named.stop_patience})"


def _too_many_lost(rounds: int, settings: SharedSettings) -> str:
    """Return why a job ends in which too many rounds in an hour have lost nodes, as a sentence."""
    limit = settings.max_node_losses_per_hour
    ended = f"{words.count(rounds, 'round')} ended within an hour"
    why = "by the loss of nodes or of Rallypoint's own processes"
    return f"{ended} {why} ({named.max_node_losses} {limit})"
