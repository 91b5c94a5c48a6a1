"""How a job ended (behaviour A7): its exit code, its last lines, and the first cause. Pure.

The first line is the whole answer. Indented lines follow: the error of the first cause, where to
read more, and what to do. Failures that followed from the first cause are only counted.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from datetime import tzinfo

from msgspec.structs import asdict, replace

from rallypoint.agent.run import JobEnd
from rallypoint.cli.render import PROGRAM, clock_text, duration_text
from rallypoint.cli.watch.goodput_text import end_lines
from rallypoint.config import FailureReport, StopConfig
from rallypoint.core.cause import describe
from rallypoint.core.model import Cause, Ending, Outcome
from rallypoint.core.node.events import Finish
from rallypoint.core.outcomes import ALREADY_SUCCEEDED, BY_CLASS, NO_PROGRESS, SIGNALLED
from rallypoint.core.settings import FOR_DIRECTORIES
from rallypoint.core.text import (
    CANT_START,
    HOST_LEAVES,
    LEFT,
    NOT_NEEDED,
    STACKS,
    count,
    job_name,
    signal_name,
)
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.core.worker_exits import OUT_OF_MEMORY, WorkerExit
from rallypoint.errors import RallypointError

CLOCKS_DIFFER_S = 10.0
"""Another node, whose clock differs, may end the job up to this many seconds before the time that
`--stop-before` gives this one."""
_INDENT = "    "
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}
_SIGNAL_FIRST = r"\Akilled by SIG[A-Z0-9]+: "
"""The beginning of a message that repeats the first line of the report."""
_NO_PROGRESS = r"\(--max-no-progress \d+\)"
"""The pattern of the option, in a reason, by which repeated failures have ended the job."""
_MORE_SHARED_MEMORY = (
    "most often /dev/shm is full: give the container more (docker --shm-size, an emptyDir of "
    "medium Memory), or use fewer processes for loading data. Otherwise a mapped file was truncated"
)
_RUN_AGAIN = (
    "what to do: give another --rdzv-id to run it again; "
    "--exit-code already-succeeded=N ends such a run with N instead of 0"
)


class VerdictView(Ending, frozen=True, kw_only=True):
    """The facts that an agent's last lines tell of the job's end."""

    run_id: str
    elapsed_s: float
    max_restarts: int
    ended_s_ago: float | None = None
    """The seconds since the end of a job that had ended before this node joined; None: it is not
    known to have."""
    goodput: GoodputView | None = None
    """The use of the job's time, if known."""
    advice: str = ""
    """The next step for the user, where no worker has caused the end; empty: none."""

    @property
    def failure(self) -> WorkerExit | None:
        """The failure of the worker that caused the end, if one did."""
        return self.cause.failure if self.cause is not None else None


def verdict_lines(
    view: VerdictView, *, quiet: bool = False, whole: bool = True, zone: tzinfo | None = None
) -> tuple[str, ...]:
    """Return the last lines of an agent, which tell how the job ended.

    A success is one line, with one more on the goodput of a longer job or one with faults, or
    nothing if `quiet`. A run that started nothing always says so: a script that runs a job again by
    mistake has no other sign of it. A failure is one line if not `whole`.
    """
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
        first = f"{job} succeeded in {_took_text(view.elapsed_s)}{after}"
        return (first, *(_INDENT + line for line in end_lines(view.goodput)))
    if view.outcome is Outcome.CANCELLED and view.reason.startswith("cancelled "):
        return (f"{job} was {view.reason}",)
    if view.reason.startswith(CANT_START):
        return (f"{PROGRAM}: {CANT_START} of {name}{view.reason.removeprefix(CANT_START)}",)
    if view.reason.startswith(LEFT):
        why = view.reason.removeprefix(LEFT)
        return (f"{PROGRAM}: this node left {name} in round {view.round}{why}",)
    if view.cause is None or view.failure is None:
        first = f"{job} {view.outcome.row.verb} in round {view.round}: {view.reason}"
        lines = [*end_lines(view.goodput)]
        lines += [f"what to do: {view.advice}"] if view.advice else []
        return (first, *(_INDENT + line for line in lines if whole))
    node, failure = view.cause.node_id, view.failure
    what = _what_happened(node, failure, zone)
    first = f"{job} {view.outcome.row.verb}: {what} in round {view.round}"
    if view.no_progress:
        option = re.search(_NO_PROGRESS, view.reason)
        first += f"; {view.no_progress}, restarting does not help"
        first += f" {option[0]}" if option else ""
    if not whole:
        return (f"{first}; {_file(node, failure)}" if failure.log_file else first,)
    return (first, *(_INDENT + line for line in _details(view, view.cause, failure)))


def _took_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else duration_text(seconds)


def _what_happened(node: str, failure: WorkerExit, zone: tzinfo | None) -> str:
    role = "" if failure.role == "default" else f"role {failure.role}, "
    who = f"rank {failure.rank} ({role}node {node}, local rank {failure.local_rank}"
    how = "hung" if failure.returncode is None else replace(failure, reason="").clause()
    pid = f", pid {failure.pid}" if failure.pid else ""
    return f"{who}{pid}) {how} at {clock_text(failure.wall_time, zone, precise=True)}"


def _details(view: VerdictView, cause: Cause, failure: WorkerExit) -> Iterator[str]:
    if failure.message and not _says_no_more(failure):
        yield f"error: {re.sub(_SIGNAL_FIRST, '', failure.message)}"
    if failure.detail:
        heading, lines = _headed(failure)
        yield heading
        for line in lines:
            yield f"  | {line}".rstrip()
    if failure.log_file:
        yield _file(cause.node_id, failure)
    if cause.collateral:
        yield f"{count(cause.collateral, 'other worker')} failed because of it"
    if view.restarts:
        yield f"restarts: {view.restarts} of {view.max_restarts} used"
    yield from end_lines(view.goodput)
    advice = _advice(view, cause.node_id, failure)
    if advice:
        yield f"what to do: {advice}"


def _file(node: str, failure: WorkerExit) -> str:
    """Return the file to read, and its node: the stacks of a hung worker, or else the log."""
    label = "stacks" if failure.returncode is None else "log"
    return f"{label}: {failure.log_file} (on {node})"


def _headed(failure: WorkerExit) -> tuple[str, list[str]]:
    from rallypoint.process.causes.told import detail_is_traceback

    lines = failure.detail.splitlines()
    if lines[0] == STACKS:
        return STACKS, lines[1:]
    return "its traceback:" if detail_is_traceback(failure) else "its last lines on stderr:", lines


def _says_no_more(failure: WorkerExit) -> bool:
    """Return whether the failure's message adds nothing to the other lines of the report."""
    if failure.signal is not None:
        return failure.message == f"killed by {signal_name(failure.signal)}"
    return failure.message.startswith(f"exit code {failure.code}")


def _advice(view: VerdictView, node: str, failure: WorkerExit) -> str:
    """Return the next step that the evidence suggests; empty: none."""
    says_more = bool(failure.message) and not _says_no_more(failure)
    if failure.signal == signal.SIGKILL and OUT_OF_MEMORY in failure.message:
        return "have the workers use less memory, or give the container more"
    if failure.signal == signal.SIGKILL and not says_more:
        return (
            f"something outside the job killed it; most often it ran out of memory: "
            f"look for its pid in the kernel log of {node} (dmesg -T)"
        )
    if failure.signal == signal.SIGBUS:
        return _MORE_SHARED_MEMORY
    if failure.signal in _CRASHES:
        if any(line.startswith("Current thread 0x") for line in failure.detail.splitlines()):
            return ""
        return "native code crashed: a core dump (ulimit -c unlimited) shows where"
    if failure.message.startswith("--logs-specs"):
        return "repair the package, or leave --logs-specs out"
    if failure.code in (126, 127) and not failure.detail and _says_no_more(failure):
        return "check that the program exists on that node and may be executed"
    if not failure.detail and not failure.log_file and not says_more:
        return "run again with --log-dir DIR --tee 3 to keep what each worker writes"
    if view.restarts == 0 and view.max_restarts == 0 and failure.signal is not None:
        return "allow restarts with --max-restarts N if this can happen by chance"
    return ""


def of_finish(stop: StopConfig, finish: Finish, elapsed_s: float) -> int:
    """Return the agent's exit code: 128 + n for an end by a signal, else that of the class.

    `stop` may replace codes of classes. `elapsed_s` is how long this node took part, in seconds.
    From 10 s before the time at which this node leaves, by --stop-before, a signal other than
    SIGINT counts as a failure of the infrastructure.
    """
    name, verdict = finish.outcome.exit_class, finish.verdict
    leave_in_s = stop.leave_in_s
    is_due = leave_in_s is not None and elapsed_s > leave_in_s - CLOCKS_DIFFER_S
    if not name and is_due and finish.signal != signal.SIGINT:
        name = Outcome.INFRASTRUCTURE.exit_class
    if not name:
        return SIGNALLED + finish.signal
    finer = ""
    if verdict is not None and finish.outcome is Outcome.SUCCEEDED:
        finer = ALREADY_SUCCEEDED if verdict.ended_s_ago is not None else ""
    if verdict is not None and finish.outcome is Outcome.FAILED:
        finer = NO_PROGRESS if verdict.no_progress else ""
    return stop.exit_code(name, finer)


NEAR_LIMIT_S = 60.0
"""How long before its time limit a scheduler may send its signal, in seconds."""
FEW_NODES = 4
"""The most nodes of a job in which, with `--report auto`, each node prints the whole report."""


def verdict_view(
    end: JobEnd,
    goodput: GoodputView | None = None,
    max_restarts: int = 0,
    stop: StopConfig | None = None,
) -> VerdictView:
    """Return the facts for an agent's last lines.

    `goodput`: of the whole job, if that is known. `max_restarts`: the value that this node was
    started with, which counts if it has left or has no verdict of the job. `stop`: how this node
    was to be stopped; None: no advice.
    """
    how, verdict = end.finish.ending, end.finish.verdict
    view = VerdictView(
        **asdict(how), run_id=end.run_id, elapsed_s=end.elapsed_s, max_restarts=max_restarts
    )
    if how.has_left or verdict is None:
        restarts = 0 if end.place is None else end.place.restart_count
        return replace(view, round=end.round, restarts=restarts)
    return replace(
        view,
        max_restarts=verdict.max_restarts,
        reason=_reason(verdict.text, verdict.cause),
        ended_s_ago=verdict.ended_s_ago,
        goodput=goodput,
        advice="" if stop is None else advice_on_leaving(verdict.text, end.elapsed_s, stop),
    )


def prints_whole(report: FailureReport, end: JobEnd, max_nodes: int) -> bool:
    """Return whether this node prints the whole report of a failure, not one line.

    `--report auto`: each node of a job of at most 4 nodes; else node rank 0, and the node with the
    first cause.
    """
    is_rank_0 = end.place is not None and end.place.group_rank == 0
    if report is not FailureReport.AUTO:
        return report is FailureReport.ALL or (report is FailureReport.RANK0 and is_rank_0)
    nodes = max_nodes if end.place is None else end.place.group_world_size
    verdict = end.finish.verdict
    cause = verdict.cause if verdict is not None else None
    return nodes <= FEW_NODES or is_rank_0 or (cause is not None and cause.node_id == end.node)


def kept_text(how: Ending, path: str, keep_in: str, why: str) -> str:
    """Return a line on where the end of a job is kept, or why it is not.

    `path` is its file, empty if none was written. Empty: nothing is to be kept.
    A job may continue without this node, and so have no end yet.
    """
    if path and how.has_left:
        return f"this node's record of the job is kept: rallypoint status {path}"
    if path:
        return f"its end is kept: rallypoint status {path}"
    if why and how.has_left:
        return f"this node's record of the job could not be kept in {keep_in}: {why}"
    return f"its end could not be kept in {keep_in}: {why}" if why else ""


def advice_on_leaving(reason: str, elapsed_s: float, stop: StopConfig) -> str:
    """Return the advice for a job that ended because the node hosting its coordinator left.

    It names shared records, or `--stop-before` near or after the time limit. Empty: none applies.
    `elapsed_s` is how long this node took part.
    """
    if HOST_LEAVES not in reason:
        return ""
    if stop.limit_in_s is not None and elapsed_s > stop.limit_in_s - NEAR_LIMIT_S:
        if stop.leave_in_s is not None:
            return ""
        return "the time limit is over: with --stop-before 120 workers save a checkpoint before it"
    shared = (
        f"--rdzv-backend {FOR_DIRECTORIES} --rdzv-endpoint DIR, a directory that all nodes share"
    )
    others = "lets the other nodes continue when one leaves"
    if stop.is_slurms:
        return f"{shared}, {others}"
    return f"{shared}, {others}; so does a coordinator on another machine (rallypoint serve)"


def _reason(text: str, cause: Cause | None) -> str:
    if cause is None or cause.failure is not None:
        return text
    return f"{text}; first {describe(cause)}"


def ending(error: BaseException) -> Ending:
    """Return the ending of the job, as this agent knows it, for an error that ended the agent."""
    if isinstance(error, RallypointError):
        return Ending(BY_CLASS[error.exit_class], str(error))
    return Ending(Outcome.INFRASTRUCTURE, f"{type(error).__name__}: {error}")
