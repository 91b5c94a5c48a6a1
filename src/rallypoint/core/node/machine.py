"""One node's workers: what is desired of them, and what is observed.

    step(state, event) -> effects

Observed is the phase, and it only moves forward within a round:

    IDLE       nothing runs; the node has joined, or is about to
    ENROLLING  assigned to a round of several nodes; reaching its round store
    READY      enrolled; waiting until every node has
    RUNNING    workers were started
    FINISHED   all of them ended well; waiting for the others
    STOPPING   told to end: SIGTERM, a grace, SIGKILL
    DONE       the agent has said how it ended

`desired` is what is to be done once nothing runs. It only grows more final: JOIN again,
LEAVE because of a signal, END with the verdict, or give up.

A worker that fails while RUNNING stops the whole node at once, without waiting to be told. What
workers do after they were told to stop is no failure and no success. (But a process that was
killed closes its connections before its end shows, so peers may fail first: while a failure stops
the round, a death by a SIGKILL that this agent did not send is reported too.) A worker that is
ended by one of the signals that schedulers send to every process is a suspect first: if the agent
gets that signal too, within two seconds, it was no failure (behaviour A5).
"""

from __future__ import annotations

import signal
from typing import assert_never

from rallypoint.core import event_kinds as kinds
from rallypoint.core.liveness import LEASE_OVER
from rallypoint.core.messages import (
    Assigned,
    CheckpointNotWanted,
    CheckpointWanted,
    DrainWanted,
    Ended,
    Enrolled,
    Expelled,
    HelperDied,
    LeaveNow,
    NotEnrolled,
    Order,
    Prove,
    StartNow,
    StopNow,
    WorkerRequest,
)
from rallypoint.core.model import Assignment, EndKind, EndReason, Stamp, Verdict
from rallypoint.core.node import leave, signals
from rallypoint.core.node.events import (
    Announced,
    CoordinatorRefuses,
    DrainSignalWanted,
    EnrolmentDone,
    EnrolWithStore,
    Finish,
    FinishKind,
    KillWorkers,
    LeaseEnded,
    LeaveWanted,
    NodeEffect,
    NodeEvent,
    ReportNow,
    RoundEnding,
    SessionGivenUp,
    SessionOpened,
    SignalCaught,
    SourceFailed,
    SpawnFailed,
    SpawnWorkers,
    Tried,
    WaitEnded,
    WaitKind,
    WitnessSignalled,
    WorkersExited,
    WorkersGone,
    WorkersStarted,
)
from rallypoint.core.node.leave import ANNOUNCE_S as ANNOUNCE_S
from rallypoint.core.node.state import SUSPECT_S as SUSPECT_S
from rallypoint.core.node.state import Desired as Desired
from rallypoint.core.node.state import NodePhase as NodePhase
from rallypoint.core.node.state import NodeSettings as NodeSettings
from rallypoint.core.node.state import WorkersState as WorkersState
from rallypoint.core.node.state import (
    abort,
    exited,
    give_up,
    proceed,
    prove,
    report_ends,
    spawn_failed,
    stop,
    suspects_time_is_over,
    tried,
    wait,
)
from rallypoint.core.node.state import claim as claim
from rallypoint.core.text import named
from rallypoint.core.worker_signals import WorkerSignals


def step(state: WorkersState, event: NodeEvent) -> list[NodeEffect]:
    """Apply one event to the node's state, and return what must be done, in order."""
    if state.phase is NodePhase.DONE:
        return leave.after_the_end(state, event)
    if isinstance(event, Order):
        return _ordered(state, event)
    match event:
        case SessionOpened(resumed, replaced):
            state.is_member = state.has_coordinator = True
            if resumed:
                state.is_foreign &= not replaced  # one that has taken over knows our round
                return []
            state.is_foreign |= replaced
            return [*_forgotten(state), *leave.opened_anew(state)]
        case CoordinatorRefuses():
            state.is_member = state.has_coordinator = False
            return leave.told_enough(state)
        case LeaseEnded(waits_for):
            return _lease_ended(state, waits_for)
        case SessionGivenUp(text):
            finish = Finish(FinishKind.COORDINATOR_LOST, text=text)
            return abort(state, Desired.GIVE_UP, finish)
        case EnrolmentDone(stamp, error):
            return _enrolled(state, stamp, error)
        case WorkersStarted(stamp):
            return signals.workers_started(state, stamp)
        case WorkersExited(stamp, exits):
            return exited(state, stamp, exits)
        case SpawnFailed(stamp, error):
            return spawn_failed(state, stamp, error)
        case SourceFailed(error):
            return give_up(state, error)
        case Tried():
            return tried(state, event)
        case HelperDied():
            return _helper_died(state, event)
        case WorkersGone(stamp, stuck):
            return _gone(state, stamp, stuck)
        case SignalCaught(number):
            return leave.caught(state, number)
        case WitnessSignalled(number):
            return signals.witness_got(state, number)
        case DrainSignalWanted(number):
            return signals.notify(state, number)
        case LeaveWanted(why):
            return leave.leave_wanted(state, why)
        case Announced():
            return leave.announced(state)
        case WaitEnded(kind, number):
            return _wait_ended(state, kind, number)
        case _:
            assert_never(event)


def _ordered(state: WorkersState, order: Order) -> list[NodeEffect]:
    """Return the effects of an order of the coordinator."""
    if isinstance(order, WorkerRequest):
        _requested(state, order)
        return []
    match order:
        case Assigned(stamp, assignment):
            return _assigned(state, stamp, assignment)
        case StartNow(stamp):
            if state.phase is not NodePhase.READY or stamp != state.stamp or state.leaving:
                return []  # A node that leaves is not waited for: the next round may run already.
            return _spawn(state)
        case StopNow(stamp, reason):
            return _stop_ordered(state, stamp, reason)
        case Ended(_, verdict):
            return _verdict(state, verdict)
        case Expelled(_, why, final):
            return _expelled(state, why, final)
        case LeaveNow():
            state.heard = state.heard or state.leaving
            return leave.leave_now(state)
        case DrainWanted(_, why):
            return leave.leave_wanted(state, why)
        case Prove():
            return prove(state, order)
        case _:
            assert_never(order)


def _requested(state: WorkersState, request: WorkerRequest) -> None:
    """Note or withdraw a request for a checkpoint: a success meanwhile may be due to it.

    `checkpoint.py` and `hang.py` answer the requests.
    """
    match request:
        case CheckpointWanted(stamp, number) if stamp == state.stamp:
            state.checkpoint_asked = number
        case CheckpointNotWanted(_, number) if number == state.checkpoint_asked:
            state.checkpoint_asked, state.succeeded_when_asked = None, False


def is_fenced(state: WorkersState) -> bool:
    """Return whether the end of the lease ends this node's round, and the workers, if any run.

    Workers that have all ended can't disturb others, and their success may still count.
    """
    return state.phase not in (NodePhase.IDLE, NodePhase.FINISHED, NodePhase.DONE)


def _forgotten(state: WorkersState) -> list[NodeEffect]:
    """Kill running workers, and join again: the coordinator does not know this node."""
    state.proving = None
    if state.phase is NodePhase.IDLE:
        return proceed(state) if state.desired is Desired.JOIN else []
    return abort(state, Desired.JOIN, None)


def _assigned(state: WorkersState, stamp: Stamp, assignment: Assignment) -> list[NodeEffect]:
    if state.phase is not NodePhase.IDLE or state.desired is not Desired.JOIN or state.leaving:
        return []
    if not _is_newer(state, stamp):
        return []
    _name_round(state, stamp)
    state.assignment, state.has_joined, state.proving = assignment, False, None
    state.checkpoint_asked, state.succeeded_when_asked = None, False
    state.exits, state.failed, state.ends_reported = {}, {}, set()
    state.unjudged = set()
    state.seeks_culprit = False
    if assignment.enrol:
        state.phase = NodePhase.ENROLLING
        return [EnrolWithStore(stamp, assignment)]
    return _spawn(state)


def _spawn(state: WorkersState) -> list[NodeEffect]:
    assert state.stamp is not None
    assert state.assignment is not None
    state.phase, state.killing, state.signals = NodePhase.RUNNING, False, WorkerSignals()
    state.is_patient, state.patience_is_over = False, not state.settings.stop_patience_s
    return [SpawnWorkers(state.stamp, state.assignment)]


def _enrolled(state: WorkersState, stamp: Stamp, error: str) -> list[NodeEffect]:
    if state.phase is not NodePhase.ENROLLING or stamp != state.stamp:
        return []
    if not error:
        state.phase = NodePhase.READY
    return [ReportNow(NotEnrolled(stamp, error) if error else Enrolled(stamp))]


def _stop_ordered(state: WorkersState, stamp: Stamp, reason: EndReason) -> list[NodeEffect]:
    if state.phase is NodePhase.IDLE and _is_newer(state, stamp):
        # A round that ended before we heard of it: it took our last join with it.
        _name_round(state, stamp)
        return proceed(state) if state.desired is Desired.JOIN else []
    if stamp != state.stamp:
        return []
    state.seeks_culprit |= reason.kind is EndKind.FAILURE and state.phase is NodePhase.RUNNING
    state.stop_why = reason.text
    expects = signals.other_leaves(state) if reason.kind is EndKind.DRAIN else []
    stops = [
        *expects,
        *stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s),
    ]
    if state.told_end == stamp:  # A coordinator that has taken over says it again.
        return stops
    state.told_end = stamp
    return [RoundEnding(stamp, reason), *stops]


def _verdict(state: WorkersState, verdict: Verdict) -> list[NodeEffect]:
    if state.verdict is not None:
        return []
    state.verdict, state.stop_why = verdict, verdict.text
    asked_to_stop = verdict.outcome.row.stopped
    if state.finish is None or asked_to_stop:
        state.finish = Finish(FinishKind.VERDICT, verdict=verdict, signal=verdict.signal)
    number = verdict.signal if asked_to_stop and verdict.signal else signal.SIGTERM
    settings = state.settings
    grace_s = settings.shutdown_grace_s if asked_to_stop else settings.restart_grace_s
    expects = signals.other_leaves(state) if asked_to_stop else []
    return [*expects, *stop(state, Desired.END, number, grace_s)]


def _expelled(state: WorkersState, why: str, final: bool) -> list[NodeEffect]:
    say = kinds.EXPELLED(why=why)
    state.is_member, state.patience_is_over, state.stop_why = False, True, why
    if final:
        return [say, *abort(state, Desired.GIVE_UP, Finish(FinishKind.EXPELLED, text=why))]
    return [say, *abort(state, Desired.JOIN, None)]


def _lease_ended(state: WorkersState, waits_for: str) -> list[NodeEffect]:
    text = LEASE_OVER
    state.is_member = False
    if state.telling and not state.cancels:
        return leave.told_enough(state)
    if state.leaving:
        waits_for = ""
    if not is_fenced(state):
        return [kinds.FENCED(f"{text}: {waits_for}")] if waits_for else []
    state.patience_is_over, state.stop_why = True, text
    kills = state.phase in (NodePhase.RUNNING, NodePhase.STOPPING)
    doing = [*(["killing the workers"] if kills else []), *([waits_for] if waits_for else [])]
    said = f"{text}: {', '.join(doing)}" if doing else text
    return [kinds.FENCED(said), *abort(state, Desired.JOIN, None)]


def _helper_died(state: WorkersState, event: HelperDied) -> list[NodeEffect]:
    """Report a dead helper, and stop the round's workers if they run.

    Reported also when workers have failed before: the helper may have been the reason. Ignored if
    all workers here have ended well and no other node needs it.
    """
    if event.stamp != state.stamp or state.phase is NodePhase.IDLE:
        return []
    if state.phase is NodePhase.FINISHED and not event.others_need_it:
        return []
    report = ReportNow(event)
    if state.phase not in (NodePhase.RUNNING, NodePhase.FINISHED) or state.leaving:
        return [report]
    state.stop_why = event.text
    return [report, *stop(state, Desired.JOIN, signal.SIGTERM, state.settings.restart_grace_s)]


def _gone(state: WorkersState, stamp: Stamp, stuck: tuple[int, ...]) -> list[NodeEffect]:
    if stamp != state.stamp:
        return []
    effects = report_ends(state)
    if state.phase is not NodePhase.STOPPING:
        return effects
    if stuck:
        pids = ", ".join(map(str, stuck))
        if state.desired is Desired.JOIN and not state.patience_is_over:
            return effects + _be_patient(state, pids)
        said = kinds.STUCK(pids=pids, then="")
        effects.append(said)
        if state.desired is Desired.JOIN:
            # They hold the devices, and perhaps files, that the next round would need.
            state.desired, state.finish = Desired.GIVE_UP, Finish(FinishKind.STUCK, text=said.text)
    state.phase = NodePhase.IDLE
    return effects + proceed(state)


def _be_patient(state: WorkersState, pids: str) -> list[NodeEffect]:
    """Wait longer for processes that do not die; meanwhile this node keeps its place.

    A file system that hangs usually recovers.
    """
    if state.is_patient:
        return [KillWorkers()]
    state.is_patient = True
    patience_s = state.settings.stop_patience_s
    say = kinds.STUCK(
        pids=pids, then=f": waiting up to {patience_s:g} s more ({named.stop_patience})"
    )
    return [say, wait(state, WaitKind.STUCK, patience_s), KillWorkers()]


def _wait_ended(state: WorkersState, kind: WaitKind, number: int) -> list[NodeEffect]:
    newest = state.newest_wait.get(kind, 0)
    oldest = state.first_grace if kind is WaitKind.GRACE else newest
    if not 0 < oldest <= number <= newest:
        return []
    match kind:
        case WaitKind.GRACE:
            if state.phase is not NodePhase.STOPPING:
                return []
            if state.killing:
                return []
            state.seeks_culprit, state.killing = False, True
            return [
                kinds.KILLING("the workers did not stop within their grace period"),
                KillWorkers(),
            ]
        case WaitKind.STUCK:
            state.patience_is_over = True
            return []
        case WaitKind.SUSPECT:
            return suspects_time_is_over(state)
        case WaitKind.ANNOUNCE:
            return leave.unheard(state)
        case WaitKind.CHECKPOINT:
            return leave.leave_now(state)
        case WaitKind.DRAIN:
            return leave.time_is_over(state)
        case WaitKind.TELL:
            return leave.told_enough(state)
        case WaitKind.REPEAT:
            state.repeated = 0
            return []
        case WaitKind.WITNESS:
            return signals.witness_time_is_over(state)
        case WaitKind.OWN_SIGNAL:
            return signals.own_time_is_over(state)
        case _:
            assert_never(kind)


def _name_round(state: WorkersState, stamp: Stamp) -> None:
    state.stamp, state.is_foreign = stamp, False


def _is_newer(state: WorkersState, stamp: Stamp) -> bool:
    """Return whether this stamp is newer than the one of this node's round.

    Rounds of another life, or of a coordinator that knows none of this node's rounds, can't be
    compared; there the session has accepted the coordinator.
    """
    than = state.stamp
    if than is None or state.is_foreign or stamp.incarnation != than.incarnation:
        return True
    return stamp.round > than.round
