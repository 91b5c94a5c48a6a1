"""From how an agent ended to the summary that `--json-summary` writes."""

from __future__ import annotations

import socket
import sys
import time

from msgspec import Struct

from rallypoint import __version__
from rallypoint.agent.chronicle import Chronicle
from rallypoint.cli.render import iso_text
from rallypoint.cli.verdict_text import FirstCause, VerdictView, cause_summary
from rallypoint.config import AgentConfig
from rallypoint.core import timeline
from rallypoint.core.timeline import RoundLife
from rallypoint.errors import ExitClass, RallypointError
from rallypoint.observe.summary import RestartSummary, RoundSummary, Summary

_CLASSES = {ExitClass.USAGE: "usage", ExitClass.FAILED: "failed", ExitClass.SUCCESS: "succeeded"}


class _Ending(Struct, frozen=True):
    outcome: str
    reason: str
    restarts: int = 0
    cause: FirstCause | None = None
    collateral: int = 0


def job_summary(
    config: AgentConfig,
    chronicle: Chronicle,
    ended: VerdictView | BaseException,
    exit_code: int,
    events_lost: int,
) -> Summary:
    """All that this agent knows of its job, which ended as a view or an error says."""
    ending = _ending(ended)
    line = chronicle.timeline
    newest = line.newest
    used = newest.assignment.restart_count if newest is not None else 0
    return Summary(
        outcome=ending.outcome,
        exit_code=exit_code,
        reason=ending.reason,
        run_id=config.rendezvous.run_id,
        node=chronicle.node,
        host=socket.gethostname(),
        started=iso_text(chronicle.began_wall),
        elapsed_s=_rounded(time.monotonic() - chronicle.began_at),
        round=newest.number if newest is not None else 0,
        restarts_used=max(used, ending.restarts),
        max_restarts=config.restart.max_restarts,
        rounds=tuple(_round(chronicle, life, ending) for life in line.rounds),
        restarts=tuple(
            RestartSummary(again.round, again.kind, again.reason, again.counted)
            for again in timeline.restarts(line)
        ),
        cause=None if ending.cause is None else cause_summary(ending.cause),
        collateral=ending.collateral,
        events_lost=events_lost,
        versions={"rallypoint": __version__, "python": sys.version.partition(" ")[0]},
    )


def _ending(ended: VerdictView | BaseException) -> _Ending:
    if isinstance(ended, VerdictView):
        outcome, reason = ended.outcome.value, ended.reason
        return _Ending(outcome, reason, ended.restarts, ended.cause, ended.collateral)
    if isinstance(ended, RallypointError):
        return _Ending(_CLASSES.get(ended.exit_class, "infrastructure"), str(ended))
    return _Ending("infrastructure", f"{type(ended).__name__}: {ended}")


def _round(chronicle: Chronicle, life: RoundLife, ending: _Ending) -> RoundSummary:
    rounds = chronicle.timeline.rounds
    following = next((x for x in rounds if x.began_at > life.began_at), None)
    last = "failure" if ending.outcome == "failed" else ending.outcome
    unknown = (last, ending.reason) if following is None else (timeline.UNKNOWN, "")
    by, why = timeline.ended_by(life, following, chronicle.timeline.verdict) or unknown
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
        began_s=_rounded(life.began_at - chronicle.began_at),
        ended_s=None if life.ended_at is None else _rounded(life.ended_at - chronicle.began_at),
        phases={name: _rounded(took_s) for name, took_s in life.phases.items()},
    )


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
