"""How a job ended (behaviour A7): its exit code, its last lines, and the first cause. Pure.

The first line is the whole answer. Indented lines follow: the error of the first cause, where to
read more, and what to do. Failures that followed from the first cause are only counted.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import tzinfo

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.run import JobEnd
from rallypoint.cli.render import PROGRAM, clock_text, duration_text, iso_text
from rallypoint.config import FailureReport
from rallypoint.core import event_kinds as kinds
from rallypoint.core.cause import describe
from rallypoint.core.group_events import Finish, FinishKind
from rallypoint.core.handler_round import NOT_NEEDED
from rallypoint.core.model import Cause, Outcome
from rallypoint.core.text import LEFT, STACKS, count, job_name, signal_name
from rallypoint.observe.printing import JsonLine, json_line
from rallypoint.observe.summary import CauseSummary

_INDENT = "    "
_RUN_AGAIN = (
    "what to do: give another --rdzv-id to run it again; "
    "--exit-code already-succeeded=N ends such a run with N instead of 0"
)


class FirstCause(Struct, frozen=True):
    """The worker whose failure came first. Exactly one of `exit_code` and `signal` says how.

    `pid` is 0 when it could not be started. `at` is seconds since the epoch. `message` is the
    error's one line, if known, `detail` the traceback or else the last lines on stderr; `log_file`
    may be empty.
    """

    node: str
    rank: int
    local_rank: int
    role: str
    pid: int
    at: float
    exit_code: int | None = None
    signal: str | None = None
    message: str = ""
    detail: tuple[str, ...] = ()
    detail_is_traceback: bool = False
    log_file: str = ""


class VerdictView(Struct, frozen=True):
    """All that the last lines show. `reason` explains an end that no worker caused.
    `ended_s_ago` is set where this node joined after the end and started nothing."""

    outcome: Outcome
    run_id: str
    round: int
    elapsed_s: float
    restarts: int
    max_restarts: int
    reason: str = ""
    cause: FirstCause | None = None
    collateral: int = 0
    ended_s_ago: float | None = None


def verdict_lines(
    view: VerdictView, *, quiet: bool = False, whole: bool = True, zone: tzinfo | None = None
) -> tuple[str, ...]:
    """The last lines. A success is one line, or none if `quiet`. A run that started nothing always
    says so: a script that runs a job again by mistake has no other sign of it. A failure is one
    line if not `whole`."""
    name = job_name(view.run_id)
    job = f"{PROGRAM}: {name}"
    if view.ended_s_ago is not None:
        how = "succeeded" if view.outcome is Outcome.SUCCEEDED else "ended"
        when = f"{how} {duration_text(view.ended_s_ago)} ago on this coordinator"
        first = f"{PROGRAM}: nothing was started: {name} {when}"
        if view.outcome is Outcome.SUCCEEDED:
            return (first, _INDENT + _RUN_AGAIN)
        return (
            first,
            *verdict_lines(replace(view, ended_s_ago=None), quiet=quiet, whole=whole, zone=zone),
        )
    if view.outcome is Outcome.SUCCEEDED and view.reason.startswith(NOT_NEEDED):
        return (f"{job}: {view.reason}",)
    if view.outcome is Outcome.SUCCEEDED:
        if quiet:
            return ()
        after = f" after {count(view.restarts, 'restart')}" if view.restarts else ""
        return (f"{job} succeeded in {_took_text(view.elapsed_s)}{after}",)
    if view.outcome is Outcome.CANCELLED and view.reason.startswith("cancelled "):
        return (f"{job} was {view.reason}",)
    if view.reason.startswith(LEFT):
        why = view.reason.removeprefix(LEFT)
        return (f"{PROGRAM}: this node left {name} in round {view.round}{why}",)
    if view.cause is None:
        how = {
            Outcome.FAILED: "failed",
            Outcome.PREEMPTED: "was preempted",
            Outcome.CANCELLED: "was cancelled",
            Outcome.TIMED_OUT: "timed out",
            Outcome.INFRASTRUCTURE: "could not continue",
        }[view.outcome]
        return (f"{job} {how} in round {view.round}: {view.reason}",)
    how = "failed" if view.outcome is Outcome.FAILED else view.outcome.value
    first = f"{job} {how}: {_what_happened(view.cause, zone)} in round {view.round}"
    if not whole:
        log = view.cause.log_file
        return (f"{first}; log: {log} (on {view.cause.node})" if log else first,)
    return (first, *(_INDENT + line for line in _details(view, view.cause)))


def _took_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else duration_text(seconds)


def _what_happened(cause: FirstCause, zone: tzinfo | None) -> str:
    role = "" if cause.role == "default" else f"role {cause.role}, "
    who = f"rank {cause.rank} ({role}node {cause.node}, local rank {cause.local_rank}"
    how = f"was killed by {cause.signal}" if cause.signal else f"exited with code {cause.exit_code}"
    if not cause.signal and cause.exit_code is None:
        how = "hung"
    pid = f", pid {cause.pid}" if cause.pid else ""
    return f"{who}{pid}) {how} at {clock_text(cause.at, zone, precise=True)}"


def _details(view: VerdictView, cause: FirstCause) -> Iterator[str]:
    if cause.message and not _says_no_more(cause):
        yield f"error: {cause.message}"
    if cause.detail:
        heading, lines = _headed(cause)
        yield heading
        for line in lines:
            yield f"  | {line}".rstrip()
    if cause.log_file:
        yield f"log: {cause.log_file} (on {cause.node})"
    if view.collateral:
        yield f"{count(view.collateral, 'other worker')} failed because of it"
    if view.restarts:
        yield f"restarts: {view.restarts} of {view.max_restarts} used"
    advice = _advice(view, cause)
    if advice:
        yield f"what to do: {advice}"


def _headed(cause: FirstCause) -> tuple[str, tuple[str, ...]]:
    if cause.detail[0] == STACKS:
        return STACKS, cause.detail[1:]
    what = "its traceback:" if cause.detail_is_traceback else "its last lines on stderr:"
    return what, cause.detail


def _says_no_more(cause: FirstCause) -> bool:
    """The message is what the first line says, or ends with what the last lines show."""
    if cause.signal:
        return cause.message == f"killed by {cause.signal}"
    return cause.message.startswith(f"exit code {cause.exit_code}")


def _advice(view: VerdictView, cause: FirstCause) -> str:
    """The next step that the evidence suggests; empty when it suggests none."""
    if cause.signal == "SIGKILL" and "out of memory" in cause.message:
        return "have the workers use less memory, or give the container more"
    if cause.signal == "SIGKILL" and (not cause.message or _says_no_more(cause)):
        return (
            f"something outside the job killed it; most often it ran out of memory: "
            f"look for its pid in the kernel log of {cause.node} (dmesg -T)"
        )
    if cause.signal in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"):
        if any(line.startswith("Current thread 0x") for line in cause.detail):
            return ""
        return "native code crashed: a core dump (ulimit -c unlimited) shows where"
    if cause.message.startswith("--logs-specs"):
        return "repair the package, or leave --logs-specs out"
    if cause.exit_code in (126, 127) and not cause.detail and _says_no_more(cause):
        return "check that the program exists on that node and may be executed"
    if not cause.detail and not cause.log_file and (not cause.message or _says_no_more(cause)):
        return "run again with --log-dir DIR --tee 3 to keep what each worker writes"
    if view.restarts == 0 and view.max_restarts == 0 and cause.signal:
        return "allow restarts with --max-restarts N if this can happen by chance"
    return ""


def verdict_json(view: VerdictView) -> JsonLine:
    """The same as one JSON object, with `event` = `verdict`."""
    cause = view.cause
    record: dict[str, object] = {
        "event": kinds.VERDICT.name,
        "outcome": view.outcome.value,
        "run_id": view.run_id,
        "round": view.round,
        "elapsed_s": round(view.elapsed_s, 3),
        "restarts": view.restarts,
        "max_restarts": view.max_restarts,
        "reason": view.reason,
        "collateral": view.collateral,
        "ended_s_ago": view.ended_s_ago,
        "cause": None if cause is None else cause_summary(cause),
    }
    return json_line(record)


def cause_summary(cause: FirstCause) -> CauseSummary:
    """The same for programs."""
    return CauseSummary(
        time=iso_text(cause.at),
        node=cause.node,
        rank=cause.rank,
        local_rank=cause.local_rank,
        role=cause.role,
        pid=cause.pid or None,
        exit_code=cause.exit_code,
        signal=cause.signal,
        message=cause.message,
        detail=cause.detail,
        detail_is_traceback=cause.detail_is_traceback,
        log_file=cause.log_file,
    )


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
