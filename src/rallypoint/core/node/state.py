"""The state of the machine of one node, and the ends of its workers: exits and stops.

`machine.py` explains the rules; it and `leave.py` decide when to stop.

Each exit counts once, as it was first noticed. A worker's end during the round is its failure or
its success. One that was ended by a signal that schedulers send to every process is a suspect
first, until it is known whether this agent gets the signal too (behaviour A5).
"""

from __future__ import annotations

import signal
from enum import IntEnum
from typing import assert_never

from msgspec import Struct, field

from rallypoint.core import event_kinds as kinds
from rallypoint.core.liveness import LEASE_OVER
from rallypoint.core.messages import Claim, Doing, Failed, Finishing, Prove, Proved, Succeeded
from rallypoint.core.model import Assignment, Lacking, Stamp, Verdict
from rallypoint.core.node.events import (
    SPAWN_FAILED,
    AbandonRound,
    EndState,
    Finish,
    FinishKind,
    GiveUpNode,
    JoinRound,
    KillWorkers,
    NodeEffect,
    NodeTimer,
    ReportNow,
    SignalWorkers,
    Tried,
    TryToStart,
    WaitKind,
    WorkerEnded,
)
from rallypoint.core.text import CANT_START
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.core.worker_signals import WorkerSignals, awaits_own_signal, received
from rallypoint.errors import InfrastructureError, LogsSpecsError, RallypointError


class NodePhase(IntEnum):
    """The observed phase of this node in a round; `machine.py` describes each."""

    IDLE = 0
    ENROLLING = 1
    READY = 2
    RUNNING = 3
    FINISHED = 4
    STOPPING = 5
    DONE = 6


class Desired(IntEnum):
    """The step that follows once no worker runs; a higher one is never replaced by a lower."""

    JOIN = 0
    LEAVE = 1
    END = 2
    GIVE_UP = 3


class NodeSettings(Struct, frozen=True):
    """How this node stops its workers. Times are in seconds."""

    workers: int
    shutdown_grace_s: float
    restart_grace_s: float
    signals: tuple[int, ...]
    drain_deadline_s: float = 25.0
    """The time from the request to leave until this node's workers are killed."""
    stop_patience_s: float = 0.0
    """The additional time for killed processes that do not die; then the node gives up."""
    is_alone: bool = False
    """Whether the job can't have another node."""
    has_witness: bool = False
    """Whether a process beside the agent notes the signals of a scheduler; see
    `worker_signals.py`."""


class WorkersState(Struct):
    """The state of the machine of one node's workers. Only `machine.step` changes it."""

    settings: NodeSettings
    phase: NodePhase = NodePhase.IDLE
    desired: Desired = Desired.JOIN
    stamp: Stamp | None = None
    is_foreign: bool = False
    """Whether the round in `stamp` is of another coordinator than the present one, which does not
    know it."""
    has_joined: bool = False
    """Whether the node has asked for a place, and has none yet."""
    proving: tuple[Stamp, int] | None = None
    """The round and the number of the coordinator's open question, `Prove`; None: there is none."""
    checkpoint_asked: int | None = None
    """The number of the checkpoint request to the round's workers; None: there is none."""
    succeeded_when_asked: bool = False
    """Whether all workers succeeded while a checkpoint was requested."""
    stop_why: str = ""
    """The reason why the workers are being stopped."""
    told_end: Stamp | None = None
    """The newest round of this node whose end the coordinator has ordered."""
    assignment: Assignment | None = None
    exits: dict[int, WorkerExit] = field(default_factory=dict)
    """The exits of this round's workers, by local rank; a new object for each round."""
    failed: dict[int, WorkerExit] = field(default_factory=dict)
    """The exits of this round's workers that were reported as failures, by local rank."""
    unjudged: set[int] = field(default_factory=set)
    """The local ranks of workers whose end is not judged yet: this agent may be about to get the
    signal that ended them."""
    ends_reported: set[int] = field(default_factory=set)
    """The local ranks of workers whose end was reported to observers."""
    seeks_culprit: bool = False
    """Whether the round ends by a failure, and this agent has killed no process yet."""
    signals_caught: int = 0
    signal: int = 0
    """The signal that told this agent to leave, or SIGTERM if something else did; the workers are
    sent it, too. 0: nothing did."""
    leaving: bool = False
    """Whether this node was told to leave, in any way."""
    leaving_why: str = ""
    cancels: bool = False
    """Whether the signal was an interrupt (SIGINT), which ends the job."""
    announced: bool = False
    """Whether the workers may stop: the job knows of the leave, or could not be told in time."""
    heard: bool = False
    """Whether the job knows that this node leaves, or need not know any more."""
    is_member: bool = False
    """Whether the coordinator knows this node, as far as this node can tell."""
    has_coordinator: bool = False
    """Whether a coordinator was reached whose host has not refused connections since."""
    telling: bool = False
    """Whether no workers run, and the end waits until the job acknowledges the leave."""
    repeated: int = 0
    """The last signal to the agent, while an equal one still counts as the same; 0: none."""
    killing: bool = False
    """Whether the workers of this round were sent SIGKILL."""
    is_patient: bool = False
    """Whether killed processes do not die, and this node waits for them."""
    patience_is_over: bool = False
    verdict: Verdict | None = None
    finish: Finish | None = None
    signals: WorkerSignals = field(default_factory=WorkerSignals)
    """The signals that the round's workers got; a new object for each round."""
    waits: int = 0
    """The number of waits so far, from which they get their numbers."""
    newest_wait: dict[WaitKind, int] = field(default_factory=dict)
    grace_s: float = 0.0
    """The shortest time in seconds that the present stop gives the workers before they are
    killed."""
    first_grace: int = 0
    """The number of the wait for the first grace of the present stop. A shorter one may follow; the
    grace that ends first counts."""


def proceed(state: WorkersState) -> list[NodeEffect]:
    """Return what follows now that no worker runs here: join again, or end the agent.

    A node that leaves first waits until the job knows of its leave.
    """
    if state.desired is Desired.JOIN:
        if state.leaving and not state.announced:
            return []
        state.has_joined = True
        return [JoinRound()]
    assert state.finish is not None
    if state.desired is Desired.LEAVE and is_untold(state):
        return _tell(state)
    state.phase = NodePhase.DONE
    return [state.finish]


def is_untold(state: WorkersState) -> bool:
    """Return whether the job still has to hear that this node leaves.

    A node that has lost its place only reports that the job is cancelled.
    """
    if not state.leaving or state.heard:
        return False
    return state.has_coordinator if state.cancels else state.is_member


def _tell(state: WorkersState) -> list[NodeEffect]:
    """Wait until the coordinator acknowledges that this node leaves, and tell the user.

    That was reported before, but the connection is down, or slow. Without the report the others
    would count this node as lost, or continue a job that was cancelled.
    """
    if state.telling:
        return []
    state.telling = True
    time_s = state.settings.shutdown_grace_s
    what = "that the job is cancelled" if state.cancels else "that this node leaves"
    text = (
        f"waiting up to {time_s:g} s for the coordinator to acknowledge {what}; a second signal "
        "ends the wait"
    )
    return [kinds.TELLING(text), wait(state, WaitKind.TELL, time_s)]


def stop(state: WorkersState, desired: Desired, number: int, grace_s: float) -> list[NodeEffect]:
    """Stop the workers by a signal. A running stop continues, but with no more time than this."""
    state.desired = max(state.desired, desired)
    match state.phase:
        case NodePhase.IDLE | NodePhase.ENROLLING | NodePhase.READY:
            return _end_before_start(state)
        case NodePhase.RUNNING | NodePhase.FINISHED:
            state.phase, state.grace_s, state.first_grace = NodePhase.STOPPING, grace_s, 0
            return end_by_signal(state, number)
        case NodePhase.STOPPING if grace_s < state.grace_s and not state.killing:
            state.grace_s = grace_s
            is_held = state.signals.held_stop > 0  # Then the grace has not begun.
            return [] if is_held else [wait(state, WaitKind.GRACE, grace_s)]
        case NodePhase.STOPPING | NodePhase.DONE:
            return []
        case _:
            assert_never(state.phase)


def end_by_signal(state: WorkersState, number: int) -> list[NodeEffect]:
    """Send the workers the signal that ends them, or hold it while a scheduler may be sending it.

    The grace of the workers begins with the signal.
    """
    who = received(state.signals, number, state.settings.signals)
    if who is None:
        state.signals.held_stop = number
        return []
    grace = wait(state, WaitKind.GRACE, state.grace_s)
    state.first_grace = grace.number
    return [SignalWorkers(number, who), grace]


def abort(state: WorkersState, desired: Desired, finish: Finish | None) -> list[NodeEffect]:
    """Kill the workers at once; drop the round if none was started.

    `desired`: what follows when nothing runs. `finish`: how the agent ends then, unless that is
    known.
    """
    state.desired = max(state.desired, desired)
    state.finish = state.finish or finish
    match state.phase:
        case NodePhase.IDLE | NodePhase.ENROLLING | NodePhase.READY:
            return _end_before_start(state)
        case NodePhase.RUNNING | NodePhase.FINISHED | NodePhase.STOPPING:
            state.phase, state.killing = NodePhase.STOPPING, True
            state.seeks_culprit = False
            return [KillWorkers()]
        case NodePhase.DONE:
            return []
        case _:
            assert_never(state.phase)


def _end_before_start(state: WorkersState) -> list[NodeEffect]:
    """Drop what was prepared for the round, and do what is desired: no worker was started yet."""
    if state.phase is NodePhase.IDLE:
        return proceed(state) if state.desired is not Desired.JOIN else []
    state.phase = NodePhase.IDLE
    return [AbandonRound(), *proceed(state)]


def wait(state: WorkersState, kind: WaitKind, length_s: float) -> NodeTimer:
    """Begin a wait of this kind, and return its timer.

    Older waits of the kind become void, except for the graces of one stop.
    """
    state.waits += 1
    state.newest_wait[kind] = state.waits
    return NodeTimer(kind, state.waits, length_s)


def claim(state: WorkersState, drains_for_s: float = 0.0) -> Claim:
    """Return this node's present state, for a coordinator that it attaches to.

    `drains_for_s` is how many seconds ago the node was told to leave, if it was.
    """
    if state.leaving:
        why, number = state.leaving_why, state.signal
        return Claim(Doing.DRAINING, state.stamp, why, number, drains_for_s)
    match state.phase:
        case NodePhase.IDLE:
            doing = Doing.JOINED if state.has_joined else Doing.IDLE
            return Claim(doing, state.stamp, LEASE_OVER if state.stop_why == LEASE_OVER else "")
        case NodePhase.ENROLLING:
            doing = Doing.ENROLLING
        case NodePhase.READY:
            doing = Doing.ENROLLED
        case NodePhase.RUNNING:
            doing = Doing.FINISHING if succeeded(state) else Doing.RUNNING
        case NodePhase.FINISHED:
            asked = state.succeeded_when_asked
            doing = Doing.SUCCEEDED_WHEN_ASKED if asked else Doing.SUCCEEDED
        case NodePhase.STOPPING:
            return Claim(Doing.STOPPING, state.stamp, state.stop_why)
        case NodePhase.DONE:
            doing = Doing.IDLE
        case _:
            assert_never(state.phase)
    return Claim(doing, state.stamp)


def succeeded(state: WorkersState) -> int:
    """Return how many of the round's workers certainly ended well."""
    judged = state.exits.keys() - state.unjudged
    return sum(state.exits[local_rank].code == 0 for local_rank in judged)


SUSPECT_S = 2.0
"""The seconds by which an agent may get a scheduler's signal later than its workers."""


def exited(state: WorkersState, stamp: Stamp, exits: tuple[WorkerExit, ...]) -> list[NodeEffect]:
    """Note the ends of these workers, which were noticed together, and judge them.

    They are judged later if this agent may be about to get the signal that ended them.
    """
    if stamp != state.stamp:
        return []
    known = state.exits.keys() | state.ends_reported
    exits = tuple(exit_ for exit_ in exits if exit_.local_rank not in known)
    state.exits.update((exit_.local_rank, exit_) for exit_ in exits)
    well = [exit_ for exit_ in exits if exit_.code == 0]
    is_stopping = state.phase is NodePhase.STOPPING
    ends = [] if is_stopping else _report_ended(state, well)
    state.unjudged.update(exit_.local_rank for exit_ in exits)
    if state.phase is NodePhase.RUNNING and awaits_own_signal(
        state.signals, state.settings.signals
    ):
        return ends
    return ends + judge(state)


def judge(state: WorkersState) -> list[NodeEffect]:
    """Decide about the workers whose end is not judged yet, and report the result.

    A failure stops the round here. If all that failed may have been ended by a scheduler's signal,
    the agent waits `SUSPECT_S` seconds to get that itself.
    """
    stamp, had_success = state.stamp, succeeded(state) > 0
    exits = tuple(state.exits[local_rank] for local_rank in sorted(state.unjudged))
    state.unjudged.clear()
    if stamp is None or not exits or state.leaving:
        return []
    if state.phase is not NodePhase.RUNNING:
        killed = tuple(exit_ for exit_ in exits if exit_.signal == signal.SIGKILL)
        return [_report(state, stamp, killed)] if killed and state.seeks_culprit else []
    bad = [exit_ for exit_ in exits if exit_.code != 0]
    blamed = [exit_ for exit_ in bad if exit_.signal not in state.settings.signals]
    if blamed:
        return _fail(state, blamed)
    effects: list[NodeEffect] = []
    if bad:
        effects.append(wait(state, WaitKind.SUSPECT, SUSPECT_S))
    if succeeded(state) and not had_success:
        effects.append(ReportNow(Finishing(stamp)))
    if succeeded(state) == state.settings.workers:
        state.phase = NodePhase.FINISHED
        state.succeeded_when_asked = state.checkpoint_asked is not None
        effects.append(ReportNow(Succeeded(stamp)))
    return effects


def suspects_time_is_over(state: WorkersState) -> list[NodeEffect]:
    """Report failures: the agent did not get the signal that ended these workers."""
    is_void = state.phase is not NodePhase.RUNNING or state.leaving or not _suspects(state)
    return [] if is_void else _fail(state, [])


def _fail(state: WorkersState, blamed: list[WorkerExit]) -> list[NodeEffect]:
    assert state.stamp is not None
    report = _report(state, state.stamp, (*blamed, *_suspects(state)))
    state.seeks_culprit, state.stop_why = True, "a worker of this node failed"
    return [report, *stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s)]


def _report(
    state: WorkersState,
    stamp: Stamp,
    exits: tuple[WorkerExit, ...],
    lacking: Lacking | None = None,
) -> ReportNow:
    state.failed |= {exit_.local_rank: exit_ for exit_ in exits}
    return ReportNow(Failed(stamp, exits, lacking=lacking))


def _suspects(state: WorkersState) -> list[WorkerExit]:
    """Return the exits of workers that a signal has ended which this agent may still get."""
    signals = state.settings.signals
    return [exit_ for exit_ in state.exits.values() if exit_.signal in signals]


def spawn_failed(state: WorkersState, stamp: Stamp, error: RallypointError) -> list[NodeEffect]:
    """Handle workers that could not be started.

    A node that is alone can only tell its user. In a job of several nodes the others may continue
    without it, so it counts as the failure of its first worker. So does an error of the command or
    its arguments, on any node. If this machine is to blame, the coordinator is told so, and no
    restart is charged.
    """
    if stamp != state.stamp or state.phase is not NodePhase.RUNNING:
        return []
    short = error.shortage
    lacks_something = short is not None or isinstance(error, InfrastructureError | LogsSpecsError)
    if lacks_something and state.settings.is_alone:
        return give_up(state, error)
    state.stop_why, text = "the workers of this node could not be started", str(error)
    effects: list[NodeEffect] = [kinds.SPAWN_FAILED(text)]
    if not state.leaving:
        failure = WorkerExit(SPAWN_FAILED, None, message=text)
        lacking = None if short is None else Lacking(short.stage, short.errno)
        effects.append(_report(state, stamp, (failure,), lacking))
    return effects + stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s)


def prove(state: WorkersState, order: Prove) -> list[NodeEffect]:
    """Return a test whether workers can be started here, if the node waits for a place.

    `order` asks for it, before the running round is ended to give this node a place.
    """
    waits = state.phase is NodePhase.IDLE and state.has_joined and state.desired is Desired.JOIN
    question = order.stamp, order.number
    if not waits or state.leaving or state.proving == question:
        return []
    state.proving = question
    return [TryToStart(order)]


def tried(state: WorkersState, said: Tried) -> list[NodeEffect]:
    """Report whether workers can be started here; if they can't, leave the job.

    A node that does not reach the store stays, because another round may have its store elsewhere.
    """
    if state.proving != (said.stamp, said.number):
        return []
    state.proving = None
    if state.leaving or state.desired is not Desired.JOIN:
        return []
    report = Proved(said.stamp, said.number, said.unfit, said.lacking, said.unreached)
    effects: list[NodeEffect] = [ReportNow(report)]
    if said.unfit:
        text = f"{CANT_START}: {said.unfit}"
        finish = Finish(FinishKind.UNFIT, text=f"{text}: {said.fix}" if said.fix else text)
        effects += abort(state, Desired.GIVE_UP, finish)
    elif said.unreached:
        effects.append(kinds.STORE_UNREACHED(why=said.unreached))
    return effects


def give_up(state: WorkersState, error: RallypointError) -> list[NodeEffect]:
    """End the agent: no worker is to blame, and each round would fail in the same way."""
    state.phase = NodePhase.DONE
    return [GiveUpNode(error)]


def report_ends(state: WorkersState) -> list[NodeEffect]:
    """Report the ends of workers that were not reported yet, now that nothing of the round runs.

    These workers failed, or were stopped.
    """
    ranks = {*range(state.settings.workers), *state.failed} - state.ends_reported
    state.ends_reported |= ranks
    unknown = {rank: WorkerExit(None, None, local_rank=rank) for rank in ranks}
    known = unknown | state.failed | state.exits
    return [
        WorkerEnded(EndState.FAILED if rank in state.failed else EndState.TERMINATED, known[rank])
        for rank in sorted(ranks)
    ]


def _report_ended(state: WorkersState, well: list[WorkerExit]) -> list[NodeEffect]:
    state.ends_reported |= {exit_.local_rank for exit_ in well}
    return [WorkerEnded(EndState.SUCCEEDED, exit_) for exit_ in well]
