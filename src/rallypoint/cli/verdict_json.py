"""The end of a job for programs: the last line of `--log-format json`, and `--json-summary`.

Durations are seconds; a time is text in ISO 8601, UTC. What is not known is null, or absent from
`phases`. Fields may be added within a `schema` number, none removed or given another meaning.
"""

from __future__ import annotations

import socket
import sys
import time
from math import isfinite
from typing import Any

from msgspec import to_builtins

from rallypoint import __version__
from rallypoint.agent.progress import Progress
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.cli.render import iso_text
from rallypoint.cli.verdict import VerdictView
from rallypoint.config import AgentConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import Cause, Ending, Outcome
from rallypoint.core.node import timeline
from rallypoint.core.node.timeline import RoundLife
from rallypoint.core.text import signal_name
from rallypoint.core.watch.goodput_view import GoodputView
from rallypoint.observe.printing import JsonLine, json_line
from rallypoint.process.causes.told import detail_is_traceback

JsonObject = dict[str, Any]
SCHEMA = 1


def verdict_json(view: VerdictView) -> JsonLine:
    """Return the facts of an agent's last lines as a JSON object, with `event` = `verdict`."""
    record: dict[str, object] = {
        "event": kinds.VERDICT.name,
        "outcome": view.outcome.value,
        "run_id": view.run_id,
        "round": view.round,
        "elapsed_s": round(view.elapsed_s, 3),
        "restarts": view.restarts,
        "max_restarts": view.max_restarts,
        "reason": view.reason,
        "collateral": view.cause.collateral if view.cause is not None else 0,
        "ended_s_ago": view.ended_s_ago,
        "no_progress": bool(view.no_progress),
        "goodput": goodput_summary(view.goodput),
        "cause": cause_summary(view.cause),
    }
    return json_line(record)


def job_summary(
    config: AgentConfig,
    dispatcher: EventDispatcher,
    ending: Ending,
    exit_code: int,
    events_lost: int,
) -> JsonObject:
    """Return the content of `--json-summary`: what this agent knows of its ended job."""
    line = dispatcher.timeline
    newest = line.newest
    used = newest.assignment.restart_count if newest is not None else 0
    return {
        "outcome": ending.outcome.value,
        "exit_code": exit_code,
        "reason": ending.reason,
        "run_id": config.rendezvous.run_id,
        "node": dispatcher.node,
        "host": socket.gethostname(),
        "started": iso_text(dispatcher.began_wall),
        "elapsed_s": _rounded(time.monotonic() - dispatcher.began_at),
        "round": newest.number if newest is not None else 0,
        "restarts_used": max(used, ending.restarts),
        "max_restarts": config.rendezvous.max_restarts,
        "rounds": [_round(dispatcher, life, ending) for life in line.rounds],
        "restarts": timeline.restarts(line),
        "cause": cause_summary(ending.cause),
        "collateral": ending.cause.collateral if ending.cause is not None else 0,
        "no_progress": bool(ending.no_progress),
        "events_lost": events_lost,
        "versions": {"rallypoint": __version__, "python": sys.version.partition(" ")[0]},
        "goodput": goodput_summary(dispatcher.goodput),
        "schema": SCHEMA,
    }


def _round(dispatcher: EventDispatcher, life: RoundLife, ending: Ending) -> JsonObject:
    """Return one round of this node for the summary.

    `began_s` and `ended_s` are seconds from the agent's start.
    """
    rounds = dispatcher.timeline.rounds
    following = next((x for x in rounds if x.began_at > life.began_at), None)
    last = "failure" if ending.outcome is Outcome.FAILED else ending.outcome.value
    unknown = (last, ending.reason) if following is None else (timeline.UNKNOWN, "")
    by, why = timeline.ended_by(life, following, dispatcher.timeline.verdict) or unknown
    assignment = life.assignment
    return {
        "round": life.number,
        "nodes": assignment.group_world_size,
        "workers": assignment.world_size,
        "node_rank": assignment.group_rank,
        "first_rank": assignment.base_rank,
        "restart_count": assignment.restart_count,
        "why": assignment.why,
        "ended_by": by,
        "ended_why": why,
        "began_s": _rounded(life.began_at - dispatcher.began_at),
        "ended_s": None if life.ended_at is None else _rounded(life.ended_at - dispatcher.began_at),
        "phases": {name: _rounded(took_s) for name, took_s in life.phases.items()},
        "progress": _progress(dispatcher.reached(life.number)),
    }


def _progress(reached: Progress | None) -> JsonObject | None:
    """Return the progress of this node's furthest worker in a round; null: not reported."""
    if reached is None:
        return None
    loss = reached.loss if reached.loss is None or isfinite(reached.loss) else None  # as in JSON
    return {"step": reached.step, "total": reached.total, "loss": loss, "tokens": reached.tokens}


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def goodput_summary(view: GoodputView | None) -> JsonObject | None:
    """Return the use of the whole job's time, from its coordinator; null: not known.

    A handler or an older coordinator does not send it. Some fields are null if no steps are known,
    or if there was no fault.
    """
    if view is None:
        return None
    known: JsonObject = to_builtins(view)
    useful_s, parts = view.useful_s, known["parts"]
    share = None if useful_s is None or not view.wall_s else useful_s / view.wall_s
    known |= {"useful_share": share, "parts": [_all_rounded(part) for part in parts]}
    known["furthest_step"] = view.furthest_step if view.furthest_step >= 0 else None
    return _all_rounded(known)


def _all_rounded(known: JsonObject) -> JsonObject:
    return {k: _rounded(v) if isinstance(v, float) else v for k, v in known.items()}


def cause_summary(cause: Cause | None) -> JsonObject | None:
    """Return the failed worker that caused the end, for programs; null when none did."""
    if cause is None or cause.failure is None:
        return None
    failure = cause.failure
    return {
        "time": iso_text(failure.wall_time),
        "node": cause.node_id,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "role": failure.role,
        "pid": failure.pid or None,
        "exit_code": failure.code,
        "signal": None if failure.signal is None else signal_name(failure.signal),
        "message": failure.message,
        "detail": failure.detail.splitlines(),
        "detail_is_traceback": detail_is_traceback(failure),
        "log_file": failure.log_file,
    }
