"""Reports and requests about machines (behaviour A11). Pure.

Late nodes prove themselves, people exclude a machine and allow it again.

`fitness.py` has the essay, and decides which machine is held back.
"""

from __future__ import annotations

from rallypoint.core import event_kinds as kinds
from rallypoint.core import fitness
from rallypoint.core import text as words
from rallypoint.core.events import NodeProven, StandingChanged
from rallypoint.core.fitness import machine_of
from rallypoint.core.fitness_state import left_s
from rallypoint.core.job_fitness import ask_to_prove, name_of
from rallypoint.core.job_rounds import is_member, run_round
from rallypoint.core.job_state import JobEffect, JobState, stamp
from rallypoint.core.messages import DrainWanted, Proved, ToNode
from rallypoint.core.model import NodeRef
from rallypoint.core.round_state import MemberState, RoundState


def ask_again(job: JobState, ref: NodeRef) -> list[JobEffect]:
    """Ask a late node again to prove that it can take part, as it may have missed the question."""
    member = job.round.members.get(ref.node_id)
    if member is None or member.is_proven or not is_member(job, ref):
        return []
    return ask_to_prove(job, ref)


def proved(job: JobState, ref: NodeRef, report: Proved, at: float) -> list[JobEffect]:
    """Note a late node's answer whether it can start workers and reach the round store.

    An event tells of one that can't start workers; it leaves by itself. One that does not reach the
    store is held back.
    """
    if job.proving.get(ref.node_id) != report.number or not is_member(job, ref):
        return []
    del job.proving[ref.node_id]
    if report.unfit:
        return [kinds.NODE_UNFIT(node_id=ref.node_id, node=ref, why=report.unfit)]
    proven = NodeProven(ref, report.stamp.round, report.unreached)
    effects = run_round(job, proven, at)
    bad = job.round.bad_routes.get(ref.node_id)
    if report.unreached and bad is not None and bad.hold is not None:
        length = words.brief_seconds(left_s(job.round.fitness, bad.hold))
        text = f"node {ref} is held back for {length} s: {report.unreached}"
        effects = [kinds.NODE_HELD_BACK(text, node_id=ref.node_id), *effects]
    return effects


def exclude(job: JobState, node_id: str, at: float) -> list[JobEffect]:
    """Exclude the machine of this node from all rounds, at a person's request.

    Its nodes that take part in the round are asked to leave.
    """
    machine = name_of(job.round, node_id)
    fitness.exclude(job.round, machine, node_id)
    effects: list[JobEffect] = [
        kinds.NODE_HELD_BACK(f"node {node_id} is held back: {fitness.EXCLUDED}", node_id=node_id)
    ]
    for member in job.round.members.values():
        if machine_of(member) == machine:
            effects += drain_excluded(job, member.ref)
    return effects + run_round(job, StandingChanged(machine), at)


def drain_excluded(job: JobState, ref: NodeRef) -> list[JobEffect]:
    """Ask a node that takes part in the round to leave, if its machine was excluded."""
    member = job.round.members[ref.node_id]
    known = job.round.fitness.machines.get(machine_of(member))
    takes_part = member.state in (MemberState.RUNNING, MemberState.STOPPING)
    if known is None or not known.is_excluded or not takes_part:
        return []
    return [ToNode(ref, DrainWanted(stamp(job), fitness.EXCLUDED))]


def allow(job: JobState, node_id: str, at: float) -> list[JobEffect]:
    """Trust this node and its machine again, at a person's request.

    `node_id` may also be the machine's name. Returns the effects: none if both were trusted.
    """
    machine = held_machine(job.round, node_id)
    if not fitness.allow(job.round, machine, node_id):
        return []
    text = f"node {node_id} is trusted again: a person allows it (rallypoint nodes allow)"
    effects: list[JobEffect] = [kinds.NODE_HELD_BACK(text, node_id=node_id)]
    member = job.round.members.get(node_id)
    if member is not None:
        effects += run_round(job, StandingChanged(machine_of(member)), at)
    return effects + run_round(job, StandingChanged(machine), at)


def held_machine(state: RoundState, name: str) -> str:
    """Return the machine that a user names by the id of a node of it, or by the machine's own name.

    The node may be lost. An unknown name is returned as it is.
    """
    machines = state.fitness.machines
    if name in state.members or name in machines:
        return name if name in machines else machine_of(state.members[name])
    return next((m for m, known in machines.items() if known.node_id == name), name)
