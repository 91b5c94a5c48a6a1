"""Nodes that could not reach the round store of rank 0 (behaviour F9).

A node that alone failed to enrol is expelled and *held back*: it comes back as one that stands by,
and is no candidate of any round until its quarantine is over, or until the node that it did not
reach has gone, and with it that rank 0. The quarantine doubles with each failure in a row, because
each new try costs those who run a restart. When rank 0 itself was at fault it is *passed over*:
another node is rank 0 of the next round, if there is one. Both are forgotten when a round has
started.

Who is at fault is decided in `job_enrolment.py`.
"""

from __future__ import annotations

from rallypoint.core.events import Effect, ExpelNode, RoundNotStarted
from rallypoint.core.losses import FLAPPING
from rallypoint.core.model import NodeRef
from rallypoint.core.round_state import (
    BadRoute,
    MemberState,
    Phase,
    RoundState,
    remove,
    set_member_state,
)

HELD_BACK_MAX_S = 3600.0


def held_back_s(state: RoundState, node_id: str) -> float:
    """How long a node that joins now is no candidate; 0: its routes are not known to be bad."""
    bad = state.bad_routes.get(node_id)
    if bad is None:
        return 0.0
    doublings = min(FLAPPING + bad.failures - 1, 30)
    return min(state.settings.lease_s * 2.0**doublings, HELD_BACK_MAX_S)


def is_held_back(state: RoundState, node_id: str) -> bool:
    """It may not take part in any round yet."""
    bad = state.bad_routes.get(node_id)
    if bad is None or node_id not in state.quarantine:
        return False
    host = state.members.get(bad.host.node_id)
    return host is not None and host.ref == bad.host and host.state is not MemberState.LEAVING


def gone(state: RoundState, host: NodeRef) -> None:
    """Who did not reach the store of this node may reach that of the next rank 0."""
    if state.phase is Phase.ACTIVE:
        return
    for node_id, bad in state.bad_routes.items():
        member = state.members.get(node_id)
        if bad.host == host and member is not None and member.state is MemberState.STANDBY:
            set_member_state(state, member, MemberState.JOINED)


def held_back(state: RoundState) -> tuple[str, ...]:
    """The ids of all such members, sorted. O(N)."""
    return tuple(sorted(node_id for node_id in state.quarantine if is_held_back(state, node_id)))


def give_up_on(state: RoundState, event: RoundNotStarted) -> list[Effect]:
    """Expel who failed, and remember who may not be rank 0. The round has been ended before."""
    if event.passed_over:
        state.passed_over.append(event.passed_over)
    host = NodeRef(state.places[0].node_id, state.places[0].incarnation)
    effects: list[Effect] = []
    for ref, why in event.expelled:
        member = state.members.get(ref.node_id)
        if member is None or member.ref != ref:
            continue
        before = state.bad_routes.get(ref.node_id)
        failures = 1 if before is None else before.failures + 1
        state.bad_routes[ref.node_id] = BadRoute(host, failures)
        remove(state, member)
        until = f"held back for {held_back_s(state, ref.node_id):g} s"
        effects.append(ExpelNode(ref, f"{why}; {until}", final=False))
    return effects


def started(state: RoundState) -> None:
    """Every node of the world has reached rank 0's store: all routes are good."""
    state.passed_over.clear()
    for place in state.places:
        state.bad_routes.pop(place.node_id, None)
    state.started_world = frozenset(place.incarnation for place in state.places)
