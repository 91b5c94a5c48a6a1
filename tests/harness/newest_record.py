"""Two records of one job, an older and the newest one, and what nodes are told of them."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.memory import told_of
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.told import Position, Seal

SETTINGS = SharedSettings("job", 2, 4, max_restarts=9)
NODE = Leader(("host:1",), Process("boot", 1, 1), has_workers=True)
JOB = JobRecord(SETTINGS, 100, round=5, is_active=True, is_started=True, nodes=3, restarts=2)
NEWEST = LeadRecord(1, Epoch(3, 7), NODE, 40, replace(JOB, restarts_counted=(1, 2), judged_round=5))
OLDER = LeadRecord(1, Epoch(1, 5), NODE, 9, replace(JOB, round=1, nodes=4, restarts=0))
TOKEN = b"the token of the job"


def told(record: LeadRecord = NEWEST, token: bytes = TOKEN) -> Position:
    """As a leader tells it to its nodes."""
    return Seal("job", token).sealed(told_of(record))
