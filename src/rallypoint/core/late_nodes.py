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
    """Return whether a late node waits, and the active round may end for it."""
    may = (
        state.phase is RoundPhase.ACTIVE
        and state.settings.on_join is not OnJoin.HOLD
        and not state.finishing
    )
    return may and state.is_old_enough and state.eager_waiting > 0


def may_be_admitted(state: RoundState) -> bool:
    """Return whether a vacant place can be filled, or the job be full, or arrivals have settled."""
    if not are_wanted(state):
        return False
    size, waiting = len(state.world), state.eager_waiting
    vacant = state.largest_world - size
    full = size + waiting >= state.settings.max_nodes
    is_time = vacant > 0 or full or state.settled or state.settings.join_settle_s == 0
    return is_time and (state.settings.world_multiple_of == 1 or _would_grow(state))


def seek_place(state: RoundState, member: RoundMember) -> None:
    """Let a standby node wait for a place, if there is one for it."""
    if free_places(state):
        _wait(state, member)
    elif is_trusted(state, member) and state.counts[MemberState.WAITING] > state.eager_waiting:
        doubtful = next(
            m for m in state.members.values() if m.state is MemberState.WAITING and not m.is_eager
        )
        set_member_state(state, doubtful, MemberState.STANDBY)
        _wait(state, member)


def no_longer_waits(state: RoundState) -> None:
    """Let the first standby node wait for a place that has become free. O(N)."""
    if not state.counts[MemberState.STANDBY] or not free_places(state):
        return
    spares = [m for m in state.members.values() if _is_spare(state, m)]
    if spares:
        _wait(state, next((m for m in spares if is_trusted(state, m)), spares[0]))


def machine_changed(state: RoundState, machine: str) -> None:
    """Update the members on a machine whose standing has changed. O(N)."""
    for member in list(state.members.values()):
        if machine_of(member) == machine:
            standing_changed(state, member)


def standing_changed(state: RoundState, member: RoundMember) -> None:
    """Update a member that may now take part, may no longer do so, or is trusted again."""
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
    """Too few have come: those that are held back take part, too. O(N)."""
    state.is_short = True
    for member in list(state.members.values()):
        standing_changed(state, member)


def free_places(state: RoundState) -> int:
    """Return the number of places in the active world that are free and not waited for."""
    return state.settings.max_nodes - len(state.world) - state.counts[MemberState.WAITING]


def _would_grow(state: RoundState) -> bool:
    """Return whether the world would have more nodes with late and standby nodes. O(N)."""
    settings, here = state.settings, (MemberState.RUNNING, MemberState.WAITING)
    workers = Counter(
        member.candidate.workers
        for member in state.members.values()
        if member.state in here or _is_spare(state, member)
    )
    return fitting(workers, settings.max_nodes, settings.world_multiple_of) > len(state.world)


def _is_spare(state: RoundState, member: RoundMember) -> bool:
    """Return whether the member stands by, and may take part.

    A node that is held back has no place to wait for.
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
