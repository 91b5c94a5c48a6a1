"""What the ends of one node's workers mean, and a start that failed.

Each exit counts once, as it was first noticed. What ends a worker while the round runs is its
failure, or its success; one that was ended by a signal that schedulers send to every process is a
suspect first, until it is known whether this agent gets the signal too (behaviour A5).
"""

from __future__ import annotations

import signal

from msgspec.structs import replace

from rallypoint.core import event_kinds as kinds
from rallypoint.core.group_events import (
    SPAWN_FAILED,
    Exit,
    GiveUp,
    GroupEffect,
    ReportNow,
    SpawnFailed,
    SpawnFault,
    WaitKind,
    failure_of,
)
from rallypoint.core.group_state import Desired, GroupState, Phase, stop, succeeded, wait
from rallypoint.core.messages import Failed, Finishing, Succeeded
from rallypoint.core.model import Stamp

SUSPECT_S = 2.0
"""How long an agent may get such a signal later than its workers."""


def exited(state: GroupState, stamp: Stamp, exits: tuple[Exit, ...]) -> list[GroupEffect]:
    """These workers have ended, as noticed together."""
    if stamp != state.stamp:
        return []
    exits = tuple(exit_ for exit_ in exits if exit_.local_rank not in state.exits)
    had_success = succeeded(state) > 0
    state.exits.update((exit_.local_rank, exit_) for exit_ in exits)
    if state.leaving:
        return []
    if state.phase is not Phase.RUNNING:
        killed = tuple(exit_ for exit_ in exits if exit_.signal == signal.SIGKILL)
        return [_report(stamp, killed)] if killed and state.seeks_culprit else []
    bad = [exit_ for exit_ in exits if exit_.code != 0]
    blamed = [exit_ for exit_ in bad if exit_.signal not in state.settings.signals]
    if blamed:
        return _fail(state, blamed)
    effects: list[GroupEffect] = []
    if bad:
        effects.append(wait(state, WaitKind.SUSPECT, SUSPECT_S))
    if succeeded(state) and not had_success:
        effects.append(ReportNow(Finishing(stamp)))
    if succeeded(state) == state.settings.workers:
        state.phase = Phase.FINISHED
        state.succeeded_when_asked = state.checkpoint_asked is not None
        effects.append(ReportNow(Succeeded(stamp)))
    return effects


def suspects_time_is_over(state: GroupState) -> list[GroupEffect]:
    """The agent did not get the signal: those that it ended have failed by it."""
    is_void = state.phase is not Phase.RUNNING or state.leaving or not _suspects(state)
    return [] if is_void else _fail(state, [])


def _fail(state: GroupState, blamed: list[Exit]) -> list[GroupEffect]:
    assert state.stamp is not None
    report = _report(state.stamp, (*blamed, *_suspects(state)))
    state.seeks_culprit, state.stop_why = True, "a worker of this node failed"
    return [report, *stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s)]


def _report(stamp: Stamp, exits: tuple[Exit, ...]) -> ReportNow:
    return ReportNow(Failed(stamp, tuple(map(failure_of, exits))))


def _suspects(state: GroupState) -> list[Exit]:
    """Those that were ended by a signal that this agent may be about to get, too."""
    signals = state.settings.signals
    return [exit_ for exit_ in state.exits.values() if exit_.signal in signals]


def spawn_failed(state: GroupState, event: SpawnFailed) -> list[GroupEffect]:
    """Alone, a node that lacks something can only tell its user. In a job of several nodes the
    others may go on without it, so that it counts as the failure of a worker: the first one."""
    if event.stamp != state.stamp or state.phase is not Phase.RUNNING:
        return []
    if event.fault is SpawnFault.NODE and state.settings.is_alone:
        state.phase = Phase.DONE
        return [GiveUp()]
    state.stop_why = "the workers of this node could not be started"
    effects: list[GroupEffect] = [kinds.SPAWN_FAILED(event.text)]
    if not state.leaving:
        failure = failure_of(Exit(0, SPAWN_FAILED, None))
        effects.append(ReportNow(Failed(event.stamp, (replace(failure, message=event.text),))))
    return effects + stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s)
