"""Nodes that are not trusted for a while: they keep getting lost (behaviour R3), or could not reach
the round store of rank 0 (behaviour F9).

A node lost three times in ten minutes triggers nothing for a while when it comes back, twice as
long with every further loss. A job that has to begin a new round for lost nodes more often in an
hour than it allows only burns its machines, and ends; how many nodes a round loses, a whole rack
for example, does not matter.

A node that alone failed to enrol is expelled and *held back*: it comes back as one that stands by,
and is no candidate of any round until its quarantine is over, or until the node that it did not
reach has gone, and with it that rank 0. The quarantine doubles with each failure in a row, because
each new try costs those who run a restart. When rank 0 itself was at fault it is *passed over*:
another node is rank 0 of the next round, if there is one. Both are forgotten when a round has
started.

Who is at fault is decided in `job_enrolment.py`.
"""

from __future__ import annotations

from rallypoint.core.events import Effect, ExpelNode, RoundNotStarted, TooManyLosses
from rallypoint.core.model import NodeRef
from rallypoint.core.round_state import (
    BadRoute,
    Loss,
    MemberState,
    Phase,
    RoundState,
    remove,
    set_member_state,
)

FLAPPING = 3
"""So many recent losses of one node put it in quarantine."""
QUARANTINE_MAX_S = 600.0
HELD_BACK_MAX_S = 3600.0
REMEMBERED_MAX = 1000
"""So many losses, and so many nodes with a bad route, are remembered, the newest: they are part of
what each record of the job holds."""


def count_loss(state: RoundState, node_id: str) -> list[Effect]:
    """A participant of the round that has just ended was lost, as its end or after it."""
    state.loss_count += 1
    state.recent_losses.append(Loss(state.loss_count, node_id))
    del state.recent_losses[:-REMEMBERED_MAX]
    return count_round(state)


def count_round(state: RoundState) -> list[Effect]:
    """The round that has just ended was lost, or would have been for this too. Safe to repeat."""
    ended = state.round - 1
    if ended in state.lossy_rounds:
        return []
    state.lossy_rounds.append(ended)
    if len(state.lossy_rounds) > state.settings.max_node_losses_per_hour:
        return [TooManyLosses(len(state.lossy_rounds))]
    return []


def _lost_lately(state: RoundState, node_id: str) -> int:
    """How often this node was lost in the last ten minutes."""
    return sum(loss.node_id == node_id for loss in state.recent_losses)


def length_s(state: RoundState, node_id: str) -> float:
    """How long a node that joins now must trigger nothing; 0: it is trusted."""
    return max(_flapping_s(state, node_id), _held_back_s(state, node_id))


def _flapping_s(state: RoundState, node_id: str) -> float:
    """Because it keeps getting lost; 0: it does not."""
    lost = _lost_lately(state, node_id)
    if lost < FLAPPING:
        return 0.0
    return min(state.settings.lease_s * 2.0**lost, QUARANTINE_MAX_S)


def _held_back_s(state: RoundState, node_id: str) -> float:
    """Because it did not reach the store of rank 0; 0: no such failure is known."""
    bad = state.bad_routes.get(node_id)
    if bad is None:
        return 0.0
    doublings = min(FLAPPING + bad.failures - 1, 30)
    return min(state.settings.lease_s * 2.0**doublings, HELD_BACK_MAX_S)


def forget_loss(state: RoundState, loss_id: str) -> None:
    """Ten minutes have passed since."""
    state.recent_losses = [loss for loss in state.recent_losses if str(loss.id) != loss_id]


def forget_lossy_round(state: RoundState, round_: int) -> None:
    """An hour has passed since."""
    state.lossy_rounds = [lossy for lossy in state.lossy_rounds if lossy != round_]


def is_held_back(state: RoundState, node_id: str) -> bool:
    """It may not take part in any round yet."""
    bad = state.bad_routes.get(node_id)
    if bad is None or node_id not in state.quarantine:
        return False
    host = state.members.get(bad.host.node_id)
    return host is not None and host.ref == bad.host and host.state is not MemberState.LEAVING


def host_is_gone(state: RoundState, host: NodeRef) -> None:
    """Who did not reach the store of this node may reach that of the next rank 0."""
    if state.phase is Phase.ACTIVE:
        return
    for node_id, bad in state.bad_routes.items():
        member = state.members.get(node_id)
        if bad.host == host and member is not None and member.state is MemberState.STANDBY:
            set_member_state(state, member, MemberState.JOINED)


def held_back_nodes(state: RoundState) -> tuple[str, ...]:
    """The ids of all such members, sorted. O(N)."""
    return tuple(sorted(node_id for node_id in state.quarantine if is_held_back(state, node_id)))


def why_held_back(state: RoundState, node_id: str) -> str:
    """For how long a node that came back triggers no round, and why; empty: it is trusted."""
    if node_id not in state.quarantine:
        return ""
    lost = _lost_lately(state, node_id)
    why = f", for it was lost {lost} times in ten minutes" if lost >= FLAPPING else ""
    return f"held back for {state.quarantine[node_id]:g} s{why}"


def give_up_on(state: RoundState, event: RoundNotStarted) -> list[Effect]:
    """Expel who failed, and remember who may not be rank 0. The round has been ended before."""
    if event.passed_over:
        state.passed_over.append(event.passed_over)
    host = NodeRef(state.world[0].node_id, state.world[0].incarnation)
    effects: list[Effect] = []
    for ref, why in event.expelled:
        member = state.members.get(ref.node_id)
        if member is None or member.ref != ref:
            continue
        before = state.bad_routes.get(ref.node_id)
        failures = 1 if before is None else before.failures + 1
        state.bad_routes[ref.node_id] = BadRoute(host, failures)
        if len(state.bad_routes) > REMEMBERED_MAX:
            del state.bad_routes[next(iter(state.bad_routes))]
        remove(state, member)
        until = f"held back for {_held_back_s(state, ref.node_id):g} s"
        effects.append(ExpelNode(ref, f"{why}; {until}", final=False))
    return effects


def forget_bad_routes(state: RoundState) -> None:
    """Every node of the world has reached rank 0's store: all routes are good."""
    state.passed_over.clear()
    for entry in state.world:
        state.bad_routes.pop(entry.node_id, None)
    state.started_world = frozenset(entry.incarnation for entry in state.world)
