"""What the round machine waits for, derived from its state.

A host calls `timers_wanted` after every step, starts the timers that are new and drops those that
are gone; one that runs out comes back as `TimerEnded`. A host that merely loaded a state (from a
journal, from a shared store) knows what to wait for in the same way.
"""

from __future__ import annotations

from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.round_state import MemberState, Phase, RoundState
from rallypoint.core.settings import OnJoin

RECENT_LOSS_S = 600.0
"""Losses this recent count towards a node's quarantine."""
LOSS_HOUR_S = 3600.0
STOP_SLACK_S = 2.0
"""A node that has not stopped so long after its own grace "would not stop"."""
PATIENCE = "patience"
"""Names the wait for many that have not stopped by then."""


def timers_wanted(state: RoundState) -> dict[Timer, float]:
    """Every wait that the state asks for, with its length in seconds. O(number of timers)."""
    wanted: dict[Timer, float] = {}
    match state.phase:
        case Phase.CLOSED:
            return wanted
        case Phase.ACTIVE:
            _while_active(state, wanted)
        case Phase.FORMING | Phase.LAST_CALL:
            _while_forming(state, wanted)
    for round_ in state.lossy_rounds:
        wanted[Timer(TimerKind.LOSS_HOUR, round_)] = LOSS_HOUR_S
    for loss in state.recent_losses:
        wanted[Timer(TimerKind.LOSS_RECENT, id=str(loss.id))] = RECENT_LOSS_S
    for node_id, length_s in state.quarantine.items():
        wanted[Timer(TimerKind.QUARANTINE, id=node_id)] = length_s
    return wanted


def _while_active(state: RoundState, wanted: dict[Timer, float]) -> None:
    settings = state.settings
    if settings.on_join is OnJoin.HOLD:
        return
    if not state.growth_allowed:
        wanted[Timer(TimerKind.GROWTH_INTERVAL, state.round)] = settings.min_growth_interval_s
    if not state.eager_waiting:
        return
    if not state.settled:
        wanted[Timer(TimerKind.SETTLE, id=str(state.arrivals))] = settings.join_settle_s
    if not state.overdue:
        first = str(state.first_arrival)
        wanted[Timer(TimerKind.SETTLE_MAX, id=first)] = settings.join_settle_max_s


def _while_forming(state: RoundState, wanted: dict[Timer, float]) -> None:
    settings = state.settings
    if state.phase is Phase.LAST_CALL:
        wanted[Timer(TimerKind.LAST_CALL, state.round)] = settings.last_call_s
    elif state.counts[MemberState.STOPPING]:
        if state.is_patient:
            wanted[Timer(TimerKind.STOP, state.round, PATIENCE)] = settings.stop_patience_s
        else:
            wanted[Timer(TimerKind.STOP, state.round)] = state.stop_grace_s + STOP_SLACK_S
    elif state.members and state.counts[MemberState.JOINED] < settings.min_nodes:
        wanted[Timer(TimerKind.JOIN, state.round)] = settings.join_timeout_s
