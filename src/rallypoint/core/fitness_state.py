"""The state of the machines of one job, and the waits that follow from it. Pure data.

`fitness.py` has the essay and the decisions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.model import NodeRef

RECENT_LOSS_S = 600.0
"""The time for which a loss counts towards a quarantine."""
HOUR_S = 3600.0


class Why(StrEnum):
    """The reason for which a machine is held back."""

    LOSSES = "losses"
    FAILURES = "failures"
    LACKING = "lacking"
    PERSON = "person"


class Hold(Struct, array_like=True):
    """A quarantine.

    Times are seconds on the host's clock; in a record, seconds after it was written, and before
    that below 0.
    """

    number: int
    since: float
    until: float


class BadRoute(Struct, array_like=True):
    """A node could not reach the round store of another."""

    host: NodeRef
    """Rank 0 of the last round that failed so."""
    failures: int
    """In a row."""
    hold: Hold | None = None


class Loss(Struct, frozen=True, array_like=True):
    """A participant that was lost; kept for ten minutes."""

    id: int
    machine: str


class Failure(Struct, array_like=True):
    """The first cause of a round's end on one machine; kept for an hour."""

    id: int
    machine: str
    rank: int
    """The global rank of the worker."""
    group_rank: int
    digest: str
    """Equal for failures that are alike (`restarts.digest`)."""
    is_charged: bool
    holds: bool = False
    """Set if this failure has held the machine back."""
    is_programs: bool = False
    """Set if the program was found to be at fault."""


class BadMachine(Struct, array_like=True):
    """A machine that is not trusted."""

    node_id: str
    """The last node there that was lost, failed, or was excluded."""
    reason: Why
    why: str
    """Half a sentence, for example `it was lost 3 times within ten minutes`."""
    step: int = 0
    """How many steps its quarantine was lengthened, less the healthy hours since. At 0 a round may
    end to admit it."""
    peak: int = 0
    """The same, less only the healthy hours in the world: the next quarantine is one step longer.
    At 0 the machine is forgotten."""
    hours: int = 0
    """The healthy hours so far."""
    hold: Hold | None = None
    is_excluded: bool = False
    excluded_since: float = 0.0


class Fitness(Struct, array_like=True):
    """All that is known of the machines of one job."""

    now: float = 0.0
    """The host's time of the newest event; 0: the host has no clock."""
    machines: dict[str, BadMachine] = field(default_factory=dict)
    recent_losses: list[Loss] = field(default_factory=list)
    loss_count: int = 0
    holds: int = 0
    """Numbers the quarantines."""
    changes: int = 0
    """Counts what must be recorded before anybody hears of it."""
    last_broken: str = ""
    """The round and the machine of the newest helper process that has died and was counted."""
    failures: list[Failure] = field(default_factory=list)
    failure_count: int = 0
    passed_round: int = -1
    """The newest round that has passed its probation; -1: none has."""
    passed_world: frozenset[str] = frozenset()
    """The machines of that round."""
    is_over: bool = False
    """The minute of the active round's probation is over."""
    has_stepped: bool = False
    """Workers of the active round have reported a step."""
    reports_steps: bool = False
    """Workers of some round have."""
    trial: set[str] = field(default_factory=set)
    """Machines on probation without which an earlier round has passed."""
    lossy_machines: dict[int, str] = field(default_factory=dict)
    """The machine whose loss is counted for each round in `RoundState.lossy_rounds`."""


def timers_wanted(
    fitness: Fitness,
    bad_routes: Mapping[str, BadRoute],
    lossy_rounds: Iterable[int],
    members: Container[str],
) -> dict[Timer, float]:
    """Note that the waits that the machines ask for, in seconds.

    `members`: the ids of the nodes that are here. O(number of timers).
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
    """Return how much longer this quarantine lasts, in seconds."""
    return max(hold.until - fitness.now, 0.0)


def relative(fitness: Fitness, hold: Hold | None) -> Hold | None:
    """Return the same in seconds from now, as a record has it."""
    if hold is None:
        return None
    return Hold(hold.number, min(hold.since - fitness.now, 0.0), left_s(fitness, hold))


def begin(fitness: Fitness, bad_routes: dict[str, BadRoute], at: float) -> None:
    """Date what a record had in seconds, when the host tells the time first."""
    holds = [known.hold for known in fitness.machines.values()]
    holds += [bad.hold for bad in bad_routes.values()]
    for hold in holds:
        if hold is not None:
            hold.since, hold.until = hold.since + at, hold.until + at
    for known in fitness.machines.values():
        known.excluded_since += at
    fitness.now = at
