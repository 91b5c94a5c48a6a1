"""The processes that may lead a job next (section L1 of the design). Pure.

The heirs are the nodes with the first group ranks of the newest world, without the leader's own:
every node knows its rank, so that leader and heirs agree without a message. Before them come
candidates: processes that are not nodes of the job (`rallypoint serve --candidate`), which the
leader has listed in the record. A claim swaps against the list, so a listed candidate and the
leader agree, too. The leader does not rely on the promises of an unlisted candidate, which waits
like a node that is not an heir.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct

from rallypoint.core.model import DeadPlace, SharedSettings, Stamp
from rallypoint.core.takeover.record import JobRecord, LeadRecord
from rallypoint.core.takeover.told import Position

RANKS = 4
"""The number of first group ranks of which the nodes are heirs; the leader's own node is none."""
STAGGER_S = 0.25
"""The seconds between the turns of two claimants: as a rule a claim takes no longer."""
AFTER_HEIRS_S = 1.5
"""The delay in seconds of other nodes' claims after the first heir's."""
AFTER_OTHERS_S = 2.0
"""The delay in seconds of the claim of a node that leaves the job, because it would not lead for
long."""
CANDIDATES_MAX = 3
"""The most candidates that a record lists."""
CANDIDATES_FIRST_S = 1.0
"""The delay in seconds of nodes' claims after those of listed candidates, which look at least this
often."""


def heirs(nodes: int, leader_rank: int) -> list[int]:
    """Return the group ranks of the heirs of a world of so many nodes.

    They are the first four, without `leader_rank`, that of the leader's own node; -1: it is not
    there.
    """
    return [rank for rank in range(min(nodes, RANKS)) if rank != leader_rank]


def heirs_of(record: JobRecord | None) -> list[int]:
    """Return the group ranks of the heirs of the active world; empty: any node may lead next.

    Empty also if the leader's node is alone in the world.
    """
    if record is None or not record.is_active or record.verdict is not None:
        return []
    return heirs(record.nodes, record.leader_rank)


class Claimant(Struct, frozen=True):
    """The place in the job of a process that would lead. By default it has no part in any job."""

    stamp: Stamp | None = None
    """The newest round in which it has a place."""
    rank: int = -1
    """The group rank of its node in that round."""
    is_leaving: bool = False
    spread: float = 0.0
    """A random number between 0 and 1: claimants that are no heirs take turns by it."""
    promised_until: float = -inf
    """The time before which this process has promised not to claim, unless the leader is gone or
    says that it goes."""
    defers_until: float = -inf
    """The time until which this process, which has led and stepped down, lets others claim first:
    they may reach nodes that it did not."""
    candidate: int = 0
    """The number of a candidate, drawn by chance; 0: it is none."""
    freed_epoch: int = 0
    """The epoch of the leader that handed the job over to this process; 0: none has."""
    is_fresh: bool = False
    """Whether it has taken no part in the job, so that it would begin an ended job anew."""
    dead: tuple[DeadPlace, ...] = ()
    """The places of dead nodes that this process knew before it looked for a leader."""
    told: Position | None = None
    """The newest position of the job's record that a leader has sent it."""
    settings: SharedSettings | None = None
    """The settings of the job, if known."""


class Turn(Struct, frozen=True):
    """The turn of a claimant: how long after the first one it may claim the job."""

    delay_s: float
    is_heir: bool
    """Whether it need not wait for heirs."""


def rank_in(record: LeadRecord, claimant: Claimant) -> int:
    """Return the claimant's group rank in the newest world of the record; -1: it has none."""
    job = record.job
    if job is None or job.newest_round is None:
        return -1
    is_there = claimant.stamp == Stamp(job.incarnation, job.newest_round)
    return claimant.rank if is_there and claimant.rank < job.nodes else -1


def knows_dead_heir(record: LeadRecord, claimant: Claimant | None) -> bool:
    """Return whether the claimant knows of a dead heir, whose promises end with it.

    Without them the leader can't act beyond its hold.
    """
    job = record.job
    if job is None or job.newest_round is None or claimant is None:
        return False
    ranks, stamp = heirs_of(job), Stamp(job.incarnation, job.newest_round)
    return any(place.stamp == stamp and place.group_rank in ranks for place in claimant.dead)


def turn_of(record: LeadRecord, claimant: Claimant) -> Turn:
    """Return when this claimant may claim, compared with the others, over this record."""
    if claimant.candidate in record.candidates:
        return Turn(STAGGER_S * record.candidates.index(claimant.candidate), True)
    delay_s = AFTER_OTHERS_S if claimant.is_leaving else 0.0
    delay_s += CANDIDATES_FIRST_S if record.candidates else 0.0
    ranks, rank = heirs_of(record.job), rank_in(record, claimant)
    if rank in ranks:
        return Turn(delay_s + STAGGER_S * ranks.index(rank), True)
    delay_s += STAGGER_S * claimant.spread
    # A leader that is no node acts by no promises: nobody has to wait until they have ended.
    waits = record.leader.has_workers or not claimant.candidate
    return Turn(delay_s + AFTER_HEIRS_S, not waits) if ranks else Turn(delay_s, True)


class HeardCandidates:
    """The candidates that are connected to one leader."""

    def __init__(self) -> None:
        self._heard_at: dict[int, tuple[float, int]] = {}
        """The time when each candidate was heard last, and its connection, by the numbers of
        candidates."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of these candidates, which the leader lists in its next record."""
        return tuple(self._heard_at)

    def heard(self, number: int, connection: int, now: float) -> bool:
        """Note a promise of this candidate; return whether it counts.

        It does not if there is no place for one more, or if the candidate is known by another
        connection, so that another process sent it.
        """
        known = self._heard_at.get(number)
        if len(self._heard_at) >= CANDIDATES_MAX if known is None else known[1] != connection:
            return False
        self._heard_at[number] = now, connection
        return True

    def drop_silent(self, since: float) -> None:
        """Drop the candidates that were last heard before the time `since`."""
        self._heard_at = {number: at for number, at in self._heard_at.items() if at[0] >= since}
