"""How a node leaves: it was told to by a signal, by a person, or by a notice of its end.

The job is told before anything is stopped. While the workers of all nodes take a last checkpoint
together those of this one run on, until the coordinator says that it is done, or the time that
they get for it is over. `drain_deadline_s` bounds it all: a part of it is for the checkpoint, the
rest for the workers to stop, and then they are killed.
"""

from __future__ import annotations

import signal

from rallypoint.core import event_kinds as kinds
from rallypoint.core.messages import Cancel, Drain
from rallypoint.core.node.events import (
    Finish,
    FinishKind,
    NodeEffect,
    NodeEvent,
    ReportNow,
    SignalCaught,
    SkipWaits,
    WaitEnded,
    WaitKind,
)
from rallypoint.core.node.signals import agent_got
from rallypoint.core.node.state import (
    Desired,
    NodePhase,
    NodeSettings,
    WorkersState,
    abort,
    proceed,
    stop,
    wait,
)
from rallypoint.core.text import LEFT, signal_name

REPEAT_S = 1.0
"""The seconds within which equal signals count as one: schedulers signal every process of a step,
and the parent of an agent often forwards the signal."""
ANNOUNCE_S = 1.0
"""How long a node that leaves waits until the coordinator knows of it, in seconds; then it stops
its workers."""
STOP_SHARE = 0.2
"""The largest share of a drain's time that is kept for the workers to stop after their
checkpoint."""


def notice_s(settings: NodeSettings) -> float:
    """Return how long the workers may take for a last checkpoint, in seconds."""
    deadline_s = settings.drain_deadline_s
    return deadline_s - min(settings.shutdown_grace_s, STOP_SHARE * deadline_s)


def caught(state: WorkersState, number: int) -> list[NodeEffect]:
    """Handle a signal that tells the agent to leave the job, or to cancel it (SIGINT).

    An equal signal within `REPEAT_S` is the same one. A second signal, or one after the end, skips
    every wait, and the workers are killed.
    """
    effects = agent_got(state, number)
    if number == state.repeated:
        return effects
    state.repeated = number
    state.signals_caught += 1
    if state.signals_caught > 1:
        return _skip_waits(state, number)
    return [*effects, *_first(state, number), wait(state, WaitKind.REPEAT, REPEAT_S)]


def _skip_waits(state: WorkersState, number: int) -> list[NodeEffect]:
    word = "again" if number == state.signal else "too"
    kills = state.phase in (NodePhase.RUNNING, NodePhase.FINISHED, NodePhase.STOPPING)
    what = "killing the workers" if kills else "ending without further waits"
    effects: list[NodeEffect] = [
        kinds.SIGNAL(f"got {signal_name(number)} {word}: {what}"),
        SkipWaits(),
    ]
    if state.phase is not NodePhase.DONE:
        state.heard = True
        effects += abort(state, Desired.LEAVE, state.finish or _finish(state))
    return effects


def _first(state: WorkersState, number: int) -> list[NodeEffect]:
    name = signal_name(number)
    if state.phase is NodePhase.DONE:
        return [kinds.SIGNAL(f"got {name}: ending without further waits"), SkipWaits()]
    if number == signal.SIGINT:
        return _cancel(state, number)
    if state.leaving:
        return [kinds.SIGNAL(f"got {name}: this node is leaving already")]
    return _go(state, number, f"it got {name}", f"got {name}: leaving the job")


def after_the_end(state: WorkersState, event: NodeEvent) -> list[NodeEffect]:
    """Return the effects of events after the agent has reported its end.

    Only signals count, because a signal may shorten the wait for other nodes.
    """
    match event:
        case SignalCaught(number):
            return caught(state, number)
        case WaitEnded(WaitKind.REPEAT, number) if _is_newest(state, number):
            state.repeated = 0
    return []


def leave_wanted(state: WorkersState, why: str) -> list[NodeEffect]:
    """Have the node leave, as a person or a notice of its end wants; a repeat does nothing."""
    if state.leaving:
        return []
    return _go(state, signal.SIGTERM, why, f"leaving the job: {why}")


def announced(state: WorkersState) -> list[NodeEffect]:
    """Note that the job knows of this node's leave.

    The workers continue for a last checkpoint, until `leave_now`. Where there is none to wait for,
    they are stopped now.
    """
    if not state.leaving:
        return []
    state.heard = True
    if state.telling:
        return proceed(state)
    if state.announced:
        return []
    runs = state.phase in (NodePhase.RUNNING, NodePhase.FINISHED)
    if state.cancels or not runs or not notice_s(state.settings):
        return leave_now(state)
    state.announced = True
    state.desired = max(state.desired, Desired.LEAVE)
    state.finish = state.finish or _finish(state)
    return []


def _is_newest(state: WorkersState, number: int) -> bool:
    return number == state.newest_wait.get(WaitKind.REPEAT)


def opened_anew(state: WorkersState) -> list[NodeEffect]:
    """Announce the leave, or the cancel, again to a coordinator that does not know this node."""
    if not state.leaving or state.heard:
        return []
    return [_announce_cancel(state) if state.cancels else _announce_drain(state)]


def told_enough(state: WorkersState) -> list[NodeEffect]:
    """End the agent if it only waits for the coordinator to hear of its leave.

    The coordinator has heard of it, can't be reached, or the time is over.
    """
    state.heard = state.heard or state.telling
    return proceed(state) if state.telling and state.phase is NodePhase.IDLE else []


def unheard(state: WorkersState) -> list[NodeEffect]:
    """Stop the workers, unless the coordinator has said in time that it knows of the leave."""
    return [] if state.announced else leave_now(state)


def leave_now(state: WorkersState) -> list[NodeEffect]:
    """Stop the workers of a node that leaves: it no longer waits for their last checkpoint."""
    if not state.leaving:
        return []
    state.announced = True
    state.finish = state.finish or _finish(state)
    return stop(state, Desired.LEAVE, state.signal, state.settings.shutdown_grace_s)


def time_is_over(state: WorkersState) -> list[NodeEffect]:
    """Kill the workers of a node that leaves, and let it end: the drain's time is over."""
    effects: list[NodeEffect] = []
    if not state.killing and state.phase in (
        NodePhase.RUNNING,
        NodePhase.FINISHED,
        NodePhase.STOPPING,
    ):
        time_s = state.settings.drain_deadline_s
        text = f"the workers did not stop in the {time_s:g} s of the drain"
        effects.append(kinds.KILLING(text))
    state.heard = True
    return [*effects, *abort(state, Desired.LEAVE, _finish(state))]


def _go(state: WorkersState, number: int, why: str, said: str) -> list[NodeEffect]:
    state.leaving, state.signal, state.leaving_why = True, number, why
    settings = state.settings
    return [
        (kinds.SIGNAL if state.signals_caught else kinds.LEAVING)(said),
        _announce_drain(state),
        wait(state, WaitKind.ANNOUNCE, ANNOUNCE_S),
        # The coordinator's word should come first: others are not told when this time is over.
        wait(state, WaitKind.CHECKPOINT, (notice_s(settings) + settings.drain_deadline_s) / 2),
        wait(state, WaitKind.DRAIN, settings.drain_deadline_s),
    ]


def _announce_drain(state: WorkersState) -> ReportNow:
    time_s = notice_s(state.settings)
    return ReportNow(Drain(state.leaving_why, state.signal, notice_s=time_s))


def _announce_cancel(state: WorkersState) -> ReportNow:
    return ReportNow(Cancel(f"got {signal_name(state.signal)}", state.signal))


def _cancel(state: WorkersState, number: int) -> list[NodeEffect]:
    state.leaving, state.cancels, state.signal, state.announced = True, True, number, False
    state.heard = state.telling = False
    state.leaving_why = f"it got {signal_name(number)}"
    return [
        kinds.SIGNAL(f"got {signal_name(number)}: cancelling the job"),
        _announce_cancel(state),
        wait(state, WaitKind.ANNOUNCE, ANNOUNCE_S),
    ]


def _finish(state: WorkersState) -> Finish:
    text = f"{LEFT}: {state.leaving_why}"
    return Finish(FinishKind.SIGNAL, signal=state.signal, text=text)
