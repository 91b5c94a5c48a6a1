"""Workers get each signal once, whether a scheduler signals all processes or only the agent.

`worker_signals.py` has the reasons, and the notes of earlier signals.
"""

from __future__ import annotations

from rallypoint.core import worker_signals as known
from rallypoint.core.model import Stamp
from rallypoint.core.node.events import NodeEffect, NotifyWorkers, WaitKind
from rallypoint.core.node.state import NodePhase, WorkersState, end_by_signal, judge, wait
from rallypoint.core.worker_signals import Received

_WORKERS = (NodePhase.RUNNING, NodePhase.FINISHED, NodePhase.STOPPING)


def workers_started(state: WorkersState, stamp: Stamp) -> list[NodeEffect]:
    """Note that the workers of this round run; no earlier signal has reached them."""
    if stamp == state.stamp:
        known.workers_started(state.signals)
    return []


def agent_got(state: WorkersState, number: int) -> list[NodeEffect]:
    """Handle a signal to the agent: wait a moment whether the witness gets it, too."""
    if not state.settings.has_witness or state.phase not in _WORKERS:
        return []
    if known.agent_got(state.signals, number):
        return _release(state)
    return _wait_for_witness(state)


def witness_got(state: WorkersState, number: int) -> list[NodeEffect]:
    """Handle a signal that the witness got, and the workers too: wait whether the agent gets it."""
    if state.phase not in _WORKERS:
        return []
    if known.witness_got(state.signals, number):
        return _release(state)
    return [*_release(state), wait(state, WaitKind.OWN_SIGNAL, known.OWN_SIGNAL_S)]


def other_leaves(state: WorkersState) -> list[NodeEffect]:
    """Hold back signals to the workers for a moment, because another node leaves.

    A scheduler may be about to signal this node, too.
    """
    is_next = state.settings.has_witness and state.phase is NodePhase.RUNNING and not state.leaving
    return _wait_for_witness(state) if is_next else []


def notify(state: WorkersState, number: int) -> list[NodeEffect]:
    """Ask the workers for a checkpoint by this signal, unless a scheduler sends it to them."""
    if state.phase is not NodePhase.RUNNING:
        return []
    state.signals.held_notice = number
    return [*other_leaves(state), *_release(state)]


def witness_time_is_over(state: WorkersState) -> list[NodeEffect]:
    """Send the workers the signals held back: the witness got none, so no scheduler sends them."""
    state.signals.is_waiting = False
    return _release(state)


def own_time_is_over(state: WorkersState) -> list[NodeEffect]:
    """Forget the witness's signal, which the agent did not get; judge the workers' exits since."""
    state.signals.by_witness.clear()
    return [*_release(state), *judge(state)]


def _wait_for_witness(state: WorkersState) -> list[NodeEffect]:
    state.signals.is_waiting = True
    return [wait(state, WaitKind.WITNESS, known.WITNESS_S)]


def _release(state: WorkersState) -> list[NodeEffect]:
    """Send the workers the signals that were held back, unless a scheduler may be sending them."""
    signals = state.signals
    effects: list[NodeEffect] = []
    if number := signals.held_notice:
        who = known.received(signals, number, state.settings.signals)
        if who is not None:
            signals.held_notice = 0
        if who is Received.NOBODY and state.phase is NodePhase.RUNNING:
            signals.notified.add(number)
            effects.append(NotifyWorkers(number))
    if number := signals.held_stop:
        signals.held_stop = 0
        if state.phase is NodePhase.STOPPING and not state.killing:
            effects += end_by_signal(state, number)
    return effects
