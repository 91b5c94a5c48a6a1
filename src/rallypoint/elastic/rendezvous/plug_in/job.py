"""An agent's part of a job whose nodes use a rendezvous handler, without a coordinator. Pure.

    step(job, event, at) -> effects

The agent reports to this machine as to a coordinator, and gets the same orders from it:

    report       what follows
    Join         the next rendezvous, after the back-off of a restart; then `Assigned`
    Enrolled     `StartNow` at once; a node that could not enrol ends its part of the job
    Failed       `StopNow`. When this node's workers have stopped, the first cause is charged to
                 this agent's own budget. Once that is used up, the verdict is published for the
                 other nodes, and the job closed
    Succeeded    the exit barrier: the job has succeeded when every node has reported this
    HelperDied   `StopNow`; nothing is charged
    Drain        this node leaves, and the job goes on
    Cancel       the verdict is published, and the job closed

While a round runs, the handler is asked whether it is over. The other nodes learn of a restart here
by the handler, since this node joins again: that costs them no budget.

`at` is in seconds on one monotonic clock.
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core import restarts
from rallypoint.core.cause import Breakdown, NodeFailure, describe, first_cause
from rallypoint.core.model import (
    Cause,
    EndKind,
    EndReason,
    JobStatus,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.text import NOT_NEEDED, named
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.elastic.rendezvous.plug_in import round as e
from rallypoint.elastic.rendezvous.plug_in.round import NodeInfo, assign, next_stamp

RETRY_S = 1.0
"""The pause before a handler that failed is asked again."""
STOP_S = 1.0
"""A verdict waits this long for workers that are slow to stop."""
PUBLISH_S = 5.0
"""This node's end waits this long for the publishing of the verdict."""
NO_ROUND = Stamp(0, 0)


class HandlerRound(Struct):
    """The round that this node is, or was, in."""

    stamp: Stamp
    size: int
    reports: list[NodeFailure] = field(default_factory=list)
    """What has failed here, unless it failed because of the round's end."""
    breakdown: Breakdown | None = None
    """A helper died here."""
    ended: EndReason | None = None
    decision: restarts.RestartDecision | None = None
    verdict: Verdict | None = None
    """Of this node, if there is no further restart."""


class HandlerJob(Struct):
    """All that the machine knows. Only `step` changes it."""

    handler: str
    """Its name."""
    node: NodeInfo
    """This node's, at its next rendezvous."""
    settings: SharedSettings
    why: str = "the first round"
    """Why there is a new round."""
    ledger: restarts.Ledger = field(default_factory=restarts.Ledger)
    round: HandlerRound | None = None
    watched_at: float = 0.0
    """When the handler answered last."""
    published: Verdict | None = None
    has_stopped: bool = False
    """This node's workers have, after the failure that used up the budget."""
    verdict: Verdict | None = None
    leaving: bool = False
    closed_why: str = ""
    """Why there is no other round, if another node has closed the job without a verdict."""


def step(job: HandlerJob, event: e.HandlerEvent, at: float) -> list[e.HandlerEffect]:
    """Apply one event and return what must be done, in order. What is about another round than
    the newest has no effect."""
    match event:
        case m.Drain():
            job.leaving = True
            order = e.OrderAgent(m.LeaveNow(_stamp(job)))
            return [e.DropCalls(), e.LeaveJob(), e.Acknowledge(event), order]
        case m.Cancel(why, number):
            job.leaving = True
            verdict = _judge(job, Outcome.CANCELLED, f"cancelled on node {job.node.node_id}: {why}")
            job.verdict = replace(verdict, signal=number)
            return [e.DropCalls(), e.PublishVerdict(job.verdict, event)]
        case e.VerdictPublished():
            return _published(job, event)
        case e.ChargeExpired(entry):
            restarts.forget(job.ledger, entry)
            return []
        case e.SessionEnds():
            job.leaving = True
            return [e.DropCalls(), _parting(job)]
    if job.leaving or job.verdict is not None:
        return []
    match event:
        case m.Join():
            return _join(job)
        case m.Enrolled(stamp):
            return [e.OrderAgent(m.StartNow(stamp))]
        case m.NotEnrolled(_, text):
            text = f"node {job.node.node_id}: {text}"
            return _end(job, _judge(job, Outcome.INFRASTRUCTURE, text))
        case e.HandlerRoundFormed():
            return _formed(job, event, at)
        case e.NextRoundFailed():
            return _got_no_round(job, event)
        case e.PublishIsSlow():
            return _give_verdict(job)
        case m.Failed() | m.Detailed() | m.HelperDied() | m.Succeeded():
            return _reported(job, event, at) if event.stamp == _stamp(job) else []
        case e.RoundWatched() | e.WatchFailed() | e.AllSucceeded() | e.StopIsSlow():
            return _in_round(job, event, at) if event.stamp == _stamp(job) else []
        case _:  # checkpoints and hangs: the command line refuses these without a coordinator
            return []


def waiting(job: HandlerJob) -> m.HeartbeatAck:
    """What a person is shown while this node waits for a round."""
    status = JobStatus("active", max(job.node.last_round, 0), 0, 0, 1, 0, 0, 0, 0)
    return m.HeartbeatAck(0, _stamp(job), status)


def _stamp(job: HandlerJob) -> Stamp:
    return job.round.stamp if job.round is not None else NO_ROUND


# The next round


def _join(job: HandlerJob) -> list[e.HandlerEffect]:
    """Nothing runs here any more."""
    effects, last = _charge(job), job.round
    reason, delay_s = None, 0.0
    if last is not None:
        if last.ended is not None and last.ended.node_id == job.node.node_id:
            reason = last.ended
        match last.decision:
            case restarts.GiveUpJob():
                job.has_stopped = True
                if job.published is not None:
                    return [*effects, *_give_verdict(job)]
                return [*effects, e.RoundTimer(PUBLISH_S, e.PublishIsSlow())]
            case restarts.Restart(delay_s):
                pass
    return [
        *effects,
        e.DropCalls(),
        e.OrderAgent(waiting(job)),
        e.JoinNextRound(job.node, reason, delay_s),
    ]


def _formed(job: HandlerJob, event: e.HandlerRoundFormed, at: float) -> list[e.HandlerEffect]:
    stamp = next_stamp(event.nodes)
    if stamp.round and job.node.last_round < 0:
        job.why = event.why
    job.node = replace(job.node, incarnation=stamp.incarnation, last_round=stamp.round)
    job.round, job.watched_at = HandlerRound(stamp, len(event.nodes)), at
    assignment = assign(event.nodes, event.rank, job.why)
    return [e.OrderAgent(m.Assigned(stamp, assignment)), e.WatchRound(stamp)]


def _got_no_round(job: HandlerJob, event: e.NextRoundFailed) -> list[e.HandlerEffect]:
    match event.kind:
        case e.NoRound.NOT_NEEDED:
            job.round = None  # what the others do goes on without this node
            text = f"{NOT_NEEDED}: {event.text}"
            return _end(job, _judge(job, Outcome.SUCCEEDED, text))
        case e.NoRound.CLOSED:
            hint = (
                f"; give another {named.rdzv_id} to run it again" if job.node.last_round < 0 else ""
            )
            return _closed_by_another(job, event.text + hint, event.verdict)
        case e.NoRound.TIMED_OUT:
            return _end(job, _judge(job, Outcome.TIMED_OUT, event.text))
        case e.NoRound.FAILED:
            return _end(job, _judge(job, Outcome.INFRASTRUCTURE, event.text))


# In a round


def _reported(
    job: HandlerJob, report: m.Failed | m.Detailed | m.HelperDied | m.Succeeded, at: float
) -> list[e.HandlerEffect]:
    assert job.round is not None
    match report:
        case m.Failed(_, failures):
            return _failed(job, job.round, failures, at)
        case m.Detailed(_, failures):
            _add_details(job.round, failures)
            return _charge(job)
        case m.HelperDied(_, text):
            if job.round.breakdown is None and job.round.decision is None:
                job.round.breakdown = Breakdown(job.node.node_id, text, at)
            reason = EndReason(EndKind.INFRASTRUCTURE, text, job.node.node_id)
            return _end_round(job, job.round, reason)
        case m.Succeeded(stamp):
            return [e.AwaitSuccess(stamp)]


def _in_round(
    job: HandlerJob,
    event: e.RoundWatched | e.WatchFailed | e.AllSucceeded | e.StopIsSlow,
    at: float,
) -> list[e.HandlerEffect]:
    assert job.round is not None
    match event:
        case e.WatchFailed(stamp, text):
            if at - job.watched_at > job.settings.lease_s:  # it is as good as lost
                return [e.GiveUpHandler(f"the rendezvous handler {job.handler!r} failed: {text}")]
            return [e.WatchRound(stamp, RETRY_S)]
        case e.AllSucceeded():
            return _succeeded(job)
        case e.StopIsSlow():
            return _charge(job, workers_run=True)
        case e.RoundWatched(stamp, change):
            job.watched_at = at
            if change is e.HandlerChange.NONE:
                return [e.WatchRound(stamp)]
            if event.all_succeeded:
                return _succeeded(job)
            if change is e.HandlerChange.CLOSED:
                text = "the job was closed by another node"
                return _closed_by_another(job, text, event.verdict)
            assert event.reason is not None
            return _end_round(job, job.round, event.reason)


def _end_round(job: HandlerJob, round_: HandlerRound, reason: EndReason) -> list[e.HandlerEffect]:
    if round_.ended is not None:
        return []
    round_.ended, job.why = reason, reason.text
    return [e.OrderAgent(m.StopNow(round_.stamp, reason))]


def _failed(
    job: HandlerJob, round_: HandlerRound, failures: tuple[WorkerExit, ...], at: float
) -> list[e.HandlerEffect]:
    if not failures or (round_.ended is not None and not round_.reports):
        return []  # these failed because the round had ended
    round_.reports += [NodeFailure(job.node.node_id, failure, at) for failure in failures]
    if round_.ended is not None:
        return []
    first = first_cause(round_.stamp.round, round_.reports, ())
    assert first is not None
    reason = EndReason(EndKind.FAILURE, describe(first), job.node.node_id)
    slow = e.RoundTimer(STOP_S, e.StopIsSlow(round_.stamp))
    return [e.DropCalls(), *_end_round(job, round_, reason), slow]


def _add_details(round_: HandlerRound, failures: tuple[WorkerExit, ...]) -> None:
    """What the workers have said of their failures."""
    detailed = {failure.local_rank: failure for failure in failures}
    for report in round_.reports:
        found = detailed.get(report.failure.local_rank)
        if found is not None:
            report.failure = replace(found, age_s=report.failure.age_s)


def _charge(job: HandlerJob, *, workers_run: bool = False) -> list[e.HandlerEffect]:
    """Once all that fails here is known; but a verdict does not wait for workers that still run."""
    round_ = job.round
    if round_ is None or not round_.reports or round_.decision is not None:
        return []
    assert round_.ended is not None
    cause = _cause(round_)
    if cause is None:  # they failed because a helper had died, which is noticed later
        assert round_.breakdown is not None
        round_.reports, job.why = [], round_.breakdown.text
        round_.ended = EndReason(EndKind.INFRASTRUCTURE, job.why, job.node.node_id)
        return []
    assert cause.failure is not None
    if workers_run and isinstance(
        restarts.decide(job.ledger, job.settings, cause.failure), restarts.Restart
    ):
        return []
    blame, was_said = describe(cause), round_.ended.text
    decision = round_.decision = restarts.charge(job.ledger, job.settings, cause.failure)
    round_.ended, job.why = replace(round_.ended, text=blame), blame
    if isinstance(decision, restarts.GiveUpJob):
        round_.verdict = _judge(job, Outcome.FAILED, f"{blame}; {decision.reason}", cause)
        return [e.PublishVerdict(round_.verdict)]
    total = job.ledger.total
    job.node = replace(job.node, restarts=total)
    text = restarts.describe(decision, "" if blame == was_said else blame)
    effects: list[e.HandlerEffect] = [kinds.RESTART(text, node_id=job.node.node_id)]
    if window_s := job.settings.restart_window_s:
        effects.append(e.RoundTimer(window_s, e.ChargeExpired(str(total))))
    return effects


def _cause(round_: HandlerRound) -> Cause | None:
    return first_cause(round_.stamp.round, round_.reports, (), round_.breakdown)


# The end


def _succeeded(job: HandlerJob) -> list[e.HandlerEffect]:
    return _end(job, _judge(job, Outcome.SUCCEEDED, "all workers exited with code 0"))


def _closed_by_another(
    job: HandlerJob, text: str, verdict: Verdict | None
) -> list[e.HandlerEffect]:
    if verdict is None:
        job.closed_why = text
        verdict = _judge(job, Outcome.INFRASTRUCTURE, text)
    return _end(job, verdict)


def _published(job: HandlerJob, event: e.VerdictPublished) -> list[e.HandlerEffect]:
    if event.report is not None:
        return [e.Acknowledge(event.report)]
    job.published = event.verdict
    effects: list[e.HandlerEffect] = []
    if event.error:
        reason = EndReason(EndKind.FAILURE, event.error)
        effects.append(e.OrderAgent(m.StopNow(_stamp(job), reason)))
    return [*effects, *_give_verdict(job)] if job.has_stopped else effects


def _give_verdict(job: HandlerJob) -> list[e.HandlerEffect]:
    """The first that a node has published; of this node's own one with all that is known by now."""
    round_, verdict = job.round, job.published
    assert round_ is not None
    assert round_.verdict is not None
    if verdict is None or verdict == round_.verdict:
        verdict = replace(round_.verdict, cause=_cause(round_))
    return _end(job, verdict)


def _judge(job: HandlerJob, outcome: Outcome, text: str, cause: Cause | None = None) -> Verdict:
    used, budget = job.ledger.total, job.settings.max_restarts
    return Verdict(outcome, text, max(job.node.last_round, 0), used, budget, cause)


def _end(job: HandlerJob, verdict: Verdict) -> list[e.HandlerEffect]:
    if job.verdict is not None or job.leaving:
        return []
    job.verdict = verdict
    return [e.OrderAgent(m.Ended(_stamp(job), verdict))]


def _parting(job: HandlerJob) -> e.LeaveJob | e.CloseJob:
    """A job that has ended is closed for nodes that come late; else it goes on without this one."""
    ended = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED)
    verdict = job.verdict
    if verdict is None or job.round is None or verdict.outcome not in ended:
        return e.LeaveJob()
    return e.CloseJob(verdict.outcome is Outcome.SUCCEEDED and job.round.size > 1)
