"""The sender of a heartbeat, as the leader identifies it (section L2 of the design). Pure.

A promise counts only for the place of its sender. The leader takes that place from the newest world
that it knows: the world that it has formed, or during a takeover the world of the agents that have
come back. So an agent can't promise for the places of others. An agent is not a candidate, and a
candidate has no place.
"""

from __future__ import annotations

from rallypoint.core.job_state import JobState
from rallypoint.core.model import Stamp
from rallypoint.core.round_state import RoundPhase
from rallypoint.core.takeover.consent import NO_ROUND, Speaker
from rallypoint.core.takeover.heirs import RANKS
from rallypoint.core.takeover.recovery import Recovery


def agent(
    job: JobState, recovery: Recovery | None, connection: int, incarnation: str
) -> Speaker | None:
    """Return this agent as the sender of promises on this connection of its session.

    None: its promises do not count. It has none of the first four places of the newest world, or
    two agents contest a place there. `recovery` is that of `Handover`.
    """
    if recovery is not None:
        stamp, first = _newest_recorded(recovery), _returned(recovery)
    else:
        state = job.round
        stamp = Stamp(job.incarnation, state.round - (state.phase is not RoundPhase.ACTIVE))
        first = [entry.incarnation for entry in state.world[:RANKS]]
    if stamp is None or incarnation not in first:
        return None
    return Speaker(connection, (stamp, first.index(incarnation), 0))


def candidate(connection: int, number: int) -> Speaker:
    """Return the candidate of this number as the sender of promises on this connection.

    `number` is the one in the first heartbeat on the connection.
    """
    return Speaker(connection, (NO_ROUND, 0, number))


def _newest_recorded(recovery: Recovery) -> Stamp | None:
    record = recovery.record
    if record.newest_round is None or recovery.is_contested:
        return None  # Two agents say that they are the same one.
    return Stamp(record.incarnation, record.newest_round)


def _returned(recovery: Recovery) -> list[str]:
    nodes = (recovery.returned.get(rank) for rank in range(RANKS))
    return ["" if node is None else node.ref.incarnation for node in nodes]
