"""The record of a job whose round 3 runs, and the heartbeats by which heirs and candidates promise
its leader that they don't claim it."""

from __future__ import annotations

from rallypoint.core import messages as m
from rallypoint.core.model import Epoch, Promise, SharedSettings, Stamp
from rallypoint.core.takeover.consent import NO_ROUND, Speaker
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import Lead, Watch
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process

SETTINGS = SharedSettings("job", 1, 8)
LEASE_S = SETTINGS.lease_s
ROUND = Stamp(1, 3)
EPOCH = Epoch(3, 7).as_int()
PROCESS = Process("boot", 1, 10)
CLAIMED_AT = 100.0


def job_of(nodes: int, *, is_active: bool = True, leader_rank: int = 0) -> JobRecord:
    """Round 3 of life 1, of so many nodes."""
    return JobRecord(SETTINGS, 1, 3, is_active, True, nodes, leader_rank=leader_rank)


def record_of(
    job: JobRecord | None,
    *,
    has_workers: bool = True,
    is_vacant: bool = False,
    candidates: tuple[int, ...] = (),
) -> LeadRecord:
    """What a leader has written of this job."""
    leader = Leader(("10.0.0.1:29400",), PROCESS, has_workers)
    return LeadRecord(1, Epoch(3, 7), leader, 0, job, is_vacant, candidates=candidates)


def waits_s(record: LeadRecord, claimant: Claimant) -> float:
    """The time for which this one, which looks from now on, does not claim."""
    return Watch().claims_in_s(record, 100.0, is_gone=False, claimant=claimant)


class Beats:
    """The heartbeats of a node, or of a candidate, each of which names the one before it."""

    def __init__(
        self, lead: Lead, rank: int = 0, stamp: Stamp = ROUND, *, candidate: int = 0
    ) -> None:
        self._lead, self._rank, self._candidate = lead, rank, candidate
        self._stamp = NO_ROUND if candidate else stamp
        self._number = 0
        connection = 1 + rank + candidate
        self.speaker = Speaker(connection, (self._stamp, rank, candidate))

    def at(self, *times: float) -> None:
        """The leader hears one at each of these."""
        for now in times:
            promise = Promise(self._number, self._stamp, self._rank, self._candidate)
            self._number += 1
            self._lead.heard(m.Heartbeat(self._number, promise), now, self.speaker)
