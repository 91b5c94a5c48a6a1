"""Nodes that keep getting lost (behaviour R3).

A node lost three times in ten minutes triggers nothing for a while when it comes back, twice as
long with every further loss. A job that has to begin a new round for lost nodes more often in an
hour than it allows only burns its machines, and ends; how many nodes a round loses, a whole rack
for example, does not matter.
"""

from __future__ import annotations

from rallypoint.core.events import Effect, TooManyLosses
from rallypoint.core.round_state import Loss, RoundState

FLAPPING = 3
"""So many recent losses of one node put it in quarantine."""
QUARANTINE_MAX_S = 600.0


def count_loss(state: RoundState, node_id: str) -> list[Effect]:
    """A participant of the round that has just ended was lost, as its end or after it."""
    state.loss_count += 1
    state.recent_losses.append(Loss(state.loss_count, node_id))
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


def lost_lately(state: RoundState, node_id: str) -> int:
    """How often this node was lost in the last ten minutes."""
    return sum(loss.node_id == node_id for loss in state.recent_losses)


def quarantine_s(state: RoundState, node_id: str) -> float:
    """How long a node that comes back now must trigger nothing; 0: it is trusted."""
    lost = lost_lately(state, node_id)
    if lost < FLAPPING:
        return 0.0
    return min(state.settings.lease_s * 2.0**lost, QUARANTINE_MAX_S)


def forget_recent(state: RoundState, loss_id: str) -> None:
    """Ten minutes have passed."""
    state.recent_losses = [loss for loss in state.recent_losses if str(loss.id) != loss_id]


def forget(state: RoundState, round_: int) -> None:
    """An hour has passed."""
    state.lossy_rounds = [lossy for lossy in state.lossy_rounds if lossy != round_]
