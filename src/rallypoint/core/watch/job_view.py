"""The view of a job for people: one value, made from the job's state and its history. Pure.

It is sent as JSON, and printed as such by `--json`: the meaning of a field does not change within a
`schema` number, fields may be added.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import restarts
from rallypoint.core import text as words
from rallypoint.core.fitness import HeldBack, held_back, why_held_back
from rallypoint.core.job_rounds import presumed_cause
from rallypoint.core.job_state import JobState, time_run_s
from rallypoint.core.model import Verdict
from rallypoint.core.round_record import ROUNDS_SHOWN, RoundRecord, first_cause
from rallypoint.core.round_state import MemberState, RoundMember, RoundPhase
from rallypoint.core.watch import goodput
from rallypoint.core.watch.goodput import WORKING, Spending
from rallypoint.core.watch.goodput_view import GoodputView, TimePart
from rallypoint.core.watch.history import SCHEMA, JobHistory, UnixTime
from rallypoint.core.watch.names import fold_names, gaps_in_names

STUCK_S, STUCK_STEPS = 30.0, 10
"""The limits, in seconds and in usual durations of a step, of the time without a step. A job that
exceeds both is shown as stuck."""
NODES_SHOWN = 1000
"""The most nodes in a view. Of more, the conspicuous ones are shown and the rest is only
counted."""


class Heard(Struct, frozen=True):
    """The signs of life of a node's agent, as the coordinator's process knows them."""

    host: str = ""
    """The address from which it is connected; empty: not known."""
    silent_s: float = 0.0
    """The seconds since its last sign of life."""
    is_connected: bool = True


class NodeView(Struct, frozen=True, omit_defaults=True):
    """The view of one node of a job."""

    node: str
    state: str
    """`running`, `starting`, `stopping`, `leaving`, `joined`, `waiting`, `standby` or `done`."""
    workers: int
    host: str = ""
    group_rank: int = -1
    first_rank: int = -1
    step: int = -1
    """The step of its worker that is furthest behind; -1: not known."""
    behind: int = -1
    """The global rank of the worker that is furthest behind; -1: not known."""
    quiet_s: float | None = None
    """The seconds since the last progress of the worker that is furthest behind; None: not
    known."""
    silent_s: float = 0.0
    """The seconds since the last sign of life of its agent."""
    is_connected: bool = True
    phases: dict[str, float] = {}
    """The seconds of each finished phase of this round's start: `rendezvous`, `spawn`, and after
    that `first_output` and `first_progress`."""
    held_back: str = ""
    """Why the node takes part in no round, or why none is ended to admit it, and for how long in
    all; empty: it is trusted."""
    cant_log: str = ""
    """Why a log file of its workers can't be written; empty: all can."""
    in_phase: str = ""
    """The script's name for a long phase, such as an evaluation, that one of its workers is in;
    empty: none."""


class HowItEnded(Struct, frozen=True):
    """The end of a job."""

    outcome: str
    text: str
    no_progress: str = ""
    """The repeated failure that ended the job (`--max-no-progress`); empty: it ended otherwise."""


class JobView(Struct, frozen=True):
    """The whole view of a job, as its status shows it."""

    schema: int
    job: str
    state: str
    """The present state of the job, or its outcome, in a few words."""
    reason: str
    since_s: float
    """The seconds since the job's present kind of time (`Spending`) began, or since its end. In the
    state `no progress`: since the last step."""
    age_s: float
    """The age of the job in seconds, with the time under former coordinators as far as it is
    known."""
    incarnation: int
    round: int
    rounds: int
    """The number of rounds that were formed."""
    world_nodes: int
    world_workers: int
    min_nodes: int
    max_nodes: int
    waits_for: str
    """The nodes or the event that the job waits for, in words; empty: none."""
    step: int
    furthest_step: int
    total_steps: int
    steps_per_s: float | None
    left_s: float | None
    loss: float | None
    saved_step: int
    restarts_used: int
    max_restarts: int
    goodput: GoodputView
    nodes: tuple[NodeView, ...]
    nodes_left_out: int
    """The number of further nodes that are not in `nodes`."""
    past: tuple[RoundRecord, ...]
    """The last rounds that have ended, the newest last."""
    verdict: HowItEnded | None = None
    held_back: tuple[HeldBack, ...] = ()
    """The machines and nodes that are held back from rounds, also those that are not in the job
    now."""
    known_since: UnixTime | None = None
    """The Unix time before which only a former coordinator, which is gone, knew what happened;
    None: all is known."""
    lease_s: float = 0.0
    """The seconds of silence after which a node is lost."""
    waits_at_most_s: float | None = None
    """How many seconds the wait of `waits_for` may last from now; None: there is no limit, or it is
    not known."""
    awaited: tuple[str, ...] = ()
    """The nodes of `waits_for` that are in the job: they have to stop or start workers, to reach
    the store of rank 0, or to save a checkpoint."""
    same_failures: int = 0
    """The number of equal failures in a row; 0: there is not more than one."""
    ends_in_s: float | None = None
    """How many seconds the job may still run (`--max-runtime`); None: there is no limit, it does
    not count yet, or the job has ended."""


class JobLine(Struct, frozen=True):
    """The view of a job in a list of jobs."""

    job: str
    state: str
    since_s: float
    nodes: int
    workers: int
    round: int
    step: int
    total_steps: int
    useful_share: float | None
    """The share of its time, from 0 to 1, in which steps were done for the first time; None: no
    steps are known."""
    reason: str


def job_line(view: JobView) -> JobLine:
    """Return the line of this job in a list of jobs."""
    useful, wall_s = view.goodput.useful_s, view.goodput.wall_s
    return JobLine(
        view.job,
        view.state,
        view.since_s,
        view.world_nodes,
        view.world_workers,
        view.round,
        view.step,
        view.total_steps,
        useful / wall_s if useful is not None and wall_s else None,
        view.waits_for or view.reason,
    )


_STATES = {
    Spending.WAITING: "waiting",
    Spending.RENDEZVOUS: "restarting",
    Spending.SPAWN: "starting",
    Spending.STARTUP: "starting up",
    Spending.STEPS: "running",
    Spending.REDONE: "catching up",
    Spending.CHECKPOINT: "saving a checkpoint",
    Spending.STOP: "stopping",
    Spending.PAUSED: str(Spending.PAUSED.value),
}


def view_of(
    job: JobState, history: JobHistory, heard: Callable[[str], Heard], at: float
) -> JobView:
    """Return the view of a job at `at`. `heard`: an agent's signs of life by its incarnation."""
    state, settings, account = job.round, job.round.settings, history.account
    active, verdict = state.phase is RoundPhase.ACTIVE, job.verdict
    newest = state.round if active else max(state.round - 1, 0)
    tells = [told.progress for told in history.told.values()]
    step, total = account.steps.step, max((one.total for one in tells), default=-1)
    rate = history.steps_per_s if active else None
    state_word, since_s = _state(job, history), at - history.changed_at
    if (stuck_s := _stuck_s(history, at)) is not None:
        state_word, since_s = "no progress", stuck_s
    lease_s = settings.lease_s
    left_s = (total - step) / rate if rate and total > step >= 0 else None
    losses = [one.loss for one in tells if one.loss is not None]
    nodes = tuple(
        _node(job, history, member, heard(member.ref.incarnation), at)
        for member in state.members.values()
    )
    return JobView(
        schema=SCHEMA,
        job=settings.run_id,
        state=state_word,
        reason=_reason(job, history),
        since_s=since_s,
        age_s=at - account.begun_at,
        incarnation=job.incarnation,
        round=newest if verdict is None else verdict.round,
        rounds=history.rounds_formed,
        world_nodes=len(state.world) if active else 0,
        world_workers=job.world_workers if active else 0,
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        waits_for=waits_for(job, history),
        step=step,
        furthest_step=account.furthest,
        total_steps=total,
        steps_per_s=rate,
        left_s=left_s,
        loss=losses[0] if losses else None,
        saved_step=max((one.saved for one in tells), default=-1),
        restarts_used=job.ledger.total,
        max_restarts=settings.max_restarts,
        goodput=goodput_view(history, at),
        nodes=conspicuous(nodes, NODES_SHOWN),
        nodes_left_out=max(len(nodes) - NODES_SHOWN, 0),
        past=_past(job, history, at),
        verdict=None if verdict is None else _how_it_ended(verdict),
        held_back=tuple(held_back(state)),
        known_since=history.known_since,
        lease_s=lease_s,
        awaited=tuple(sorted(_awaited(job, history))[:NODES_SHOWN]),
        waits_at_most_s=_waits_at_most_s(job, history, at),
        same_failures=job.crash_loop.count if restarts.describe_loop(job.crash_loop) else 0,
        ends_in_s=_ends_in_s(job, at),
    )


def _ends_in_s(job: JobState, at: float) -> float | None:
    most_s = job.round.settings.max_runtime_s
    if not most_s or job.ran_since is None or job.verdict is not None:
        return None
    return max(most_s - time_run_s(job, at), 0.0)


def _past(job: JobState, history: JobHistory, at: float) -> tuple[RoundRecord, ...]:
    """Return the last rounds that have ended, the newest last.

    While nodes still stop the workers of the newest one, it has the cause that is presumed so far.
    """
    past = history.ended_rounds(at, _in_state(job, MemberState.STOPPING))[-ROUNDS_SHOWN:]
    if past and past[-1].cause is None and past[-1].round == job.round.round - 1:
        cause = first_cause(presumed_cause(job))
        past[-1] = replace(past[-1], cause=cause)
    return tuple(past)


def _how_it_ended(verdict: Verdict) -> HowItEnded:
    return HowItEnded(str(verdict.outcome.value), verdict.text, verdict.no_progress)


def goodput_view(history: JobHistory, at: float) -> GoodputView:
    """Return how the job's time was used up to `at`, or up to the job's end."""
    account = history.account
    sums = goodput.spent(account, at)
    parts = sorted(sums.items(), key=lambda part: -part[1])
    known = account.furthest >= 0
    wall_s = goodput.wall_s(account, at)
    return GoodputView(
        wall_s=wall_s,
        useful_s=sums.get((Spending.STEPS, WORKING), 0.0) if known else None,
        parts=tuple(TimePart(str(kind.value), cause, s) for (kind, cause), s in parts),
        furthest_step=account.furthest,
        lost_steps=account.lost_steps,
        faults=account.faults,
        mean_s_between_faults=wall_s / account.faults if account.faults else None,
        spare_node_s=goodput.spare_s(account, at),
    )


def waits_for(job: JobState, history: JobHistory) -> str:
    """Return the nodes or the event that the job waits for, in words; empty: none."""
    state, settings = job.round, job.round.settings
    if job.verdict is not None:
        return ""
    if state.phase is RoundPhase.ACTIVE:
        if job.notice is not None and job.notice.awaited:
            return f"a checkpoint of {_nodes(job.notice.awaited)}"
        if not job.started:
            return _waits_to_enrol(job)
        if history.account.steps.awaited and history.account.steps.step < 0:
            return f"the workers of {_nodes(history.account.steps.awaited)} to start"
        return ""
    if state.counts[MemberState.STOPPING]:
        return (
            f"{_nodes(_in_state(job, MemberState.STOPPING))} to stop the workers of the last round"
        )
    if job.former:
        return f"{words.count(job.former, 'agent')} of the job's last life to leave"
    if job.backoff_s:
        again = restarts.describe_loop(job.crash_loop)
        why = f": {again}" if again else ""
        return f"the pause of {words.brief_seconds(job.backoff_s)} s before the restart{why}"
    joined = state.counts[MemberState.JOINED]
    named = _missing(job, settings.min_nodes - joined)
    here = f"{joined} of {settings.min_nodes} nodes are here"
    if joined >= settings.min_nodes:
        waits_s = f"at most {settings.last_call_s:g} s"
        return f"more nodes, {waits_s}: {joined} of {settings.max_nodes} are here"
    return f"{words.count(settings.min_nodes - joined, 'more node')}: {here}{named}"


def _awaited(job: JobState, history: JobHistory) -> set[str]:
    if job.verdict is not None:
        return set()
    if job.round.phase is not RoundPhase.ACTIVE:
        return _in_state(job, MemberState.STOPPING)
    if job.notice is not None and job.notice.awaited:
        return job.notice.awaited
    if not job.started:
        return set(job.assigned) - job.enrolled
    return history.account.steps.awaited if history.account.steps.step < 0 else set()


def _waits_at_most_s(job: JobState, history: JobHistory, at: float) -> float | None:
    if job.verdict is not None:
        return None
    if job.round.phase is RoundPhase.ACTIVE:
        if job.notice is None or not job.notice.awaited or job.notice.until == inf:
            return None
        return max(job.notice.until - at, 0.0)
    if job.backoff_s and history.account.now is Spending.PAUSED:
        return max(history.changed_at + job.backoff_s - at, 0.0)
    return None


def _waits_to_enrol(job: JobState) -> str:
    missing = set(job.assigned) - job.enrolled
    failed = sorted(missing & job.unreached.keys())
    if failed:
        why = job.unreached[failed[0]]
        return f"node {failed[0]}: it does not reach the store of rank 0: {why}"
    return f"{_nodes(missing)} to reach the store of rank 0"


def _missing(job: JobState, number: int) -> str:
    """Return the end of a sentence that names the missing nodes; empty: none can be named."""
    state = job.round
    gone = sorted(entry.node_id for entry in state.world if entry.node_id not in state.members)
    if gone:
        return f"; missing since the last round: {fold_names(gone)}"
    gaps = gaps_in_names(state.members)
    if 0 < len(gaps) == number:
        return f"; by the names of the others, missing: {fold_names(gaps)}"
    if 0 < len(gaps) < number:
        return f"; by the names of the others, among them: {fold_names(gaps)}"
    return ""


def _state(job: JobState, history: JobHistory) -> str:
    if job.verdict is not None:
        return str(job.verdict.outcome.value)
    if job.inquiry is not None and job.round.phase is RoundPhase.ACTIVE:
        return "hang suspected"
    now = history.account.now
    if now is Spending.RENDEZVOUS and history.rounds_formed <= 1:
        return "starting"
    if now is Spending.STARTUP and history.account.furthest < 0:
        return "running"
    return "waiting" if now is None else _STATES.get(now, "running")


def _stuck_s(history: JobHistory, at: float) -> float | None:
    """Return the seconds since the last step of any worker, if steps take much less; else None.

    None as well if the workers do no steps now.
    """
    steps, rate = history.account.steps, history.steps_per_s
    if history.account.now not in (Spending.STEPS, Spending.REDONE) or steps.advanced_at is None:
        return None
    quiet_s = at - steps.advanced_at
    return quiet_s if quiet_s >= max(STUCK_S, STUCK_STEPS / rate if rate else 0.0) else None


def _reason(job: JobState, history: JobHistory) -> str:
    if job.verdict is not None:
        return job.verdict.text
    if job.notice is not None and job.round.phase is RoundPhase.ACTIVE:
        return job.notice.reason
    if job.round.phase is not RoundPhase.ACTIVE and job.end_reason is not None:
        return job.end_reason.text
    newest = history.rounds[-1] if history.rounds else None
    return newest.why if newest is not None and newest.ended is None else ""


def _node(
    job: JobState, history: JobHistory, member: RoundMember, heard: Heard, at: float
) -> NodeView:
    node_id = member.ref.node_id
    place, told = job.assigned.get(node_id), history.told.get(node_id)
    runs = member.state in (MemberState.RUNNING, MemberState.STOPPING)
    if not runs:
        place = told = None
    progress = None if told is None else told.progress.later(at - told.at)
    return NodeView(
        node=node_id,
        state=_node_state(
            job, member, has_workers=progress is not None and progress.running_s is not None
        ),
        workers=member.candidate.workers,
        host=heard.host,
        group_rank=-1 if place is None else place.group_rank,
        first_rank=-1 if place is None else place.base_rank,
        step=-1 if progress is None else progress.step,
        behind=-1 if progress is None or progress.step < 0 else progress.rank,
        quiet_s=None if progress is None else progress.silent_s,
        silent_s=heard.silent_s,
        is_connected=heard.is_connected,
        phases={} if progress is None else {k: s for k, s in progress.phases if s is not None},
        held_back=why_held_back(job.round, node_id),
        cant_log="" if progress is None else progress.cant_log,
        in_phase="" if progress is None else progress.in_phase,
    )


def conspicuous(nodes: tuple[NodeView, ...], most: int) -> tuple[NodeView, ...]:
    """Return these nodes, or the `most` conspicuous ones if there are more."""
    return nodes if len(nodes) <= most else tuple(sorted(nodes, key=_stands_out)[:most])


def _stands_out(node: NodeView) -> tuple[bool, bool, bool, float]:
    """Return a key to sort nodes by: conspicuous ones first, then by time without progress."""
    is_usual = node.state in ("running", "done") and not node.cant_log
    return is_usual, node.is_connected, not node.held_back, -(node.quiet_s or node.silent_s)


def _node_state(job: JobState, member: RoundMember, *, has_workers: bool) -> str:
    if member.succeeded:
        return "done"
    if member.state is MemberState.RUNNING and not has_workers:
        return "starting"
    return str(member.state.value)


def _in_state(job: JobState, state: MemberState) -> set[str]:
    return {one.ref.node_id for one in job.round.members.values() if one.state is state}


def _nodes(node_ids: set[str]) -> str:
    named = fold_names(node_ids)
    return f"{'node' if len(node_ids) == 1 else 'nodes'} {named}"
