"""From how an agent ended to what its last lines show. Pure."""

from __future__ import annotations

import signal

from rallypoint.agent.job_end import JobEnd
from rallypoint.cli.verdict_text import FirstCause, VerdictView
from rallypoint.config import FailureReport
from rallypoint.core.cause import describe
from rallypoint.core.group_events import Finish, FinishKind
from rallypoint.core.model import Cause, Outcome
from rallypoint.core.wording import signal_name

FEW_NODES = 4
"""So many whole reports are read as easily as one."""


def verdict_view(end: JobEnd) -> VerdictView:
    """What to show of it."""
    finish, verdict = end.finish, end.finish.verdict
    if finish.kind is not FinishKind.VERDICT or verdict is None:
        return VerdictView(
            outcome=_without_verdict(finish),
            run_id=end.run_id,
            round=end.round,
            elapsed_s=end.elapsed_s,
            restarts=0,
            max_restarts=0,
            reason=finish.text,
        )
    return VerdictView(
        outcome=verdict.outcome,
        run_id=end.run_id,
        round=verdict.round,
        elapsed_s=end.elapsed_s,
        restarts=verdict.restarts_used,
        max_restarts=verdict.max_restarts,
        reason=_reason(verdict.text, verdict.cause),
        cause=_first_cause(verdict.cause),
        collateral=verdict.cause.collateral if verdict.cause else 0,
        ended_s_ago=verdict.ended_s_ago,
    )


def prints_whole(report: FailureReport, end: JobEnd, max_nodes: int) -> bool:
    """Whether this node prints the whole report of a failure."""
    is_rank_0 = end.place is not None and end.place.group_rank == 0
    if report is not FailureReport.AUTO:
        return report is FailureReport.ALL or (report is FailureReport.RANK0 and is_rank_0)
    nodes = max_nodes if end.place is None else end.place.group_world_size
    verdict = end.finish.verdict
    cause = verdict.cause if verdict is not None else None
    return nodes <= FEW_NODES or is_rank_0 or (cause is not None and cause.node_id == end.node)


def _without_verdict(finish: Finish) -> Outcome:
    """What became of the job, for all that this node knows."""
    if finish.kind is not FinishKind.SIGNAL:
        return Outcome.INFRASTRUCTURE
    return Outcome.CANCELLED if finish.signal == signal.SIGINT else Outcome.PREEMPTED


def _reason(text: str, cause: Cause | None) -> str:
    if cause is None or cause.failure is not None:
        return text
    return f"{text}; first {describe(cause)}"


def _first_cause(cause: Cause | None) -> FirstCause | None:
    if cause is None or cause.failure is None:
        return None
    failure = cause.failure
    return FirstCause(
        node=cause.node_id,
        rank=failure.rank,
        local_rank=failure.local_rank,
        role=failure.role,
        pid=failure.pid,
        at=failure.wall_time,
        exit_code=failure.exit_code,
        signal=None if failure.signal is None else signal_name(failure.signal),
        message=failure.message,
        detail=tuple(failure.detail.splitlines()),
        detail_is_traceback=failure.detail.lstrip().startswith("Traceback"),
        log_file=failure.log_file,
    )
