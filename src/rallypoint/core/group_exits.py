"""What the ends of one node's workers mean, and a start that failed.

Each exit counts once, as it was first noticed. What ends a worker while the round runs is its
failure, or its success; one that was ended by a signal that schedulers send to every process is a
suspect first, until it is known whether this agent gets the signal too (behaviour A5).
"""

from __future__ import annotations

import signal

from rallypoint.core import event_kinds as kinds
from rallypoint.core.group_events import (
    SPAWN_FAILED,
    EndState,
    GiveUp,
    GroupEffect,
    ReportNow,
    WaitKind,
    WorkerEnded,
)
from rallypoint.core.group_state import Desired, GroupState, Phase, stop, succeeded, wait
from rallypoint.core.messages import Failed, Finishing, Succeeded
from rallypoint.core.model import Stamp
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import InfrastructureError, LogsSpecsError, RallypointError

SUSPECT_S = 2.0
"""How long an agent may get such a signal later than its workers."""


def exited(state: GroupState, stamp: Stamp, exits: tuple[WorkerExit, ...]) -> list[GroupEffect]:
    """These workers have ended, as noticed together."""
    if stamp != state.stamp:
        return []
    exits = tuple(exit_ for exit_ in exits if exit_.local_rank not in state.exits)
    had_success = succeeded(state) > 0
    state.exits.update((exit_.local_rank, exit_) for exit_ in exits)
    well = [exit_ for exit_ in exits if exit_.code == 0]
    is_stopping = state.phase is Phase.STOPPING
    ends = [] if is_stopping else _report_ended(state, well)
    return ends + _judge(state, stamp, exits, had_success=had_success)


def _judge(
    state: GroupState, stamp: Stamp, exits: tuple[WorkerExit, ...], *, had_success: bool
) -> list[GroupEffect]:
    """What follows from these exits."""
    if state.leaving:
        return []
    if state.phase is not Phase.RUNNING:
        killed = tuple(exit_ for exit_ in exits if exit_.signal == signal.SIGKILL)
        return [_report(state, stamp, killed)] if killed and state.seeks_culprit else []
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


def _fail(state: GroupState, blamed: list[WorkerExit]) -> list[GroupEffect]:
    assert state.stamp is not None
    report = _report(state, state.stamp, (*blamed, *_suspects(state)))
    state.seeks_culprit, state.stop_why = True, "a worker of this node failed"
    return [report, *stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s)]


def _report(state: GroupState, stamp: Stamp, exits: tuple[WorkerExit, ...]) -> ReportNow:
    state.failed |= {exit_.local_rank: exit_ for exit_ in exits}
    return ReportNow(Failed(stamp, exits))


def _suspects(state: GroupState) -> list[WorkerExit]:
    """Those that were ended by a signal that this agent may be about to get, too."""
    signals = state.settings.signals
    return [exit_ for exit_ in state.exits.values() if exit_.signal in signals]


def spawn_failed(state: GroupState, stamp: Stamp, error: RallypointError) -> list[GroupEffect]:
    """Alone, a node that lacks something can only tell its user. In a job of several nodes the
    others may go on without it, so that it counts as the failure of a worker: the first one. So
    does what the command or its arguments are to blame for, wherever it happens."""
    if stamp != state.stamp or state.phase is not Phase.RUNNING:
        return []
    lacks_something = isinstance(error, InfrastructureError | LogsSpecsError)
    if lacks_something and state.settings.is_alone:
        return give_up(state, error)
    state.stop_why, text = "the workers of this node could not be started", str(error)
    effects: list[GroupEffect] = [kinds.SPAWN_FAILED(text)]
    if not state.leaving:
        failure = WorkerExit(SPAWN_FAILED, None, message=text)
        effects.append(_report(state, stamp, (failure,)))
    return effects + stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s)


def give_up(state: GroupState, error: RallypointError) -> list[GroupEffect]:
    """No worker is to blame, and the same would happen in every round."""
    state.phase = Phase.DONE
    return [GiveUp(error)]


def report_ends(state: GroupState) -> list[GroupEffect]:
    """Nothing of the round runs any more: the ends that were not reported yet are of workers that
    failed, or that were stopped."""
    ranks = {*range(state.settings.workers), *state.failed} - state.ends_reported
    state.ends_reported |= ranks
    unknown = {rank: WorkerExit(None, None, local_rank=rank) for rank in ranks}
    known = unknown | state.failed | state.exits
    return [
        WorkerEnded(EndState.FAILED if rank in state.failed else EndState.TERMINATED, known[rank])
        for rank in sorted(ranks)
    ]


def _report_ended(state: GroupState, well: list[WorkerExit]) -> list[GroupEffect]:
    state.ends_reported |= {exit_.local_rank for exit_ in well}
    return [WorkerEnded(EndState.SUCCEEDED, exit_) for exit_ in well]
