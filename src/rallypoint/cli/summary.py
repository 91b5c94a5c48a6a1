"""What a run leaves for programs: the last events, and `--json-summary`, however it ends."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from math import isfinite

from msgspec import Struct

from rallypoint import __version__
from rallypoint.agent.progress import Progress
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.cli.exit_codes import SIGNALLED, of_class
from rallypoint.cli.render import iso_text
from rallypoint.cli.verdict import VerdictView, cause_summary, goodput_summary, kept_text
from rallypoint.config import AgentConfig
from rallypoint.core import timeline
from rallypoint.core.model import Cause, Outcome
from rallypoint.core.text import shown
from rallypoint.core.timeline import RoundLife
from rallypoint.errors import ExitClass, RallypointError, UsageError
from rallypoint.observe.printing import print_error, say
from rallypoint.observe.summary import (
    ProgressSummary,
    RestartSummary,
    RoundSummary,
    Summary,
    SummaryFile,
)
from rallypoint.process.signals import late_signals_interrupt

_CLASSES = {ExitClass.USAGE: "usage", ExitClass.FAILED: "failed", ExitClass.SUCCESS: "succeeded"}


class _Ending(Struct, frozen=True):
    outcome: str
    reason: str
    restarts: int = 0
    cause: Cause | None = None
    no_progress: bool = False


def job_summary(
    config: AgentConfig,
    dispatcher: EventDispatcher,
    ended: VerdictView | BaseException,
    exit_code: int,
    events_lost: int,
) -> Summary:
    """All that this agent knows of its job, which ended as a view or an error says."""
    ending = _ending(ended)
    line = dispatcher.timeline
    newest = line.newest
    used = newest.assignment.restart_count if newest is not None else 0
    return Summary(
        outcome=ending.outcome,
        exit_code=exit_code,
        reason=ending.reason,
        run_id=config.rendezvous.run_id,
        node=dispatcher.node,
        host=socket.gethostname(),
        started=iso_text(dispatcher.began_wall),
        elapsed_s=_rounded(time.monotonic() - dispatcher.began_at),
        round=newest.number if newest is not None else 0,
        restarts_used=max(used, ending.restarts),
        max_restarts=config.rendezvous.max_restarts,
        rounds=tuple(_round(dispatcher, life, ending) for life in line.rounds),
        restarts=tuple(
            RestartSummary(again.round, again.kind, again.reason, again.counted)
            for again in timeline.restarts(line)
        ),
        cause=cause_summary(ending.cause),
        collateral=ending.cause.collateral if ending.cause is not None else 0,
        no_progress=ending.no_progress,
        events_lost=events_lost,
        goodput=None if dispatcher.goodput is None else goodput_summary(dispatcher.goodput),
        versions={"rallypoint": __version__, "python": sys.version.partition(" ")[0]},
    )


def _ending(ended: VerdictView | BaseException) -> _Ending:
    if isinstance(ended, VerdictView):
        outcome, reason = ended.outcome.value, ended.reason
        return _Ending(outcome, reason, ended.restarts, ended.cause, bool(ended.no_progress))
    if isinstance(ended, RallypointError):
        return _Ending(_CLASSES.get(ended.exit_class, "infrastructure"), str(ended))
    return _Ending("infrastructure", f"{type(ended).__name__}: {ended}")


def _round(dispatcher: EventDispatcher, life: RoundLife, ending: _Ending) -> RoundSummary:
    rounds = dispatcher.timeline.rounds
    following = next((x for x in rounds if x.began_at > life.began_at), None)
    last = "failure" if ending.outcome == "failed" else ending.outcome
    unknown = (last, ending.reason) if following is None else (timeline.UNKNOWN, "")
    by, why = timeline.ended_by(life, following, dispatcher.timeline.verdict) or unknown
    assignment = life.assignment
    return RoundSummary(
        round=life.number,
        nodes=assignment.group_world_size,
        workers=assignment.world_size,
        node_rank=assignment.group_rank,
        first_rank=assignment.base_rank,
        restart_count=assignment.restart_count,
        why=assignment.why,
        ended_by=by,
        ended_why=why,
        began_s=_rounded(life.began_at - dispatcher.began_at),
        ended_s=None if life.ended_at is None else _rounded(life.ended_at - dispatcher.began_at),
        phases={name: _rounded(took_s) for name, took_s in life.phases.items()},
        progress=_progress(dispatcher.reached(life.number)),
    )


def _progress(reached: Progress | None) -> ProgressSummary | None:
    if reached is None:
        return None
    loss = reached.loss if reached.loss is None or isfinite(reached.loss) else None  # as in JSON
    return ProgressSummary(reached.step, reached.total, loss, reached.tokens)


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


_SIGINT = 2


def _in_directory(path: str, node: str) -> str:
    """The file of this node, in a directory that is made if it is missing. Raises UsageError."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--json-summary {path}: can't be made: {error.strerror}") from error
    return os.path.join(path, f"{node.replace('/', '_')}.json")


class JobReport:
    """Opened before anything is started; then `ended` and `close`, or `failed`."""

    def __init__(self, config: AgentConfig, print_line: Callable[[str], None]) -> None:
        """As `Telemetry`; raises UsageError also where the summary can't be written."""
        self._config = config
        path = config.observe.json_summary
        if path is not None and path.endswith("/"):
            path = _in_directory(path, config.rendezvous.node_id or socket.gethostname())
        self._file = SummaryFile(path) if path is not None else None
        self._ended: VerdictView | BaseException | None = None
        self.tells_where = False
        """The last line says where the end of the job is kept."""
        self.telemetry = Telemetry(config, print_line)

    def ended(self, view: VerdictView) -> None:
        """The job has ended for this agent; its console is still open."""
        self._ended = view
        self._keep(view.outcome.value, view.reason, view.cause)
        self.telemetry.finished(view.outcome is Outcome.SUCCEEDED, view.reason)

    def failed(self, error: BaseException) -> None:
        """This agent ends by an error, also after the job's end."""
        self._ended = error
        ending = _ending(error)
        self._keep(ending.outcome, ending.reason, None)
        self.telemetry.finished(False, str(error))
        if isinstance(error, RallypointError):
            self.close(of_class(self._config, error.exit_class))
        else:
            interrupted = isinstance(error, KeyboardInterrupt)
            self.close(SIGNALLED + _SIGINT if interrupted else ExitClass.FAILED.value)

    def _keep(self, outcome: str, reason: str, cause: Cause | None) -> None:
        if self.telemetry.keeping is not None:
            self.telemetry.keeping.ended(outcome, reason, cause)

    def _say_where(self, path: str, why: str) -> None:
        from rallypoint.cli.machine import brief

        if not self.tells_where or not isinstance(self._ended, VerdictView):
            return
        text = kept_text(self._ended)
        if path:
            say(f"    {text.kept} {brief(path)}")
        elif why:
            say(f"    {text.not_kept} {brief(self._config.observe.keep_in)}: {why}")

    def close(self, exit_code: int) -> None:
        """Flush events and metrics, and write the summary. May block for seconds; a signal ends
        only that wait."""
        try:
            with late_signals_interrupt():
                lost = self.telemetry.close()
        except KeyboardInterrupt:
            lost = self.telemetry.close(0.0)
        for line in lost:
            print_error("rallypoint", line)
        keeping = self.telemetry.keeping
        if keeping is not None:
            kept = keeping.close(exit_code)
            self._say_where(kept, keeping.why)
        if self._file is None or self._ended is None:
            return
        summary = job_summary(
            self._config, self.telemetry.dispatcher, self._ended, exit_code, self.telemetry.lost
        )
        try:
            self._file.write(summary)
        except OSError as error:
            path = shown(self._config.observe.json_summary or "")
            print_error("rallypoint", f"--json-summary {path}: can't be written: {error.strerror}")
