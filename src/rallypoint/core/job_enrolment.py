"""A round of several nodes before its workers start: who reaches the round store of rank 0 (F9).

Nothing runs yet, so a round that can't start costs nobody a restart. When every node has said
whether it reached the store, or the others have had a lease's time since the first failure:

* who failed is *expelled*, if that leaves rank 0 trusted: it is a minority, or alone;
* rank 0's node is *passed over*, if it could not reach its own store, or if more than half of the
  others, and at least two, could not reach it. So it is once, too, if the minimum would not be met
  without those that failed, or if of two nodes neither is the newcomer;
* with fixed ranks nobody can take another's place: the job ends, and names the pair.

A node that lives but never says that it is ready is expelled after the join timeout.
"""

from __future__ import annotations

from rallypoint.config import Endpoint
from rallypoint.core import text as words
from rallypoint.core.events import RoundNotStarted, RoundStarted, Timer, TimerKind
from rallypoint.core.job_rounds import is_member, run_round
from rallypoint.core.job_state import JobEffect, JobState, close, stamp, workers_started
from rallypoint.core.messages import NotEnrolled, StartNow, ToNode
from rallypoint.core.model import NodeRef, Outcome
from rallypoint.core.round_state import MemberState, RoundPhase, is_active

MOST_MIN = 2
"""The number of other nodes that failed to reach rank 0's store, from which on rank 0 is at fault,
if they are also more than half of the others."""


def enrolled(job: JobState, ref: NodeRef, round_: int, at: float) -> list[JobEffect]:
    """Note that a node has reached the round store of rank 0; when all have, start the workers.

    If all have answered, and some have failed, end the round instead, or with fixed ranks the job.
    """
    if not _is_awaited(job, ref, round_):
        return []
    state = job.round
    job.unreached.pop(ref.node_id, None)
    job.enrolled.add(ref.node_id)
    if len(job.enrolled) < len(state.world):
        return _judge_if_all_told(job, at)
    job.started = True
    workers_started(job, at)
    effects = run_round(job, RoundStarted(round_), at)
    running = [m.ref for m in state.members.values() if m.state is MemberState.RUNNING]
    return effects + [ToNode(ref, StartNow(stamp(job, round_))) for ref in running]


def failed(job: JobState, ref: NodeRef, report: NotEnrolled, at: float) -> list[JobEffect]:
    """Note that a node can't reach the round store of rank 0.

    When all nodes have answered, end the round, or with fixed ranks the job.
    """
    if not _is_awaited(job, ref, report.stamp.round):
        return []
    job.enrolled.discard(ref.node_id)
    job.unreached[ref.node_id] = report.text
    return _judge_if_all_told(job, at)


def timers_wanted(job: JobState) -> dict[Timer, float]:
    """Return the timers of a round before its workers start, in seconds.

    They limit the time for all nodes to be ready, and after a first failure the time for the
    others.
    """
    state = job.round
    if job.started or state.phase is not RoundPhase.ACTIVE:
        return {}
    wanted = {Timer(TimerKind.READY, state.round): state.settings.join_timeout_s}
    if job.unreached:
        wanted[Timer(TimerKind.ENROLMENT, state.round)] = state.settings.lease_s
    return wanted


def time_is_over(job: JobState, timer: Timer, at: float) -> list[JobEffect]:
    """Handle the end of one of the `timers_wanted`: end the round, or with fixed ranks the job.

    Nodes at fault are expelled, or the node of rank 0 is passed over.
    """
    if timer not in timers_wanted(job):
        return []
    if timer.kind is TimerKind.ENROLMENT or job.unreached:
        return _judge(job, at)
    # Nobody has failed to reach rank 0: it is not to blame for those that are not ready.
    state = job.round
    unready = [entry for entry in state.world if entry.node_id not in job.enrolled]
    why = f"not ready within {state.settings.join_timeout_s:g} s"
    ids = words.names(tuple(entry.node_id for entry in unready))
    text = f"node {ids} was {why}" if len(unready) == 1 else f"nodes {ids} were {why}"
    if _ranks_are_fixed(job):
        return close(job, Outcome.INFRASTRUCTURE, text)
    expelled = tuple((state.members[entry.node_id].ref, f"it was {why}") for entry in unready)
    return run_round(job, RoundNotStarted(state.round, text, expelled), at)


def _is_awaited(job: JobState, ref: NodeRef, round_: int) -> bool:
    """Return whether the node takes part in this round, whose workers have not been started."""
    if not is_active(job.round, round_) or job.started or not is_member(job, ref):
        return False
    return job.round.members[ref.node_id].state is MemberState.RUNNING


def _judge_if_all_told(job: JobState, at: float) -> list[JobEffect]:
    told = len(job.enrolled) + len(job.unreached)
    return _judge(job, at) if told == len(job.round.world) else []


def _judge(job: JobState, at: float) -> list[JobEffect]:
    state, unreached = job.round, job.unreached
    host = state.world[0].node_id
    address = Endpoint(job.assigned[host].master_addr, job.assigned[host].master_port)
    first = next(iter(unreached))
    if _ranks_are_fixed(job):
        text = f"node {first} did not reach the round store of node {host}: {unreached[first]}"
        return close(job, Outcome.INFRASTRUCTURE, text)
    if _is_host_at_fault(job, host):
        text = f"the round store of node {host} ({address}) was not reached by {_who(job, host)}"
        event = RoundNotStarted(state.round, f"{text}: another node becomes rank 0", (), host)
        return run_round(job, event, at)
    expelled = tuple((state.members[node_id].ref, why) for node_id, why in unreached.items())
    who = f"node {first}" if len(expelled) == 1 else _who(job, host)
    text = f"{who} did not reach the round store of node {host} ({address})"
    return run_round(job, RoundNotStarted(state.round, text, expelled), at)


def _ranks_are_fixed(job: JobState) -> bool:
    """Return whether ranks are fixed, so that no node can replace another one."""
    world = (job.round.members[entry.node_id] for entry in job.round.world)
    return job.round.settings.static or all(x.candidate.node_rank >= 0 for x in world)


def _is_host_at_fault(job: JobState, host: str) -> bool:
    state, failed = job.round, len(job.unreached)
    nodes = [entry.node_id for entry in state.world]
    if not set(nodes) - set(state.passed_over) - {host}:
        return False  # nobody is left to try
    others = len(nodes) - 1
    if host in job.unreached or (failed >= MOST_MIN and 2 * failed > others):
        return True
    ran = [entry.incarnation in state.started_world for entry in state.world]
    nobody_is_new = len(nodes) == 2 and ran[0] == ran[1]
    is_short = len(nodes) - failed < state.settings.min_nodes
    return (nobody_is_new or is_short) and not set(nodes) & set(state.passed_over)


def _who(job: JobState, host: str) -> str:
    """Return which nodes failed to reach the store, as `3 of 4 other nodes (b, c, d)`.

    If it was only rank 0's own node, `that node itself`.
    """
    failed = tuple(sorted(job.unreached.keys() - {host}))
    if not failed:
        return "that node itself"
    others = words.count(len(job.round.world) - 1, "other node")
    return f"{len(failed)} of {others} ({words.names(failed)})"
