"""Nodes that join while a round is active (behaviour R2): waiting for a place, or on standby.

Free places go to the nodes that came first, but a node that is not trusted (`fitness.py`) makes way
for one that is: no round ends to admit it, so it would only keep the other one from the job.
"""

from __future__ import annotations

from collections import Counter

from rallypoint.core.fitness import is_barred, is_trusted, machine_of, may_take_part
from rallypoint.core.ranks import fitting
from rallypoint.core.round_state import (
    MemberState,
    RoundMember,
    RoundPhase,
    RoundState,
    set_member_state,
    withdraw,
)
from rallypoint.core.settings import OnJoin


def are_wanted(state: RoundState) -> bool:
    """Return whether late nodes wait, and the active round may end to admit them.

    Late nodes came during that round, or stood by until a place was free. Their machines must be
    trusted (no recent faults). The settings must permit it, the round must be old enough, and no
    worker of it must have ended well yet.
    """
    may = (
        state.phase is RoundPhase.ACTIVE
        and state.settings.on_join is not OnJoin.HOLD
        and not state.finishing
    )
    return may and state.is_old_enough and state.eager_waiting > 0


def may_be_admitted(state: RoundState) -> bool:
    """Return whether to end the active round now, so that the next one admits late nodes.

    Late nodes must be wanted (`are_wanted`). Besides, an earlier world must have been larger, or
    they make the job full, or the wait for further arrivals must be over. With `world_multiple_of`,
    the world must grow too.
    """
    if not are_wanted(state):
        return False
    size, waiting = len(state.world), state.eager_waiting
    vacant = state.largest_world - size
    full = size + waiting >= state.settings.max_nodes
    is_time = vacant > 0 or full or state.settled or state.settings.join_settle_s == 0
    return is_time and (state.settings.world_multiple_of == 1 or _would_grow(state))


def seek_place(state: RoundState, member: RoundMember) -> None:
    """Let a standby node wait for a free place in the next round, if there is one.

    If there is none, a node whose machine is trusted (no recent faults) takes the place of a
    waiting one whose machine is not.
    """
    if free_places(state):
        _wait(state, member)
    elif is_trusted(state, member) and state.counts[MemberState.WAITING] > state.eager_waiting:
        doubtful = next(
            m for m in state.members.values() if m.state is MemberState.WAITING and not m.is_eager
        )
        set_member_state(state, doubtful, MemberState.STANDBY)
        _wait(state, member)


def no_longer_waits(state: RoundState) -> None:
    """Let one standby node wait for a place that has become free. O(N).

    It is the first one whose machine is trusted (no recent faults), else the first one.
    """
    if not state.counts[MemberState.STANDBY] or not free_places(state):
        return
    spares = [m for m in state.members.values() if _is_spare(state, m)]
    if spares:
        _wait(state, next((m for m in spares if is_trusted(state, m)), spares[0]))


def machine_changed(state: RoundState, machine: str) -> None:
    """Update each node on a machine that is held back now, or no longer, or trusted again. O(N)."""
    for member in list(state.members.values()):
        if machine_of(member) == machine:
            standing_changed(state, member)


def standing_changed(state: RoundState, member: RoundMember) -> None:
    """Update a node's state after a change of whether it may take part in rounds, or is trusted."""
    may = may_take_part(state, member) or (state.is_short and not is_barred(state, member))
    match member.state:
        case MemberState.JOINED | MemberState.WAITING if not may:
            waited = member.state is MemberState.WAITING
            withdraw(state, member)
            set_member_state(state, member, MemberState.STANDBY)
            if waited:
                no_longer_waits(state)
        case MemberState.STOPPING if not may:
            withdraw(state, member)
        case MemberState.WAITING if is_trusted(state, member) and not member.is_eager:
            _arrived(state, member)
        case MemberState.STANDBY if may and state.phase is RoundPhase.ACTIVE:
            seek_place(state, member)
        case MemberState.STANDBY if may:
            set_member_state(state, member, MemberState.JOINED)
        case _:
            pass


def take_all(state: RoundState) -> None:
    """Let held-back nodes take part, because too few others have joined. O(N).

    Nodes that a person has excluded, or that can't reach rank 0's store, still stand by.
    """
    state.is_short = True
    for member in list(state.members.values()):
        standing_changed(state, member)


def free_places(state: RoundState) -> int:
    """Return how many nodes the active world lacks to the job's maximum, less the waiting ones."""
    return state.settings.max_nodes - len(state.world) - state.counts[MemberState.WAITING]


def _would_grow(state: RoundState) -> bool:
    """Return whether the world would grow by the nodes that wait or stand by. O(N)."""
    settings, here = state.settings, (MemberState.RUNNING, MemberState.WAITING)
    workers = Counter(
        member.candidate.workers
        for member in state.members.values()
        if member.state in here or _is_spare(state, member)
    )
    return fitting(workers, settings.max_nodes, settings.world_multiple_of) > len(state.world)


def _is_spare(state: RoundState, member: RoundMember) -> bool:
    """Return whether the member stands by, and may take part.

    A node that is held back stands by, too, but may not take part.
    """
    return member.state is MemberState.STANDBY and may_take_part(state, member)


def _wait(state: RoundState, member: RoundMember) -> None:
    set_member_state(state, member, MemberState.WAITING)
    if is_trusted(state, member):
        _arrived(state, member)


def _arrived(state: RoundState, member: RoundMember) -> None:
    member.is_eager = True
    state.arrivals += 1
    if not state.eager_waiting:
        state.first_arrival = state.arrivals
        state.overdue = False
    state.settled = state.overdue
    state.eager_waiting += 1
