"""What is true of a simulated job, for the rules that it must hold."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct, field

from rallypoint.core.job_state import JobState
from rallypoint.core.model import Assignment, NodeRef, Verdict
from rallypoint.core.timeline import UNKNOWN, Timeline, ended_by
from rallypoint.core.watch.goodput import Goodput, spent, wall_s
from rallypoint.testing.simulator.workers import Worker

ROUNDING_S = 1e-6
RoundFacts: TypeAlias = tuple[int, int, str, str, str]


class Violation(Exception):
    """A rule does not hold. `rule` names it in a word or two."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Life(Struct, eq=False):
    """What is true of one agent."""

    ref: NodeRef
    rate: float
    has_fence: bool
    heard_at: float | None = None
    """When a coordinator handled a message of it last."""
    heard_by: dict[int, float] = field(default_factory=dict)
    """And when each of them did."""
    lost_at: float | None = None
    is_leaving: bool = False
    """It is lost since it was told to go, and may take its time."""
    cut_at: float = float("-inf")
    """When its connection broke silently: it notices that within a lease."""
    banned_in: int = 0
    """The life of the job from which it was expelled for good."""
    died: bool = False
    """Its process was killed, or its machine is gone."""
    runs: set[int] = field(default_factory=set)
    """Its workers, by pid."""


class World(Struct, eq=False):
    """One round, as it was formed."""

    coordinator: int
    formed_at: float
    lives: tuple[str, ...]
    size: int
    starts: int = 0
    running: dict[tuple[str, int], Worker] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    """By rank; those that were started."""
    places: dict[str, Assignment] = field(default_factory=dict)
    """By life."""
    charged_by: set[int] = field(default_factory=set)
    """Which coordinators."""


class Job(Struct, eq=False):
    """What one coordinator's job was after its last step."""

    state: JobState
    coordinator: int
    charges: int
    round: int
    verdict: Verdict | None


def name_of(worker: Worker) -> str:
    """For a person."""
    return f"rank {worker.rank} on {worker.owner.place.name}"


def check_account(account: Goodput, at: float) -> None:
    """Raises Violation unless the parts add up to the wall time and none is negative."""
    sums = spent(account, at)
    total_s, whole_s = sum(sums.values()), wall_s(account, at)
    if abs(total_s - whole_s) > ROUNDING_S:
        raise Violation("goodput", f"{total_s:.3f} s of {whole_s:.3f} s are accounted for: {sums}")
    if least := [part for part, seconds in sums.items() if seconds < 0]:
        raise Violation("goodput", f"less than no time was spent: {least}")
    end = account.segments[0].begin if account.segments else account.until
    for segment in account.segments:
        if segment.begin != end or segment.end < end:
            raise Violation("goodput", f"a gap or an overlap at {end}: {account.segments}")
        end = segment.end
    if end != account.until:
        raise Violation("goodput", f"the account ends at {end}, not at {account.until}")


def check_rounds(timeline: Timeline, rounds: Mapping[tuple[int, int], RoundFacts]) -> None:
    """Raises Violation unless this node tells of each round what the history of the job does."""
    for life, following in pairwise(timeline.rounds):
        known = rounds.get((life.incarnation, life.number))
        own = following.incarnation, following.number
        by = ended_by(life, following, None)
        if known is None or own != (life.incarnation, life.number + 1) or by is None:
            continue
        place = life.assignment
        told = place.group_world_size, place.world_size, place.why, *by
        if told != known and by[0] != UNKNOWN:
            raise Violation("history", f"round {life.number}: a node tells {told}, not {known}")
