"""The state of one job, its events, and its verdict.

`job.py` explains the rules, and makes the decisions.
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
    """The event that an agent's session has ended although it had not left.

    `last_heard_at` is on the coordinator's clock.
    """

    ref: NodeRef
    why: str
    last_heard_at: float
    wall_time: float = 0.0


class FormerLifeGone(Struct, frozen=True):
    """The event that no worker of the job's former life runs any more.

    All its agents have left, are lost, or have had the time to end their workers.
    """


class PlacesDead(Struct, frozen=True):
    """The event that no process lives at these places, which are ranks of nodes in a round.

    Guards report it, or later agents on their machines.
    """

    places: tuple[DeadPlace, ...]


class RoundIsOver(Struct, frozen=True):
    """The event that the rendezvous handler says that its round is over.

    The handler has formed the world of this job.
    """

    reason: EndReason


class PersonWants(Struct, frozen=True):
    """The event that a person wants the job changed, such as cancelled or restarted."""

    subject: Subject
    node: str = ""
    """The node whose machine is to be excluded or allowed; empty in other requests."""


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
    """The state of one job, which its state machine (`job.py`) changes."""

    round: RoundState
    incarnation: int = 1
    """The number of this life of the job. It may change before the first round, and with the first
    round after a takeover that found no running workers."""
    earlier_numbers: tuple[int, ...] = ()
    """Earlier numbers of this life, at most `EARLIER_MAX`, the newest at the end."""
    origin: int = 0
    """The first number of this life; 0: the number has not changed."""
    next_incarnation: int = 0
    """The number that this life gets with the next round; 0: it does not change."""
    ledger: restarts.Ledger = field(default_factory=restarts.Ledger)
    crash_loop: CrashLoop = CrashLoop()
    carried: Carried | None = None
    """The part of the job's history that the next coordinator continues. The coordinator updates
    it."""
    furthest_step: int = -1
    """The largest step that workers have reported in this life of the job; -1: none."""
    started_at: float | None = None
    """When the workers of the newest round started; None: they have not, or another coordinator led
    then, whose clock was not this one."""
    ran_s: float = 0.0
    """The seconds that the job had run, since its first workers started, when this coordinator took
    it over from another; for `--max-runtime`."""
    ran_since: float | None = None
    """Since when the runtime is counted on this coordinator's clock; None: no workers have started
    yet."""
    reports: list[causes.NodeFailure] = field(default_factory=list)
    losses: list[NodeLoss] = field(default_factory=list)
    store_lost: NodeLoss | None = None
    """The loss of rank 0's node after its workers succeeded. The round store was lost with it, so
    later failures of other nodes' workers are a consequence."""
    breakdown: causes.Breakdown | None = None
    end_reason: EndReason | None = None
    """The reason why the newest round ended; None: it is active, the job's end ended it, or no
    round was formed yet."""
    last_end: EndReason | None = None
    """The reason why the round before the newest one ended; None: it is not known, or there was no
    such round."""
    ended_at: float = 0.0
    judged_round: int = 0
    """The number of the forming round, once the end of the round before it has been judged."""
    backoff_s: float = 0.0
    assigned: dict[str, Assignment] = field(default_factory=dict)
    world_workers: int = 0
    enrolled: set[str] = field(default_factory=set)
    lacking: dict[str, Lacking] = field(default_factory=dict)
    """The nodes that could start no worker of the newest round, each with the resource that it
    lacks."""
    proving: dict[str, int] = field(default_factory=dict)
    """The late nodes that were asked to prove that they can start workers and reach the round's
    store, each with the number of its newest question."""
    proofs: int = 0
    unreached: dict[str, str] = field(default_factory=dict)
    """The nodes that could not reach the round store of rank 0, each with the reason."""
    started: bool = False
    told_to_go: dict[str, float] = field(default_factory=dict)
    """When each node was told to leave, since the newest world was formed."""
    farewells: dict[str, str] = field(default_factory=dict)
    """The result of the last checkpoint before a node leaves, as a clause, by node id."""
    drained: set[str] = field(default_factory=set)
    drain_began_at: float = 0.0
    drain_world: frozenset[str] = frozenset()
    succeeded_at: dict[str, float] = field(default_factory=dict)
    """When each node reported that its workers had ended well, by node id."""
    stopped: set[str] = field(default_factory=set)
    """The random ids (incarnations) of agents of the newest world that have gone, and whose workers
    have certainly ended, according to the agents or their guards."""
    notice: SaveNotice | None = None
    notices: int = 0
    withdrawn: int = 0
    """The number of the last request for a checkpoint in this round that was withdrawn; 0: none
    was. After a takeover all requests of earlier coordinators count as withdrawn."""
    save: Save | None = None
    """The newest checkpoint that a person has requested, and its outcome."""
    inquiry: Inquiry | None = None
    inquiries: int = 0
    phases: dict[str, WorkerPhase] = field(default_factory=dict)
    """The latest phase of a node's worker that may take longer than a step, by node id."""
    no_progress: str = ""
    """How often the same failure has repeated, in words, if the job ends because of that; else
    empty."""
    verdict: Verdict | None = None
    own_agent: str = ""
    """The random id (incarnation) of the agent in whose process the coordinator runs; empty: there
    is none."""
    last_cause: Cause | None = None
    """The cause of the last judged end of a round; None: neither a worker nor a node was to blame,
    or no end was judged yet."""
    turns: deque[RoundTurn] = field(default_factory=lambda: deque(maxlen=TURNS_MAX))
    """The newest beginnings, ends and judgements of rounds that the job's history has not taken
    yet."""
    former: int = 0
    """The number of agents of the former life that may still run workers, as far as is known at the
    beginning. Until they have gone, no round is formed; then it is 0."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The present and the earlier numbers of this life, the newest first."""
        return self.incarnation, *reversed(self.earlier_numbers)


def new_job(settings: SharedSettings, incarnation: int = 1, former: int = 0) -> JobState:
    """Return the state of a job without nodes.

    `former` is how many agents of its former life may still run workers; unless it is 0, no round
    is formed yet.
    """
    return JobState(RoundState(settings, held=former > 0), incarnation, former=former)


def ended_job(settings: SharedSettings, verdict: Verdict, incarnation: int = 1) -> JobState:
    """Return the state of an ended job of which only the verdict is known."""
    return JobState(RoundState(settings, RoundPhase.CLOSED), incarnation, verdict=verdict)


def renumber(job: JobState, incarnation: int) -> None:
    """Give this life of the job another number. No running worker may know the present one."""
    job.origin = job.origin or job.incarnation
    job.earlier_numbers = (*job.earlier_numbers, job.incarnation)[-EARLIER_MAX:]
    job.incarnation, job.next_incarnation = incarnation, 0


def stamp(job: JobState, round_: int | None = None) -> Stamp:
    """Return the stamp of this round: its number, and that of the life.

    Without a number, of the present round.
    """
    return Stamp(job.incarnation, job.round.round if round_ is None else round_)


def note_dead(job: JobState, places: Iterable[DeadPlace]) -> None:
    """Note that no process lives at these places, ranks of nodes in a round.

    A coordinator learns it when it takes over. A place of an older round, or of a node that is
    here, is ignored.
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
    """Note a step that workers have reached, if it is the largest so far; -1: none was."""
    job.furthest_step = max(job.furthest_step, step)


def note_loss(job: JobState, member: RoundMember, loss: NodeLoss) -> None:
    """Note the loss of a member, if it took part in the newest round.

    If its workers had succeeded, it is noted only for the node of rank 0.
    """
    if member.state not in (MemberState.RUNNING, MemberState.STOPPING):
        return
    if not member.succeeded:
        job.losses.append(loss)
    elif job.assigned[loss.node_id].group_rank == 0:
        job.store_lost = loss


def verdict_to(job: JobState, ref: NodeRef) -> ToNode:
    """Return the message that tells a node the job's verdict."""
    assert job.verdict is not None
    return ToNode(ref, Ended(stamp(job, job.verdict.round), job.verdict))


def status(job: JobState, node_id: str = "") -> JobStatus:
    """Return the job's status, as the agent of this node shows it while it waits. O(1)."""
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
    """Note that the workers of the newest round start now, for the job's runtime."""
    job.started_at = at
    if job.ran_since is None:
        job.ran_since = at


def time_run_s(job: JobState, at: float) -> float:
    """Return the seconds since the job's first workers started; 0: none have.

    Earlier coordinators' time is included.
    """
    return job.ran_s + (0.0 if job.ran_since is None else max(at - job.ran_since, 0.0))


def close(
    job: JobState, outcome: Outcome, text: str, signal: int = 0, *, cause: bool = False
) -> list[JobEffect]:
    """Give the job its verdict, and return the orders that tell it to all nodes.

    `cause`: the verdict has the first cause of the last round's end. Not to be called again.
    """
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
