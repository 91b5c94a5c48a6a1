"""The state of one job, its events, and the way it is closed.

`job.py` has the essay and the decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from rallypoint.core import cause as causes
from rallypoint.core import event_kinds as kinds
from rallypoint.core import restarts
from rallypoint.core.checkpoint import Save, SaveNotice
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import JobClosed, NodeJoined, RefuseNode, TimerEnded
from rallypoint.core.fitness import why_held_back
from rallypoint.core.hang import Inquiry, WorkerPhase
from rallypoint.core.job_lives import EARLIER_MAX
from rallypoint.core.messages import Ended, FromNode, ToNode
from rallypoint.core.model import (
    Assignment,
    Cause,
    DeadPlace,
    EndReason,
    JobStatus,
    Lacking,
    NodeLoss,
    NodeRef,
    Outcome,
    SharedSettings,
    Stamp,
    Verdict,
)
from rallypoint.core.restarts import CrashLoop
from rallypoint.core.round import step as step_round
from rallypoint.core.round_state import MemberState, RoundMember, RoundPhase, RoundState
from rallypoint.core.watch.carried import Carried
from rallypoint.core.watch.questions import Subject
from rallypoint.core.watch.turns import TURNS_MAX, RoundTurn


class SessionLost(Struct, frozen=True):
    """A node went away, and had not left; it was last heard at `last_heard_at`."""

    ref: NodeRef
    why: str
    last_heard_at: float
    wall_time: float = 0.0


class FormerLifeGone(Struct, frozen=True):
    """All agents of the life before have left, or are lost: no worker of it runs."""


class PlacesDead(Struct, frozen=True):
    """No process of these places lives, as guards or later agents on their machines say."""

    places: tuple[DeadPlace, ...]


class RoundIsOver(Struct, frozen=True):
    """The rendezvous handler that has formed this job's world says that another one is due."""

    reason: EndReason


class PersonWants(Struct, frozen=True):
    """A person wants this of the job: one of the subjects that are no questions."""

    subject: Subject
    node: str = ""
    """The node that is to be excluded or allowed."""


JobEvent = (
    NodeJoined
    | TimerEnded
    | SessionLost
    | FromNode
    | FormerLifeGone
    | PersonWants
    | PlacesDead
    | RoundIsOver
)
JobEffect = ToNode | RefuseNode | Record


class JobState(Struct):
    """All that is known of one job. Only `step` changes it."""

    round: RoundState
    incarnation: int = 1
    """The number of this life of the job. It may change before the first round, and with the first
    one after a takeover at which nodes of the newest round were missing."""
    earlier_numbers: tuple[int, ...] = ()
    """The last ones that this life had before, the newest at the end."""
    origin: int = 0
    """The first number of this life; 0: it had no other one."""
    next_incarnation: int = 0
    """The number that the job has from the next round on; 0: it keeps its number."""
    ledger: restarts.Ledger = field(default_factory=restarts.Ledger)
    crash_loop: CrashLoop = CrashLoop()
    carried: Carried | None = None
    """The part of the job's history that the next coordinator continues; its host changes it."""
    furthest_step: int = -1
    """The largest that workers have reported, in this life of the job; -1: none was."""
    started_at: float | None = None
    """When the workers of the newest round started; None: they did not, or another coordinator led
    then, whose clock was not this one."""
    ran_s: float = 0.0
    """How long the job had run, since its first workers started, when another coordinator took it
    over; kept for `--max-runtime`."""
    ran_since: float | None = None
    """The time on this coordinator's clock from which it counts; None: no workers have started
    yet."""
    reports: list[causes.NodeFailure] = field(default_factory=list)
    losses: list[NodeLoss] = field(default_factory=list)
    store_lost: NodeLoss | None = None
    """The loss of the node of rank 0 after its success: the store of the round has gone with it,
    and later failures of workers of other nodes are a consequence."""
    breakdown: causes.Breakdown | None = None
    end_reason: EndReason | None = None
    """The reason why the newest round ended, once it has."""
    last_end: EndReason | None = None
    """The end of the round before the newest one."""
    ended_at: float = 0.0
    judged_round: int = 0
    """The forming round whose predecessor has been judged."""
    backoff_s: float = 0.0
    assigned: dict[str, Assignment] = field(default_factory=dict)
    world_workers: int = 0
    enrolled: set[str] = field(default_factory=set)
    lacking: dict[str, Lacking] = field(default_factory=dict)
    """Nodes that could start no worker of the newest round for want of something on their
    machines."""
    proving: dict[str, int] = field(default_factory=dict)
    """Late nodes that were asked to prove themselves, each with the number of the question."""
    proofs: int = 0
    unreached: dict[str, str] = field(default_factory=dict)
    """Nodes that could not reach the store of rank 0, each with the reason."""
    started: bool = False
    told_to_go: dict[str, float] = field(default_factory=dict)
    """When each node was told to go, since the newest world was formed."""
    farewells: dict[str, str] = field(default_factory=dict)
    """The fate of the last checkpoint before each of these nodes leaves, in words."""
    drained: set[str] = field(default_factory=set)
    drain_began_at: float = 0.0
    drain_world: frozenset[str] = frozenset()
    succeeded_at: dict[str, float] = field(default_factory=dict)
    """When each node said that its workers had ended well."""
    stopped: set[str] = field(default_factory=set)
    """The incarnations of nodes of the newest world that are gone, and whose workers have surely
    ended: they have said so, or their guards have."""
    notice: SaveNotice | None = None
    notices: int = 0
    withdrawn: int = 0
    """The number of the last notice of this round that was withdrawn."""
    save: Save | None = None
    """The newest checkpoint that a person has asked for in this round, and how that went."""
    inquiry: Inquiry | None = None
    inquiries: int = 0
    phases: dict[str, WorkerPhase] = field(default_factory=dict)
    """The workers that others may wait for, by node."""
    no_progress: str = ""
    """How often the same has happened, if the job ends because of that."""
    verdict: Verdict | None = None
    own_agent: str = ""
    """The incarnation of the agent that the coordinator lives in, if any."""
    last_cause: Cause | None = None
    """The cause of the end of the round that was judged last, if a worker or a node was to
    blame."""
    turns: deque[RoundTurn] = field(default_factory=lambda: deque(maxlen=TURNS_MAX))
    """Facts about its rounds that its history has not taken from here yet."""
    former: int = 0
    """The number of agents of the former life that are still here: no round is formed beside their
    workers."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers by which this life is or was called, the newest first."""
        return self.incarnation, *reversed(self.earlier_numbers)


def new_job(settings: SharedSettings, incarnation: int = 1, former: int = 0) -> JobState:
    """Return a job that nobody has joined yet. `former`: see there; ended by `FormerLifeGone`."""
    return JobState(RoundState(settings, held=former > 0), incarnation, former=former)


def ended_job(settings: SharedSettings, verdict: Verdict, incarnation: int = 1) -> JobState:
    """Return a job of which nothing is left but its verdict."""
    return JobState(RoundState(settings, RoundPhase.CLOSED), incarnation, verdict=verdict)


def renumber(job: JobState, incarnation: int) -> None:
    """Give this life another number. No worker runs that was told the one before."""
    job.origin = job.origin or job.incarnation
    job.earlier_numbers = (*job.earlier_numbers, job.incarnation)[-EARLIER_MAX:]
    job.incarnation, job.next_incarnation = incarnation, 0


def stamp(job: JobState, round_: int | None = None) -> Stamp:
    """Return the name of this round; by default of the present one."""
    return Stamp(job.incarnation, job.round.round if round_ is None else round_)


def note_dead(job: JobState, places: Iterable[DeadPlace]) -> None:
    """No process of these places lives.

    A coordinator that takes over is to know that. What runs of a member its own session tells.
    """
    state = job.round
    newest = state.round if state.phase is RoundPhase.ACTIVE else state.round - 1
    for place in places:
        if place.stamp != stamp(job, newest) or place.group_rank >= len(state.world):
            continue
        entry, member = state.world[place.group_rank], state.members.get(place.node_id)
        is_here = member is not None and member.ref.incarnation == entry.incarnation
        if entry.node_id == place.node_id and entry.incarnation and not is_here:
            job.stopped.add(entry.incarnation)


def note_step(job: JobState, step: int) -> None:
    """Workers have reached this step; -1: they have reported none."""
    job.furthest_step = max(job.furthest_step, step)


def note_loss(job: JobState, member: RoundMember, loss: NodeLoss) -> None:
    """Note that a member is lost."""
    if member.state not in (MemberState.RUNNING, MemberState.STOPPING):
        return
    if not member.succeeded:
        job.losses.append(loss)
    elif job.assigned[loss.node_id].group_rank == 0:
        job.store_lost = loss


def verdict_to(job: JobState, ref: NodeRef) -> ToNode:
    """Return the order that tells a node the verdict."""
    assert job.verdict is not None
    return ToNode(ref, Ended(stamp(job, job.verdict.round), job.verdict))


def status(job: JobState, node_id: str = "") -> JobStatus:
    """Return the status that a person at this node is shown while waiting.

    O(1), but for a node that is held back.
    """
    state = job.round
    active = state.phase is RoundPhase.ACTIVE
    return JobStatus(
        phase=state.phase.value,
        round=state.round,
        joined=state.counts[MemberState.JOINED],
        stopping=state.counts[MemberState.STOPPING] + job.former,
        waiting=state.counts[MemberState.WAITING],
        standby=state.counts[MemberState.STANDBY],
        world_nodes=len(state.world) if active else 0,
        world_workers=job.world_workers if active else 0,
        restarts_used=job.ledger.total,
        held_back=why_held_back(state, node_id),
    )


def workers_started(job: JobState, at: float) -> None:
    """Note that the workers of the newest round start now, perhaps the first ones of the job."""
    job.started_at = at
    if job.ran_since is None:
        job.ran_since = at


def time_run_s(job: JobState, at: float) -> float:
    """Return how long the job has run since its first workers started, in seconds.

    Also under earlier coordinators; 0: no workers have started.
    """
    return job.ran_s + (0.0 if job.ran_since is None else max(at - job.ran_since, 0.0))


def close(
    job: JobState, outcome: Outcome, text: str, signal: int = 0, *, cause: bool = False
) -> list[JobEffect]:
    """Give the verdict, to everyone, once."""
    state = job.round
    found = None
    if cause:
        round_ = state.round if state.phase is RoundPhase.ACTIVE else max(state.round - 1, 0)
        found = causes.first_cause(round_, job.reports, job.losses, job.breakdown)
    last = state.round if state.phase is RoundPhase.ACTIVE else max(state.round - 1, 0)
    budget = state.settings.max_restarts
    job.verdict = Verdict(
        outcome,
        text,
        last,
        job.ledger.total,
        budget,
        found,
        signal,
        no_progress=job.no_progress,
    )
    step_round(state, JobClosed())
    record = kinds.VERDICT if outcome.row.planned else kinds.JOB_FAILED
    effects: list[JobEffect] = [record(outcome=outcome.value, why=text)]
    effects += [verdict_to(job, member.ref) for member in state.members.values()]
    return effects
