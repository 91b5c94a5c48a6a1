"""What is true of a simulated job, for the rules that it must hold; and the rules of the account of
its time and its steps (`core/watch/goodput.py`):

* The parts add up to the wall time, with no gap and no overlap.
* The furthest step is not less than what any node has told of the newest round, never falls, and
  some worker has done it.
* No more steps are counted as done again than were.
* Where nothing delays what nodes say: steps took no longer than workers ran.
* What people are shown can be made at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.msgpack import Decoder
from tests.simulator.loop import ProcessLoop
from tests.simulator.training import Training
from tests.simulator.workers import Worker

from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.core.job_state import JobState
from rallypoint.core.model import Assignment, NodeRef, Verdict
from rallypoint.core.node.timeline import UNKNOWN, Timeline, ended_by
from rallypoint.core.takeover.record import LeadRecord
from rallypoint.core.watch.goodput import Goodput, spent, wall_s
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.watch.segments import Spending
from rallypoint.errors import PortableError

parsed = lru_cache(maxsize=8)(Decoder(LeadRecord).decode)
"""A record as it was written, also one that no leader may write. Every rule asks for the newest."""
ROUNDING_S = 1e-6
RoundFacts: TypeAlias = tuple[int, int, str, str, str]
SLACK_S = 1.0
"""For the network, and until an agent learns of an end."""


class Violation(PortableError):
    """A rule does not hold. `rule` names it in a word or two."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Life(Struct, eq=False):
    """What is true of one agent."""

    ref: NodeRef
    rate: float
    has_fence: bool
    came_at: float | None = None
    """When a coordinator handled its first message."""
    heard_at: float | None = None
    """When a coordinator handled a message of it last."""
    heard_by: dict[int, float] = field(default_factory=dict)
    """And when each of them did."""
    lost_at: float | None = None
    lost_by: int = 0
    """The leadership (`Invariants.leadership`) that gave the agent up last; 0: none has."""
    is_leaving: bool = False
    """It is lost since it was told to go, and may take its time."""
    was_refused: bool = False
    cut_at: float = float("-inf")
    """When its connection broke silently: it notices that within a lease."""
    banned_in: int = 0
    """The life of the job from which it was expelled for good."""
    died: bool = False
    """Its process was killed, or its machine is gone."""
    died_at: float | None = None
    runs: set[int] = field(default_factory=set)
    """Its workers, by pid."""
    stop_grace_s: float = 0.0
    """The longest time that its workers may take to stop, in seconds."""
    closed: dict[int, tuple[float, bool]] = field(default_factory=dict)
    """When its newest connection to each coordinator ended, and whether that was a reset."""


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
    charged_by: list[object] = field(default_factory=list)
    """The job states that have charged it: a coordinator that leads the job again has another one,
    from the record, and makes a charge again that was not recorded."""


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


class Accounts:
    """Of one coordinator. What it raises is a Violation."""

    def __init__(self, training: Training, loop: ProcessLoop) -> None:
        self._training, self._loop = training, loop
        self._furthest: dict[HostedJob, int] = {}
        """The least that each account must have."""

    def told(self, jobs: Iterable[HostedJob], progress: NodeProgress) -> None:
        """A coordinator has handled this of a node."""
        for job in jobs:
            told = job.watch.history.told.values()
            if job.verdict is None and any(each.progress is progress for each in told):
                self._check_furthest(job, progress.furthest)

    def check(self, job: HostedJob) -> None:
        """Look at this job's now."""
        account, at, now_s = job.watch.history.account, self._loop.time(), self._loop.true_s
        check_account(account, at)
        self._check_furthest(job, account.furthest)
        true = self._training.furthest(now_s)
        if account.furthest > true:
            raise Violation("goodput", f"step {account.furthest} was done, of {true}")
        done = self._training.done(now_s)
        # A verdict ends the account only when it is recorded: until then steps may be done again.
        again = done if account.now is not None else done - true - 1
        if account.lost_steps > again:
            raise Violation("goodput", f"{account.lost_steps} steps were done again, of {again}")
        if self._training.is_prompt and job.watch.history.known_since is None:
            self._check_time(account, at, now_s)
        _ = job.watch.view

    def _check_furthest(self, job: HostedJob, step: int) -> None:
        known = self._furthest[job] = max(self._furthest.get(job, -1), step)
        if (furthest := job.watch.history.account.furthest) < known:
            raise Violation("goodput", f"step {known} was done, and the furthest is {furthest}")

    def _check_time(self, account: Goodput, at: float, now_s: float) -> None:
        sums, ran_s = spent(account, at), self._training.ran_s(now_s)
        at_work = (Spending.STEPS, Spending.REDONE)
        worked_s = sum(seconds for (kind, _), seconds in sums.items() if kind in at_work)
        if worked_s > ran_s + SLACK_S:
            raise Violation("goodput", f"steps took {worked_s:.2f} s, workers ran {ran_s:.2f} s")
