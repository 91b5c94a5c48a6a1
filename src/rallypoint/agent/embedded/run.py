"""An agent of real processes inside somebody's program, quiet but for what its log says."""

from __future__ import annotations

from rallypoint.agent.embedded.embedding import Embedding, gets_signals
from rallypoint.agent.embedded.job_log import JobLog
from rallypoint.agent.job_end import JobEnd
from rallypoint.agent.run_agent import run_agent
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.config import AgentConfig
from rallypoint.core.wording import nothing_was_started
from rallypoint.errors import UsageError
from rallypoint.process.exits import needs_main_thread


def run_processes(config: AgentConfig, log: JobLog, embedding: Embedding) -> JobEnd:
    """Run this node's part of the job, to its end. Blocks. Raises as `run_agent` does, and
    UsageError in a thread beside the main one where the kernel (before 5.3) tells of exits by
    signals only."""
    if not gets_signals() and needs_main_thread():
        raise UsageError(
            "this kernel tells of the ends of processes by signals only: run the job in the main "
            "thread, where no event loop runs"
        )
    telemetry = Telemetry(config)

    def ended(end: JobEnd) -> None:
        telemetry.ended(end.finish)
        verdict = end.finish.verdict
        if verdict is not None and verdict.ended_s_ago is not None:
            log.warn(nothing_was_started(end.run_id, verdict))

    with telemetry.watching():
        return run_agent(config, lambda relay: log, ended, embedding, telemetry)
