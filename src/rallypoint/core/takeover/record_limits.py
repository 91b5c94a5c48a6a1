"""The limits of the values in a job's record, and of how far its counts may advance. Pure.

The seal of a record shows that a holder of the job's token has written it, not that a leader has.
So a record is checked as a message is (`core/limits.py`) when it is read: each value alone, and
that those about the newest world have its size.

A count that is near the end of its range would leave the job no numbers. So a count may be
`ADVANCE_MAX` larger at most than the largest one that this process knows (`Memory.fault_in`). A
process that knows none takes one that leaves room for so many more.

A beat counts anew with each epoch, and as fast as its register takes records: it has only the limit
of its range. The number of a life begins with the wall clock, and may advance as far as that.
"""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.core import limits
from rallypoint.core.fitness import QUARANTINE_MAX_S, REMEMBERED_MAX
from rallypoint.core.job_lives import EARLIER_MAX
from rallypoint.core.model import EPOCHS_MAX, NONCE_BITS, epoch_number
from rallypoint.core.restarts import BACKOFF_MAX_S
from rallypoint.core.settings import HOLD_MAX_S, MAX_NODES, MAX_NUMBER, MAX_SECONDS, MIN_SECONDS
from rallypoint.core.takeover.heirs import CANDIDATES_MAX
from rallypoint.core.takeover.record import LEFT_MAX, NAMED_MAX, NAMES_CHARS, JobRecord, LeadRecord
from rallypoint.core.takeover.told import Position
from rallypoint.core.watch.carried import PARTS_MAX

ADVANCE_MAX = 2**20
MAX_LIFE = int(limits.MAX_UNIX_TIME * 1000)
"""The largest number of a job's life: such numbers begin with the milliseconds of the wall
clock."""
MAX_ADDRESSES = 1000
_ANY_64_BITS = (0, 2**64 - 1)
_BITS_BYTES = (MAX_NODES + 7) // 8

_RANGES: dict[str, tuple[float, float]] = limits.RANGES | {
    "nonce": (0, 2**NONCE_BITS - 1),
    "hold_s": (MIN_SECONDS, HOLD_MAX_S),
    "device": _ANY_64_BITS,
    "inode": _ANY_64_BITS,
    "leader_rank": (-1, MAX_NODES - 1),
    "backoff_s": (0, BACKOFF_MAX_S),
    "largest_world": (0, MAX_NODES),
    "incarnation": (0, MAX_LIFE),
    "earlier": (0, MAX_LIFE),
    "origin": (0, MAX_LIFE),
    "passed_round": (-1, MAX_NUMBER),
    # Of a failure that had no place in the world.
    "rank": (-1, limits.MAX_WORLD - 1),
    "group_rank": (-1, MAX_NODES - 1),
    # Relative to when the record was written.
    "since": (-MAX_SECONDS, MAX_SECONDS),
    "until": (-MAX_SECONDS, QUARANTINE_MAX_S),
    "excluded_since": (-MAX_SECONDS, 0),
    "at": (0, limits.MAX_UNIX_TIME),
    "formed": (0, limits.MAX_UNIX_TIME),
    "furthest_before": (-1, limits.MAX_STEP),
    "resumed": (-1, limits.MAX_STEP),
    "redone": (0, limits.MAX_STEP),
    "workers": (0, limits.MAX_WORLD),
    "spare_node_s": (0, MAX_SECONDS * MAX_NODES),
}
_NAMES = limits.NAMES | dict.fromkeys(
    (
        "machines",
        "trial",
        "lossy_machines",
        "bad_routes",
        "passed_over",
        "leader_node",
        "leader_machine",
        "left",
        "digest",
    ),
    limits.MAX_NAME_BYTES,
)
_TABLE = limits.Table(
    ranges=_RANGES,
    names=_NAMES,
    may_be_empty=frozenset(_NAMES),
    bytes={"succeeded": _BITS_BYTES, "stopped": _BITS_BYTES},
    items={
        "addresses": MAX_ADDRESSES,
        "versions": 2,
        "candidates": CANDIDATES_MAX,
        "earlier": EARLIER_MAX,
        "rests": NAMED_MAX,
        "left": LEFT_MAX,
        "parts": PARTS_MAX,
        "restarts_counted": ADVANCE_MAX,
        "recent_losses": REMEMBERED_MAX,
        "failures": REMEMBERED_MAX,
        "machines": REMEMBERED_MAX,
        "bad_routes": REMEMBERED_MAX,
    },
    most_items=MAX_NODES,
)


def fault_in(record: LeadRecord) -> str:
    """Return a text about the first value in this record that no leader writes.

    It names the field, the value and the range. Empty: there is no such value.
    """
    if fault := limits.fault_in(record, _TABLE, limits.MAX_SENTENCE):
        return f"record{fault}"
    if record.epoch.number > EPOCHS_MAX:
        return f"record.epoch.number = {record.epoch.number} (needs 0 to {EPOCHS_MAX})"
    return "" if record.job is None else _world_fault(record.job)


def fault_of_job(job: JobRecord) -> str:
    """Return a text about the first value in a job's record that no leader writes; empty: none.

    For a record that was not read from a register.
    """
    fault = limits.fault_in(job, _TABLE, limits.MAX_SENTENCE)
    return f"record.job{fault}" if fault else _world_fault(job)


def _world_fault(job: JobRecord) -> str:
    """Return a text about the first value that does not match the newest world; empty: none."""
    nodes = job.nodes
    if job.leader_rank >= nodes:
        return f"record.job.leader_rank = {job.leader_rank} (needs -1 to {nodes - 1})"
    longest = (nodes + 7) // 8
    for name, bits in (("succeeded", job.succeeded), ("stopped", job.stopped)):
        if len(bits) > longest:
            return f"record.job.{name} = {len(bits)} bytes (needs at most {longest} bytes)"
    named = len(job.names.rests)
    if named not in (0, nodes):
        return f"record.job.names.rests = {named} items (needs 0 or {nodes} items)"
    chars = len(job.names.start) + sum(map(len, job.names.rests))
    if chars > NAMES_CHARS:
        return f"record.job.names = {chars} characters (needs at most {NAMES_CHARS} characters)"
    return ""


Counts = Mapping[str, int]
"""The counts of one job that may advance by only so much at once, by the names of their fields."""
_MOST = {"epoch.number": EPOCHS_MAX, "job.incarnation": MAX_LIFE}
"""The largest values of these counts; that of any other count is `MAX_NUMBER`."""


def counts_of(record: LeadRecord) -> Counts:
    """Return the counts in a record that may advance by only so much at once."""
    job, found = record.job, {"epoch.number": record.epoch.number}
    if job is None:
        return found
    found |= {
        "job.incarnation": job.incarnation,
        "job.round": job.round,
        "job.judged_round": job.judged_round,
        "job.restarts": job.restarts,
        "job.loss_count": job.loss_count,
        "job.stepped_down": job.stepped_down,
    }
    if (machines := job.machines) is not None:
        found["job.machines.holds"] = machines.holds
        found["job.machines.failure_count"] = machines.failure_count
    return found


def counts_told(told: Position) -> Counts:
    """Return the counts in a position that may advance by only so much at once."""
    return {
        "epoch.number": epoch_number(told.epoch),
        "job.incarnation": told.told_life,
        "job.round": told.last_round,
        "job.judged_round": told.judged_round,
        "job.restarts": told.restarts,
    }


def advance_fault(counts: Counts, known: Counts) -> str:
    """Return a text about the first count that is too far beyond its largest known value.

    Empty: there is none. A count that is not known has to leave room for more.
    """
    for name, count in counts.items():
        largest = _MOST.get(name, MAX_NUMBER)
        # Without any memory a process only sees whether there is room for more.
        most = known.get(name, largest - 2 * ADVANCE_MAX) + ADVANCE_MAX
        if name == "job.incarnation":  # It grows with the wall clock.
            most = max(most, largest - ADVANCE_MAX)
        if count > min(most, largest):
            return f"record.{name} = {count} (needs at most {min(most, largest)})"
    return ""
