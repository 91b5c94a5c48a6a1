"""The round machine: who takes part, when a round completes, and when it ends.

    step(state, event) -> effects

No clock, no I/O, no randomness. The state belongs to its host and is changed in place; every
event costs O(1), except that completing or ending a round costs O(N log N) or O(N).

    FORMING ----- minimum met -----> LAST_CALL
       |  ^---- fell below it ---------'  |
       | roster back, or maximum met      | last call ended, or maximum met
       v                                  v
    ACTIVE <------------------------------'
       |
       `-- a worker failed, a participant was lost or drains, or late nodes are admitted
           -> FORMING, with the next round number

    JobClosed leads from anywhere to CLOSED, and nothing leads out of it.

A member's state says what runs on its node:

    JOINED    nothing; a candidate of the forming round
    RUNNING   a participant of the active round
    STOPPING  a participant of the ended round, told to stop, not back yet
    LEAVING   draining: its workers may still be stopping, but it takes no part any more
    WAITING   nothing; arrived during an active round, wants the next one
    STANDBY   nothing; no place: the world is at its maximum, or this node is held back or not
              proven yet (`core/fitness.py`, `Prove`)

*The roster.* When a round ends, its live participants that are not draining, and all who wait,
are the roster of the next. Losses shrink it; arrivals join but never extend it. While there is a
roster, the round completes when all of it has joined and the minimum is met. Without one (the
first round, or everyone was lost), it completes at the maximum, or after the last call.

*The gate.* After a round ended, the next one stays `held` until its host has judged the end
(`RoundSettled` -> `RoundReleased`): a verdict may come instead, and a backoff may be due.

*Time* enters as `TimerEnded`; what to wait for is derived from the state (`timers_wanted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from rallypoint.core import fitness, late_nodes, ranks
from rallypoint.core.events import (
    Effect,
    ExpelNode,
    FormWorld,
    GrowthReady,
    JobClosed,
    JoinTimedOut,
    NodeDraining,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeProven,
    NodeSucceeded,
    ProveNode,
    RefuseNode,
    RoundBroken,
    RoundEvent,
    RoundFailed,
    RoundNotStarted,
    RoundOver,
    RoundReleased,
    RoundSettled,
    RoundStarted,
    StandingChanged,
    StopDelayed,
    StopRound,
    Timer,
    TimerEnded,
    TimerKind,
    TooManyLosses,
    WorkersFinishing,
    WorldSucceeded,
)
from rallypoint.core.liveness import is_mass
from rallypoint.core.model import EndKind, EndReason, NodeRef, world_entry
from rallypoint.core.round_state import (
    STOP_SLACK_S,
    MemberState,
    RoundMember,
    RoundPhase,
    RoundState,
    add,
    is_active,
    joined_enough,
    remove,
    renew,
    set_member_state,
    timers_wanted,
    withdraw,
)
from rallypoint.core.settings import OnJoin

NEVER_AGAIN = 2**63
"""The sequence number that marks an agent whose node id another agent has taken: none of its joins
counts any more."""


def step(state: RoundState, event: RoundEvent) -> list[Effect]:
    """Apply one event to the round's state, and return what must be done, in order.

    Safe to apply twice. Nothing happens once the job is closed.
    """
    if state.phase is RoundPhase.CLOSED:
        return []
    match event:
        case NodeJoined():
            return _joined(state, event)
        case NodeLost(ref, why):
            return _gone(state, ref, why, lost=True)
        case NodeLeft(ref):
            return _gone(state, ref, "left", lost=False)
        case NodeDraining():
            return _draining(state, event)
        case GrowthReady(round_):
            return _grow(state) if is_active(state, round_) else []
        case RoundFailed(round_, text, node_id):
            return _over(state, round_, EndReason(EndKind.FAILURE, text, node_id))
        case RoundOver(round_, reason):
            return _over(state, round_, reason)
        case RoundBroken(round_, text, node_id):
            if is_active(state, round_):
                reason = EndReason(EndKind.INFRASTRUCTURE, text, node_id)
                ended = _end_round(state, reason)
                return ended + _count_breakdown(state, node_id) + _proceed(state)
            is_newest = state.held and round_ == state.round - 1
            return _count_breakdown(state, node_id) if is_newest else []
        case RoundReleased(round_):
            if state.phase is not RoundPhase.ACTIVE and round_ == state.round:
                state.held = False
                return _try_complete(state)
        case RoundStarted(round_):
            if is_active(state, round_):
                fitness.forget_bad_routes(state)
        case RoundNotStarted(round_, text):
            if not is_active(state, round_):
                return []
            ended = _end_round(state, EndReason(EndKind.LOSS, text))
            return ended + fitness.give_up_on(state, event) + _proceed(state)
        case WorkersFinishing(round_):
            if is_active(state, round_):
                state.finishing = True
        case NodeSucceeded(ref, round_):
            return _succeeded(state, ref, round_)
        case NodeProven():
            return _proven(state, event)
        case StandingChanged(machine):
            late_nodes.machine_changed(state, machine)
            return _proceed(state)
        case TimerEnded(timer):
            return _timer_ended(state, timer)
        case JobClosed():
            state.phase = RoundPhase.CLOSED
        case _:
            assert_never(event)
    return []


def _joined(state: RoundState, event: NodeJoined) -> list[Effect]:
    ref = event.ref
    if differences := state.settings.differences(event.settings):
        return [RefuseNode(ref, differences)]
    member = state.members.get(ref.node_id)
    last_seq = state.departed.get(ref.incarnation, 0)
    if was_replaced(state, ref):
        state.departed[ref.incarnation] = NEVER_AGAIN  # What it is told now holds for good.
        return [ExpelNode(ref, _superseded(ref), final=True)]
    if event.seq <= last_seq:
        return []
    effects: list[Effect] = []
    if member is not None and member.ref != ref:
        effects += _supersede(state, member)
        member = None
    if member is None:
        member = _arrive(state, event)
        if not member.is_proven:
            effects.append(ProveNode(ref))
    elif event.seq <= member.seq:
        return []
    else:
        effects += _come_back(state, member, event)
    return effects + _proceed(state)


def was_replaced(state: RoundState, ref: NodeRef) -> bool:
    """Return whether another agent has this one's node id now, so that its join is turned down."""
    member = state.members.get(ref.node_id)
    last_seq = state.departed.get(ref.incarnation, 0)
    is_other = member is not None and member.ref != ref
    return last_seq == NEVER_AGAIN or (last_seq > 0 and is_other)


def _arrive(state: RoundState, event: NodeJoined) -> RoundMember:
    """Add a node that was no member; during a round it must prove that it can start workers."""
    late = state.phase is RoundPhase.ACTIVE
    member = RoundMember(event.ref, event.seq, event.candidate, MemberState.STANDBY)
    member.is_proven = not (late and event.candidate.proves)
    add(state, member)
    late_nodes.standing_changed(state, member)
    return member


def _come_back(state: RoundState, member: RoundMember, event: NodeJoined) -> list[Effect]:
    """Handle the join of a member: it has stopped its workers, as it was told or by itself.

    If it had to run them, the round ends.
    """
    effects: list[Effect] = []
    if member.state is MemberState.RUNNING:
        text = f"node {member.ref} came back without its workers"
        effects = _end_round(state, EndReason(EndKind.LOSS, text, member.ref.node_id))
    renew(state, member, event)
    if member.state is MemberState.STOPPING:
        set_member_state(state, member, MemberState.JOINED)
        late_nodes.standing_changed(state, member)
    return effects


def _proven(state: RoundState, event: NodeProven) -> list[Effect]:
    """Handle the answer of a late node that was asked to prove that it can start workers.

    A node that has not reached the active round's store is held back. If it is the store of an
    earlier round that it has not reached, it is asked again. Between rounds only whether it can
    start workers counts.
    """
    member = state.members.get(event.ref.node_id)
    if member is None or member.ref != event.ref or member.is_proven:
        return []
    if event.unreached and state.phase is RoundPhase.ACTIVE:
        if event.round != state.round:
            return [ProveNode(event.ref)]
        host = NodeRef(state.world[0].node_id, state.world[0].incarnation)
        fitness.cut_off(state, event.ref.node_id, host)
        return []
    member.is_proven = True
    late_nodes.standing_changed(state, member)
    return _proceed(state)


def _supersede(state: RoundState, older: RoundMember) -> list[Effect]:
    why = _superseded(older.ref)
    effects = _forget(state, older, why, lost=True)
    state.departed[older.ref.incarnation] = NEVER_AGAIN
    return [ExpelNode(older.ref, why, final=True), *effects]


def _superseded(ref: NodeRef) -> str:
    return f"another agent has joined as node {ref}"


def _gone(state: RoundState, ref: NodeRef, why: str, *, lost: bool) -> list[Effect]:
    member = state.members.get(ref.node_id)
    if member is None or member.ref != ref:
        return []
    return _forget(state, member, why, lost=lost) + _proceed(state)


def _forget(state: RoundState, member: RoundMember, why: str, *, lost: bool) -> list[Effect]:
    ref, member_state = member.ref, member.state
    remove(state, member)
    if member_state is MemberState.WAITING:
        late_nodes.no_longer_waits(state)
    counts_as_loss = lost and not member.succeeded and member_state is not MemberState.LEAVING
    effects: list[Effect] = []
    if member_state is MemberState.RUNNING and not member.succeeded:
        kind = EndKind.LOSS if lost else EndKind.DRAIN
        text = f"node {ref} was lost: {why}" if lost else f"node {ref} left"
        effects = _end_round(state, EndReason(kind, text, ref.node_id))
    if counts_as_loss and member_state in (MemberState.RUNNING, MemberState.STOPPING):
        effects += count_loss(state, fitness.machine_of(member), ref.node_id)
    _host_is_gone(state, ref)
    return effects


def count_loss(state: RoundState, machine: str, node_id: str) -> list[Effect]:
    """Count the loss of a node on this machine, and hold the machine back after too many.

    It counts for the round that has just ended. Returns `TooManyLosses` if the job allows no more.
    """
    is_too_often = fitness.count_loss(state, machine, node_id)
    if machine in state.fitness.machines:
        late_nodes.machine_changed(state, machine)
    return [TooManyLosses(len(state.lossy_rounds))] if is_too_often else []


def _count_breakdown(state: RoundState, node_id: str) -> list[Effect]:
    """Count the death of a helper process on this node as a loss of its machine, once a round."""
    member = state.members.get(node_id)
    machine = fitness.machine_of(member) if member else node_id
    name = f"{state.round} {machine}"
    if state.fitness.last_broken == name:
        return []
    state.fitness.last_broken = name
    return count_loss(state, machine, node_id)


def _host_is_gone(state: RoundState, host: NodeRef) -> None:
    for member in fitness.host_is_gone(state, host):
        late_nodes.standing_changed(state, member)


def _draining(state: RoundState, event: NodeDraining) -> list[Effect]:
    ref = event.ref
    member = state.members.get(ref.node_id)
    if member is None or member.ref != ref or member.state is MemberState.LEAVING:
        return []
    member_state = member.state
    if event.success_is_void and member.succeeded:
        member.succeeded = False
        state.succeeded -= 1
    withdraw(state, member)
    set_member_state(state, member, MemberState.LEAVING)
    if member_state is MemberState.WAITING:
        late_nodes.no_longer_waits(state)
    effects: list[Effect] = []
    if member_state is MemberState.RUNNING and not member.succeeded:
        text = f"node {ref} is leaving: {event.why}"
        effects = _end_round(state, EndReason(EndKind.DRAIN, text, ref.node_id))
    _host_is_gone(state, ref)
    return effects + _proceed(state)


def _succeeded(state: RoundState, ref: NodeRef, round_: int) -> list[Effect]:
    member = state.members.get(ref.node_id)
    if not is_active(state, round_) or member is None or member.ref != ref:
        return []
    if member.state is not MemberState.RUNNING or member.succeeded:
        return []
    member.succeeded = True
    state.finishing = True
    state.succeeded += 1
    return [WorldSucceeded(round_)] if state.succeeded == len(state.world) else []


def _timer_ended(state: RoundState, timer: Timer) -> list[Effect]:
    if timer not in timers_wanted(state):
        return []
    match timer.kind:
        case TimerKind.LAST_CALL:
            return _complete(state)
        case TimerKind.JOIN:
            here = {m.ref.node_id for m in state.members.values() if m.state is MemberState.JOINED}
            held_back = fitness.cut_off_nodes(state)
            gone = (p.node_id for p in state.world if p.node_id not in {*here, *held_back})
            return [JoinTimedOut(state.round, tuple(sorted(here)), tuple(gone), held_back)]
        case TimerKind.STOP:
            return _stop_overdue(state)
        case TimerKind.GROWTH_INTERVAL:
            state.is_old_enough = True
            return _try_grow(state)
        case TimerKind.SETTLE | TimerKind.SETTLE_MAX:
            state.settled = True
            state.overdue = timer.kind is TimerKind.SETTLE_MAX
            return _try_grow(state)
        case TimerKind.QUARANTINE:
            return _quarantine_over(state, timer.round)
        case TimerKind.HEALTHY_HOUR:
            fitness.healthy_hour(state, timer.id)
            late_nodes.machine_changed(state, timer.id)
            return _proceed(state)
        case TimerKind.NEEDED:
            late_nodes.take_all(state)
            return _proceed(state)
        case TimerKind.LOSS_RECENT:
            fitness.forget_loss(state, timer.id)
        case TimerKind.LOSS_HOUR:
            fitness.forget_lossy_round(state, timer.round)
        case TimerKind.FAILURE_HOUR:
            fitness.forget_failure(state, timer.id)
        case _:
            pass  # the job's own
    return []


def _quarantine_over(state: RoundState, number: int) -> list[Effect]:
    """End the quarantine with this number: of a machine, or of a node with a bad route.

    The machine's nodes may take part again. A node with a bad route is to prove that it reaches
    the store of the round that runs, if one does.
    """
    name = fitness.quarantine_over(state, number)
    member = state.members.get(name or "")
    if member is not None and name in state.bad_routes:
        if state.phase is RoundPhase.ACTIVE and member.candidate.proves:
            member.is_proven = False
            return [ProveNode(member.ref)]
        late_nodes.standing_changed(state, member)
    elif name is not None:
        late_nodes.machine_changed(state, name)
    return _proceed(state)


def _stop_overdue(state: RoundState) -> list[Effect]:
    """Expel the nodes that have not stopped in time. If they are many, wait once more first."""
    stuck = [m.ref for m in state.members.values() if m.state is MemberState.STOPPING]
    after_s, more_s = state.stop_grace_s + STOP_SLACK_S, state.settings.stop_patience_s
    if not state.is_patient and more_s and is_mass(len(stuck), len(state.world)):
        state.is_patient = True
        return [StopDelayed(tuple(ref.node_id for ref in stuck), len(state.world), after_s)]
    why = f"would not stop within {after_s + (more_s if state.is_patient else 0):g} s"
    effects: list[Effect] = []
    for ref in stuck:
        effects.append(ExpelNode(ref, why, final=False))
        effects += _gone(state, ref, why, lost=True)
    return effects


def _end_round(state: RoundState, reason: EndReason) -> list[Effect]:
    """End the active round, and decide which nodes the next one waits for (its roster). O(N)."""
    ended = state.round
    state.phase, state.round, state.held = RoundPhase.FORMING, ended + 1, True
    state.finishing, state.succeeded, state.eager_waiting = False, 0, 0
    state.roster_size, state.stop_grace_s, state.is_patient = 0, 0.0, False
    state.is_short = False
    for member in state.members.values():
        member.succeeded = member.is_eager = False
        match member.state:
            case MemberState.RUNNING:
                set_member_state(state, member, MemberState.STOPPING)
                state.stop_grace_s = max(state.stop_grace_s, member.candidate.stop_grace_s)
            case MemberState.WAITING:
                set_member_state(state, member, MemberState.JOINED)
            case MemberState.STANDBY:
                if fitness.may_take_part(state, member):
                    set_member_state(state, member, MemberState.JOINED)
                continue
            case _:
                continue
        if fitness.may_take_part(state, member):
            member.in_roster = True
            state.roster_size += 1
    return [StopRound(ended, reason)]


def _over(state: RoundState, round_: int, reason: EndReason) -> list[Effect]:
    return _end_round(state, reason) + _proceed(state) if is_active(state, round_) else []


def _proceed(state: RoundState) -> list[Effect]:
    """Return what a change of members leads to: a round is judged, formed, or ended to grow."""
    return [*_settle(state), *_try_complete(state), *_try_grow(state)]


def _settle(state: RoundState) -> list[Effect]:
    """Ask the job, by an effect, to judge the round that ended, when no member is stopping.

    Asks again at later events until the job releases the next round, as it may wait for a backoff.
    Judging twice is harmless.
    """
    forming = state.phase in (RoundPhase.FORMING, RoundPhase.LAST_CALL)
    if forming and state.held and not state.counts[MemberState.STOPPING]:
        return [RoundSettled(state.round)]
    return []


def _try_complete(state: RoundState) -> list[Effect]:
    if state.phase not in (RoundPhase.FORMING, RoundPhase.LAST_CALL) or state.held:
        return []
    settings, enough = state.settings, joined_enough(state)
    if state.roster_size:
        roster_is_back = not state.counts[MemberState.STOPPING]
        return _complete(state) if roster_is_back and enough else []
    if enough and state.counts[MemberState.JOINED] >= (state.expected or settings.max_nodes):
        return _complete(state)
    state.phase = RoundPhase.LAST_CALL if enough else RoundPhase.FORMING
    return []


def _complete(state: RoundState) -> list[Effect]:
    joined = [m for m in state.members.values() if m.state is MemberState.JOINED]
    chosen = _choose(state, [m for m in joined if fitness.may_take_part(state, m)])
    if len(chosen) < state.settings.min_nodes:
        chosen = _choose(state, joined)  # Those that are held back are needed.
    ordered = ranks.order(state.world, chosen, not_first=state.passed_over)
    for member in joined:
        member.in_roster = False
        set_member_state(state, member, MemberState.STANDBY)
    for node in ordered:
        set_member_state(state, state.members[node.ref.node_id], MemberState.RUNNING)
    state.world = [world_entry(node.ref, node.candidate) for node in ordered]
    state.phase, state.roster_size, state.expected = RoundPhase.ACTIVE, 0, 0
    state.is_short = False
    state.is_old_enough = state.settings.min_growth_interval_s == 0
    state.largest_world = max(state.largest_world, len(ordered))
    fitness.formed(state)
    return [FormWorld(state.round, tuple(ordered))]


def _choose(state: RoundState, members: Sequence[RoundMember]) -> list[ranks.Participant]:
    offered = [(m.in_roster, ranks.Participant(m.ref, m.candidate)) for m in members]
    return ranks.choose(offered, state.settings.max_nodes, state.settings.world_multiple_of)


def _try_grow(state: RoundState) -> list[Effect]:
    """End the active round to admit the waiting nodes, if it is time (behaviour R2)."""
    if state.settings.on_join is OnJoin.AT_CHECKPOINT or not late_nodes.may_be_admitted(state):
        return []
    return _grow(state)


def _grow(state: RoundState) -> list[Effect]:
    waiting = state.eager_waiting
    text = f"{waiting} more node{'s' if waiting > 1 else ''} joined"
    if not waiting:
        text = "the workers have saved a checkpoint for nodes that have left since"
    return _end_round(state, EndReason(EndKind.GROWTH, text)) + _settle(state)
