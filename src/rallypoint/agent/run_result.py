"""From how an agent ended to what a program gets: a result, or what is raised."""

from __future__ import annotations

import signal

from rallypoint.agent.job_end import JobEnd
from rallypoint.agent.worker_group import RunResult, WorkerState
from rallypoint.core.group_events import FinishKind
from rallypoint.core.model import Outcome, Verdict, WorkerFailure
from rallypoint.core.wording import LEFT
from rallypoint.errors import (
    InfrastructureError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    SignalException,
)
from rallypoint.process.process_failure import ProcessFailure


def run_result(end: JobEnd) -> RunResult:
    """SUCCEEDED, or FAILED with this node's failures and the job's first cause (behaviour A3).

    A node that was not needed has SUCCEEDED, with nothing to return (W5).

    Raises for all that workers have no part in: what the handler raised, or
    RendezvousTimeoutError, RendezvousClosedError, RendezvousConnectionError, InfrastructureError;
    SignalException when a signal ended this agent or the job, but KeyboardInterrupt if that was
    SIGINT to this agent.
    """
    finish, verdict = end.finish, end.finish.verdict
    if finish.kind in (FinishKind.EXPELLED, FinishKind.COORDINATOR_LOST):
        raise RendezvousConnectionError(finish.text or "this node was expelled from the job")
    if finish.kind is FinishKind.STUCK:
        raise InfrastructureError(finish.text)
    if verdict is not None and verdict.outcome is Outcome.SUCCEEDED:
        return RunResult(WorkerState.SUCCEEDED, dict(end.return_values), {})
    if verdict is not None and verdict.outcome is Outcome.FAILED:
        return RunResult(WorkerState.FAILED, {}, failures(end))
    if end.error is not None:
        raise end.error
    if end.caught == signal.SIGINT:
        raise KeyboardInterrupt
    if end.caught or verdict is None:
        number = signal.Signals(end.caught or finish.signal)
        raise SignalException(finish.text or f"{LEFT}: it got {number.name}", number)
    raise _no_result(verdict)


def failures(end: JobEnd) -> dict[int, ProcessFailure]:
    """By global rank; the first cause is among them, on whichever node it was."""
    known = {rank: process_failure(failure) for rank, failure in end.failures.items()}
    verdict = end.finish.verdict
    cause = verdict.cause if verdict is not None else None
    if cause is not None and cause.failure is not None:
        known[cause.failure.rank] = process_failure(cause.failure, cause.node_id)
    return known


def process_failure(failure: WorkerFailure, node: str = "") -> ProcessFailure:
    """In torch's vocabulary. The error file may be gone by now: what it said is in the message."""
    code = failure.exit_code if failure.signal is None else -failure.signal
    message, detail = failure.message, failure.detail
    made = ProcessFailure(
        failure.local_rank,
        failure.pid,
        1 if code is None else code,
        "",
        log_file=failure.log_file,
        said=message if message.endswith(detail) else f"{message}\n{detail}".lstrip("\n"),
        seen_at=failure.wall_time,
    )
    if node:
        made.node = node
    if failure.detail.lstrip().startswith("Traceback"):
        stamp = str(int(failure.wall_time))
        extra = {"py_callstack": failure.detail, "timestamp": stamp}
        made.message = {"message": failure.message, "extraInfo": extra}
    return made


def _no_result(verdict: Verdict) -> Exception:
    match verdict.outcome:
        case Outcome.TIMED_OUT:
            return RendezvousTimeoutError(verdict.text)
        case Outcome.CANCELLED | Outcome.PREEMPTED:
            return SignalException(verdict.text, signal.Signals(verdict.signal))
    if verdict.ended_s_ago is not None:
        return RendezvousClosedError(verdict.text)
    return InfrastructureError(verdict.text)
