"""An agent of real processes inside another program.

It writes events to the logger `rallypoint`. Without logging set up, Python shows warnings only, on
stderr. Logging handlers may block and heartbeats must not, so handlers run in another thread.
"""

from __future__ import annotations

import logging
from shlex import quote

from rallypoint.agent.embedding import Embedding, gets_signals
from rallypoint.agent.run import JobEnd, run_agent
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.config import AgentConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import ReportedBy
from rallypoint.core.model import Outcome, Verdict
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.core.text import brief_seconds, job_name, shown
from rallypoint.elastic.agent.embedded.worker_spec import ToldEnd, failures
from rallypoint.elastic.multiprocessing.errors import ProcessFailure
from rallypoint.errors import UsageError
from rallypoint.observe.printing import visible
from rallypoint.observe.queue import BoundedQueue
from rallypoint.observe.records import AgentEvent, Observer, StatusView
from rallypoint.process.exits import needs_main_thread

LAST_LINES_S = 2.0
"""How long the last log lines may take at the end, in seconds."""
WAIT_LOGGED_S = 5.0
"""The time for which a node without a round has waited for the same thing before it logs that, in
seconds."""

_log = logging.getLogger("rallypoint")


class JobLog(Observer):
    """The observer of an agent that writes its events to the logger `rallypoint`, in a thread.

    Call `close` when the agent has ended.
    """

    def __init__(self) -> None:
        self._lines: BoundedQueue[tuple[int, str]] = BoundedQueue(lambda line: _log.log(*line))
        self._reported_wait = ""

    def event(self, event: AgentEvent) -> None:
        if event.kind.reported_by is not ReportedBy.HOST_TO_HANDLERS:
            who = f"rallypoint {event.node}" if event.node else "rallypoint"
            self._log(event.kind.level, f"{who}: {event.message}")

    def status(self, view: StatusView) -> None:
        """Log what this node, in no round, has waited for (missing nodes, say) for 5 s already.

        The same thing is not logged twice in a row. Everything else is logged as an event.
        """
        if (
            view.nodes
            or view.for_s < WAIT_LOGGED_S
            or view.waiting_for in ("", self._reported_wait)
        ):
            return
        self._reported_wait = view.waiting_for
        wait = kinds.WAIT(what=view.waiting_for)
        self._log(wait.kind.level, f"rallypoint: {wait.text}")

    def warn(self, text: str) -> None:
        """Log a warning that is not an event."""
        self._log(logging.WARNING, f"rallypoint: {text}")

    def close(self) -> None:
        """Wait until the last lines are logged, for at most 2 s."""
        self._lines.close(LAST_LINES_S)

    def _log(self, level: int, line: str) -> None:
        if _log.isEnabledFor(level):
            self._lines.put((level, visible(line)))


def run_processes(config: AgentConfig, log: JobLog, embedding: Embedding) -> ToldEnd:
    """Run this node's part of the job to its end, and return how it ended. Blocks.

    Raises as `run_agent` does, and UsageError in a thread other than the main one where the kernel
    (before 5.3) reports exits of processes only by signals.
    """
    if not gets_signals() and needs_main_thread():
        raise UsageError(
            "this kernel reports the exits of processes only by signals: run the job in the main "
            "thread, where no event loop runs"
        )
    telemetry = Telemetry(config)
    told: dict[int, ProcessFailure] = {}

    def ended(end: JobEnd) -> None:
        telemetry.ended(end.finish)
        _keep(telemetry, end.finish)
        told.update(failures(end))
        verdict = end.finish.verdict
        if verdict is not None and verdict.ended_s_ago is not None:
            log.warn(_nothing_was_started(end.run_id, verdict))

    try:
        with telemetry.watching():
            end = run_agent(config, telemetry, lambda relay: log, ended, embedding)
    except BaseException as error:
        _keep(telemetry, Finish(FinishKind.COORDINATOR_LOST, text=str(error)))
        raise
    finally:
        kept = "" if telemetry.keeping is None else telemetry.keeping.close(None)
    if kept and end.finish.outcome is not Outcome.SUCCEEDED:
        log.warn(f"the end of {job_name(end.run_id)} is kept: rallypoint status {quote(kept)}")
    ended_so = ToldEnd(end, told)
    ended_so.forget_lost_files()
    return ended_so


def _keep(telemetry: Telemetry, finish: Finish) -> None:
    if telemetry.keeping is not None:
        telemetry.keeping.ended(finish.ending)


def _nothing_was_started(run_id: str, verdict: Verdict) -> str:
    """Return the warning for a node that joined after its job had ended, so started no worker."""
    has_succeeded = verdict.outcome is Outcome.SUCCEEDED
    ago = f"{brief_seconds(verdict.ended_s_ago or 0)} s ago on this coordinator"
    how = "succeeded" if has_succeeded else f"ended ({verdict.outcome.value})"
    again = ": give another run_id to run it again" if has_succeeded else ""
    return f"nothing was started: job {shown(run_id)} {how} {ago}{again}"
