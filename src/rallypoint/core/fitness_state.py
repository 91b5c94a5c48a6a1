"""The state of one job's machines, and the resulting timers.

Pure data.

`fitness.py` explains the rules, and makes the decisions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.model import NodeRef

RECENT_LOSS_S = 600.0
"""The time in seconds for which a loss counts towards a quarantine."""
HOUR_S = 3600.0


class Why(StrEnum):
    """The reason why a machine is held back."""

    LOSSES = "losses"
    FAILURES = "failures"
    LACKING = "lacking"
    PERSON = "person"


class Hold(Struct, array_like=True):
    """A quarantine, from `since` to `until`.

    Times are seconds on the coordinator's clock. In a record they are relative to when it was
    written: `since` is at most 0, `until` at least 0.
    """

    number: int
    since: float
    until: float


class BadRoute(Struct, array_like=True):
    """The failures of a node to reach the round store of rank 0, with its quarantine for them."""

    host: NodeRef
    """The node of rank 0 in the last round that failed in this way."""
    failures: int
    """The number of such failures in a row."""
    hold: Hold | None = None


class Loss(Struct, frozen=True, array_like=True):
    """The loss of a node of this machine from a round, or of a helper process there.

    It is kept for ten minutes.
    """

    id: int
    machine: str


class Failure(Struct, array_like=True):
    """A worker's failure that was the first cause of a round's end; kept for an hour."""

    id: int
    machine: str
    rank: int
    """The global rank of the worker that failed."""
    group_rank: int
    digest: str
    """A text that is equal for failures that are alike (`restarts.digest`)."""
    is_charged: bool
    holds: bool = False
    """Whether the machine was held back for this failure, and the program was not found to be at
    fault since."""
    is_programs: bool = False
    """Whether this failure and a similar one have shown that a machine was held back wrongly, and
    that the program is at fault."""


class BadMachine(Struct, array_like=True):
    """A machine with quarantines for losses, failures or lacks, or that a person has excluded."""

    node_id: str
    """The last node of the machine that was lost, failed, could not start workers, or was
    excluded."""
    reason: Why
    why: str
    """The reason as a clause, for example `it was lost 3 times within ten minutes`."""
    step: int = 0
    """The value of `peak` at the beginning of its last quarantine, less the healthy hours since. At
    0 a round may end to admit it."""
    peak: int = 0
    """The number of its quarantines, less the healthy hours in the world. The next quarantine is
    one step longer. At 0 the machine is forgotten, unless it is excluded."""
    hours: int = 0
    """The number of healthy hours so far: hours in the job, outside of a quarantine, without a
    loss."""
    hold: Hold | None = None
    is_excluded: bool = False
    excluded_since: float = 0.0


class Fitness(Struct, array_like=True):
    """The knowledge of one job about the fitness of its machines."""

    now: float = 0.0
    """The coordinator's time at the newest event; 0: none has come yet."""
    machines: dict[str, BadMachine] = field(default_factory=dict)
    recent_losses: list[Loss] = field(default_factory=list)
    loss_count: int = 0
    holds: int = 0
    """The number of quarantines so far, from which they get their numbers."""
    changes: int = 0
    """The number of changes so far that must be recorded before any node is told of them."""
    last_broken: str = ""
    """The last death of a helper process that was counted: the number of the round that followed,
    and the machine."""
    failures: list[Failure] = field(default_factory=list)
    failure_count: int = 0
    passed_round: int = -1
    """The newest round that has passed its probation; -1: none has."""
    passed_world: frozenset[str] = frozenset()
    """The machines of the newest round that has passed its probation."""
    is_over: bool = False
    """Whether the minute of the active round's probation is over."""
    has_stepped: bool = False
    """Whether workers of the active round have reported a step."""
    reports_steps: bool = False
    """Whether workers have reported a step in any round."""
    trial: set[str] = field(default_factory=set)
    """The machines on probation: those of the newest world that the last passed round lacked."""
    lossy_machines: dict[int, str] = field(default_factory=dict)
    """The machine whose loss was counted, by the round that lost it (`RoundState.lossy_rounds`)."""


def timers_wanted(
    fitness: Fitness,
    bad_routes: Mapping[str, BadRoute],
    lossy_rounds: Iterable[int],
    members: Container[str],
) -> dict[Timer, float]:
    """Return the timers of quarantines, losses, failures and healthy hours, in seconds.

    O(number of timers).

    `members` has the ids of the nodes that are in the job.
    """
    wanted: dict[Timer, float] = {}
    for round_ in lossy_rounds:
        wanted[Timer(TimerKind.LOSS_HOUR, round_)] = HOUR_S
    for loss in fitness.recent_losses:
        wanted[Timer(TimerKind.LOSS_RECENT, id=str(loss.id))] = RECENT_LOSS_S
    for failure in fitness.failures:
        wanted[Timer(TimerKind.FAILURE_HOUR, id=str(failure.id))] = HOUR_S
    for node_id, bad in bad_routes.items():
        if bad.hold is not None:
            timer = Timer(TimerKind.QUARANTINE, bad.hold.number, node_id)
            wanted[timer] = left_s(fitness, bad.hold)
    for machine, known in fitness.machines.items():
        if known.hold is not None:
            timer = Timer(TimerKind.QUARANTINE, known.hold.number, known.node_id)
            wanted[timer] = left_s(fitness, known.hold)
        elif known.peak > 0 and known.node_id in members:
            wanted[Timer(TimerKind.HEALTHY_HOUR, known.hours, machine)] = HOUR_S
    return wanted


def left_s(fitness: Fitness, hold: Hold) -> float:
    """Return the remaining seconds of this quarantine."""
    return max(hold.until - fitness.now, 0.0)


def relative(fitness: Fitness, hold: Hold | None) -> Hold | None:
    """Return the quarantine with times in seconds from now, as in a record; None for none."""
    if hold is None:
        return None
    return Hold(hold.number, min(hold.since - fitness.now, 0.0), left_s(fitness, hold))


def begin(fitness: Fitness, bad_routes: dict[str, BadRoute], at: float) -> None:
    """Convert the times of a record to the coordinator's clock, at its first event.

    Exclusions and quarantines go on in that way after a takeover.
    """
    holds = [known.hold for known in fitness.machines.values()]
    holds += [bad.hold for bad in bad_routes.values()]
    for hold in holds:
        if hold is not None:
            hold.since, hold.until = hold.since + at, hold.until + at
    for known in fitness.machines.values():
        known.excluded_since += at
    fitness.now = at
