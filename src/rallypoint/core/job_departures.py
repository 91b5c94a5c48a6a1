"""Planned changes of a job's world: nodes leave or join after a checkpoint (`checkpoint.py`)."""

from __future__ import annotations

from math import inf
from signal import SIGTERM

from rallypoint.core import cause as causes
from rallypoint.core import checkpoint, late_nodes
from rallypoint.core import event_kinds as kinds
from rallypoint.core import text as words
from rallypoint.core.checkpoint import Leaver, SaveNotice, Then
from rallypoint.core.events import (
    Effect,
    GrowthReady,
    NodeDraining,
    NodeSucceeded,
    StopRound,
    WorkersFinishing,
)
from rallypoint.core.job_requests import keep_save
from rallypoint.core.job_rounds import is_member, perform, run_round
from rallypoint.core.job_state import JobEffect, JobState, SessionLost, close, stamp
from rallypoint.core.liveness import DEATHS
from rallypoint.core.messages import (
    CheckpointAnswered,
    CheckpointNotWanted,
    CheckpointWanted,
    Drain,
    FromNode,
    LeaveNow,
    ToNode,
)
from rallypoint.core.model import NodeRef, Outcome
from rallypoint.core.round import step as step_round
from rallypoint.core.round_state import MemberState, RoundPhase
from rallypoint.core.settings import OnJoin
from rallypoint.core.text import named

DRAIN_WINDOW_S = 3.0
"""The seconds within which drains of all nodes count as one stop of the whole job."""


def drains(job: JobState, ref: NodeRef, drain: Drain, at: float) -> list[JobEffect]:
    """Handle a node's drain: ask for a checkpoint if its workers run, else let the node leave.

    It leaves at once, too, if its notice leaves no time. All nodes whose workers run are asked,
    unless they were asked for an earlier drain. A repeated drain of a node is ignored.
    """
    node_id = ref.node_id
    member = job.round.members.get(node_id)
    if member is None or member.ref != ref or member.state is MemberState.LEAVING:
        return []
    if is_leaver(job, ref):
        return []
    if not job.drained or at - job.drain_began_at > DRAIN_WINDOW_S:
        job.drained, job.drain_began_at = set(), at
        job.drain_world = frozenset(entry.node_id for entry in job.round.world)
    job.drained.add(node_id)
    began_at = at - drain.age_s
    job.told_to_go[node_id] = began_at
    job.reports = causes.without_collateral_of_drains(job.reports, job.told_to_go)
    leaver = Leaver(ref, drain.why, drain.signal, began_at, drain.notice_s, drain.hosts)
    is_held = job.notice is not None and node_id in job.notice.held
    # A success before the drain counts, as it does where nobody is asked for a checkpoint.
    effects = _withdraw(job, at) if is_held else []
    works = member.works
    if not (drain.notice_s and works and job.started and job.round.phase is RoundPhase.ACTIVE):
        if works:
            job.farewells[node_id] = "no checkpoint was asked for"
        return effects + _leave(job, (leaver,), at, is_said=False)
    said = kinds.NODE_DRAINING(node_id=node_id, node=node_id, why=drain.why)
    effects.append(said)
    if job.notice is None or not job.notice.then.leaves:
        effects += _open_notice(job, checkpoint.LEAVE, said.text, at, leaver)
        assert job.notice is not None
        job.notice.began_at = began_at
    else:
        job.notice.leavers[node_id] = leaver
    return effects


def _leave(
    job: JobState, leavers: tuple[Leaver, ...], at: float, *, is_said: bool
) -> list[JobEffect]:
    """Let these nodes leave now: they are told to stop their workers, and to leave.

    The round ends if workers of them ran. The job ends as preempted if all its nodes leave, or the
    one with the coordinator.
    """
    state = job.round
    here = [x for x in leavers if is_member(job, x.ref)]
    others = len(state.members) - state.counts[MemberState.LEAVING] - len(here)
    host = next((leaver for leaver in leavers if leaver.hosts), None)
    gone = job.drained.union(leaver.ref.node_id for leaver in leavers)
    alone = len(state.members) < 2
    is_all = bool(job.drain_world) and job.drain_world <= gone and not others
    if is_all and not (host and alone):
        last = host or leavers[-1]
        return close(job, Outcome.PREEMPTED, f"every node is leaving: {last.why}", last.signal)
    if host is not None:
        text = _host_leaves(host.ref, host.why, alone=alone)
        return close(job, Outcome.PREEMPTED, text, host.signal)
    effects: list[JobEffect] = []
    asked: list[Effect] = []
    for ref, why in ((leaver.ref, leaver.why) for leaver in here):
        if not is_said:
            effects.append(kinds.NODE_DRAINING(node_id=ref.node_id, node=ref, why=why))
        said_at = job.succeeded_at.get(ref.node_id)
        is_void = said_at is not None and at - said_at <= causes.COLLATERAL_S
        asked += step_round(state, NodeDraining(ref, why, is_void))
    for effect in asked:
        if job.verdict is None:
            effects += perform(job, effect, at)
    # What has failed since the first of them was told to go, has failed because of that (A5).
    if any(isinstance(effect, StopRound) for effect in asked):
        job.ended_at = min(leaver.began_at for leaver in leavers)
    return effects + [leave_now(job, leaver.ref) for leaver in here]


def _open_notice(
    job: JobState, then: Then, reason: str, at: float, leaver: Leaver | None = None
) -> list[JobEffect]:
    job.notices += 1
    notice = job.notice = checkpoint.open_notice(job.round, job.notices, then, reason, at)
    if leaver is not None:
        notice.leavers[leaver.ref.node_id] = leaver
    members = (job.round.members[node_id] for node_id in sorted(notice.awaited))
    return [want_checkpoint(job, notice, member.ref, at) for member in members]


def leave_now(job: JobState, ref: NodeRef) -> ToNode:
    """Return the order to a draining node to stop its workers and leave."""
    return ToNode(ref, LeaveNow(stamp(job)))


def want_checkpoint(job: JobState, notice: SaveNotice, ref: NodeRef, at: float) -> ToNode:
    """Return the request for a checkpoint, to one node."""
    left_s = None if notice.until == inf else max(0.0, notice.until - at)
    named = stamp(job, notice.round)
    asked = CheckpointWanted(named, notice.number, notice.then.kind, notice.reason, left_s)
    return ToNode(ref, asked)


def answered(job: JobState, ref: NodeRef, answer: CheckpointAnswered, at: float) -> list[JobEffect]:
    """Note that one node has answered the request for a checkpoint.

    The wait ends if all have answered, or if a worker of a leaving node has failed. If it is for
    late nodes, at least one node must also have saved a checkpoint.
    """
    notice, node_id, round_ = job.notice, ref.node_id, answer.stamp.round
    if round_ != job.round.round:
        return []
    grows = answer.listens and not answer.drains and not answer.goes_on
    if grows and answer.number <= job.withdrawn:
        return _saved_late(job, round_, at)
    if notice is None or (round_, answer.number) != (notice.round, notice.number):
        return []
    notice.awaited.discard(node_id)
    notice.some_listen |= answer.listens
    if answer.failed and node_id in notice.leavers:
        return end_notice(job, at, f"a worker of node {node_id} has ended")
    return end_notice(job, at) if notice.is_over else []


def succeeded_meanwhile(job: JobState, event: NodeSucceeded, at: float) -> list[JobEffect]:
    """Hold back the success of a node whose workers were asked for a checkpoint (behaviour A4).

    Workers that exit with 0 then may have exited because of the request. If it is for late nodes,
    the successes count once all nodes have them and no worker has saved since.
    """
    notice = job.notice
    assert notice is not None
    node_id = event.ref.node_id
    notice.held[node_id] = event
    job.succeeded_at[node_id] = at
    done = CheckpointAnswered(stamp(job, notice.round), notice.number, listens=notice.then.leaves)
    effects = answered(job, event.ref, done, at)
    running = job.round.counts[MemberState.RUNNING]
    if job.notice is not notice or notice.some_listen or len(notice.held) < running:
        return effects
    return effects + _withdraw(job, at)


def end_notice(job: JobState, at: float, cut_short: str = "") -> list[JobEffect]:
    """End the wait for a requested checkpoint, and do what it was requested for.

    The nodes leave, late nodes are admitted, or the job ends. `cut_short` is why not all nodes were
    waited for; empty: they have answered, or the time is over.
    """
    notice, job.notice = job.notice, None
    assert notice is not None
    text = checkpoint.how_it_went(notice, cut_short)
    kind = kinds.CHECKPOINT_MISSED if cut_short or notice.awaited else kinds.CHECKPOINT
    effects: list[JobEffect] = [kind(text)] if text else []
    if notice.then.ends:
        return effects + close(job, Outcome.OUT_OF_TIME, notice.reason, SIGTERM)
    if notice.then.joins:
        return effects + run_round(job, GrowthReady(notice.round), at)
    job.farewells |= dict.fromkeys(
        notice.leavers, checkpoint.saved_before_leaving(notice, cut_short)
    )
    return effects + _leave(job, tuple(notice.leavers.values()), at, is_said=True)


def time_is_over(job: JobState, at: float) -> list[JobEffect]:
    """End the job, whose `--max-runtime` is over; if workers run, after a last checkpoint."""
    length = words.brief_seconds(job.round.settings.max_runtime_s)
    text = f"it has run for {length} s ({named.max_runtime})"
    notice = job.notice
    if job.round.phase is not RoundPhase.ACTIVE or not job.started:
        return close(job, Outcome.OUT_OF_TIME, text, SIGTERM)
    if notice is not None and notice.then.leaves:  # The workers are asked for one already.
        notice.then, notice.reason, notice.began_at = checkpoint.END, text, at
        return []
    asked = _open_notice(job, checkpoint.END, text, at)
    return [kinds.CHECKPOINT(f"{text}: a last checkpoint is asked for"), *asked]


def keep_notice(job: JobState, at: float) -> list[JobEffect]:
    """Adapt the open request for a checkpoint to the state of the job, after each event.

    It ends with its round. One for late nodes is opened when such nodes may be admitted at a
    checkpoint, and withdrawn if none waits any more and no node has saved.
    """
    keep_save(job)
    notice, state = job.notice, job.round
    if job.verdict is not None:
        return []
    if notice is None:
        if not (
            state.settings.on_join is OnJoin.AT_CHECKPOINT
            and job.started
            and late_nodes.may_be_admitted(state)
        ):
            return []
        waiting = words.count(state.eager_waiting, "more node")
        verb = "waits" if state.eager_waiting == 1 else "wait"
        text = f"{waiting} {verb} for a checkpoint"
        return [kinds.CHECKPOINT(text), *_open_notice(job, checkpoint.JOIN, text, at)]
    if state.phase is not RoundPhase.ACTIVE or state.round != notice.round:
        if notice.then.ends:
            return end_notice(job, at, "the round has ended")
        job.notice, leavers = None, tuple(notice.leavers.values())
        how = checkpoint.saved_before_leaving(notice, "the round has ended")
        job.farewells |= dict.fromkeys(notice.leavers, how)
        return _leave(job, leavers, at, is_said=True) if leavers else []
    return [] if late_nodes.are_wanted(state) else _withdraw(job, at)


def before_it_goes(job: JobState, event: SessionLost | FromNode, at: float) -> list[JobEffect]:
    """Update the job for a node that leaves or is lost, before the node is removed from it.

    If the wait for a checkpoint is for its leaving, that ends. If its success was held back by a
    request for late nodes, the request is withdrawn and the success counts, unless a node has
    saved.
    """
    ref = event.ref
    if not isinstance(event, SessionLost) or event.why in DEATHS:
        job.stopped.add(ref.incarnation)
    notice = job.notice
    if is_leaver(job, ref):
        return end_notice(job, at, f"node {ref} is gone")
    held = notice.held.get(ref.node_id) if notice is not None else None
    return _withdraw(job, at) if held is not None and held.ref == ref else []


def _withdraw(job: JobState, at: float) -> list[JobEffect]:
    """Withdraw the request for a checkpoint for late nodes, so that the round continues.

    Its nodes are told, and their successes that were held back count now. Does nothing if the
    request is for another purpose, or a node has saved.
    """
    notice = job.notice
    if notice is None or not notice.may_be_withdrawn:
        return []
    job.notice, job.withdrawn = None, notice.number
    withdrawn = CheckpointNotWanted(stamp(job, notice.round), notice.number)
    effects: list[JobEffect] = [
        ToNode(member.ref, withdrawn)
        for member in job.round.members.values()
        if member.state is MemberState.RUNNING and member.ref.node_id not in notice.held
    ]
    if notice.finishing:
        effects += run_round(job, WorkersFinishing(notice.round), at)
    for held in notice.held.values():
        effects += run_round(job, held, at)
    return effects


def _saved_late(job: JobState, round_: int, at: float) -> list[JobEffect]:
    """End the round because workers have saved a checkpoint for a request that was withdrawn.

    The workers may end, or have ended, because of it. If another request is open, the round ends
    only when all nodes have answered that.
    """
    notice = job.notice
    if notice is None:
        return run_round(job, GrowthReady(round_), at)
    notice.some_listen = True
    return end_notice(job, at) if notice.is_over else []


def is_leaver(job: JobState, ref: NodeRef) -> bool:
    """Return whether this node drains, and still waits for the last checkpoint of all nodes."""
    leaver = job.notice.leavers.get(ref.node_id) if job.notice is not None else None
    return leaver is not None and leaver.ref == ref


def is_leaving(job: JobState, ref: NodeRef) -> bool:
    """Return whether this node has reported that it drains, and has not gone yet."""
    member = job.round.members.get(ref.node_id)
    gone = member is not None and member.ref == ref and member.state is MemberState.LEAVING
    return gone or is_leaver(job, ref)


def is_collateral(job: JobState, happened_at: float) -> bool:
    """Return whether a worker's failure may be due to a drain (behaviour A5).

    It must have come within two seconds after the first node whose last checkpoint is still awaited
    was told to leave, or after the time of the job was over.
    """
    notice = job.notice
    if notice is None or not notice.then.leaves:
        return False
    return causes.follows(notice.began_at, happened_at)


def _host_leaves(ref: NodeRef, why: str, *, alone: bool) -> str:
    """Return the reason of a drain, with the addition that the coordinator leaves with its node.

    `alone`: no other node is there, and nothing is added.
    """
    return why if alone else f"node {ref}, {words.HOST_LEAVES}: {why}"
