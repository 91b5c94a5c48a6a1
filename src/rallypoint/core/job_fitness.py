"""The effects of unfit machines on a job (behaviour A11). Pure.

Newcomers prove themselves, nodes that can't start workers leave, and each failure is attributed to
the program or its machine. `fitness.py` explains the rules, and decides which machine is held back.
"""

from __future__ import annotations

from rallypoint.core import fitness
from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.fitness import Judgement, machine_of
from rallypoint.core.fitness_state import Failure
from rallypoint.core.job_state import JobEffect, JobState, stamp
from rallypoint.core.messages import Prove, ToNode
from rallypoint.core.model import Cause, Lacking, NodeRef
from rallypoint.core.restarts import digest
from rallypoint.core.round_state import RoundPhase, RoundState

PROBE_MAX_S = 10.0
"""The longest time that a late node tries to reach the store of the active round, in seconds."""


def name_of(state: RoundState, node_id: str) -> str:
    """Return the name of the machine of a node that is in the job, or was in the newest world.

    It is the node id if the machine has no name, or the node is not known.
    """
    member = state.members.get(node_id)
    if member is not None:
        return machine_of(member)
    named = (entry.machine for entry in state.world if entry.node_id == node_id)
    return next(named, "") or node_id


# ---- newcomers


def ask_to_prove(job: JobState, ref: NodeRef) -> list[JobEffect]:
    """Ask a late node to prove that it can start workers and reach the active round's store.

    Its answers to earlier questions do not count then. Without an active round nothing is asked.
    """
    place = next(iter(job.assigned.values()), None)
    if job.round.phase is not RoundPhase.ACTIVE or place is None:
        return []
    job.proofs += 1
    job.proving[ref.node_id] = job.proofs
    limit_s = min(job.round.settings.lease_s, PROBE_MAX_S)
    address, port = place.master_addr, place.master_port
    return [ToNode(ref, Prove(stamp(job), job.proofs, address, port, limit_s))]


# ---- nodes that could not start workers


def leaving(job: JobState) -> list[tuple[str, Lacking]]:
    """Return the nodes that could start no worker, each with the lacking resource. O(N).

    Nodes that have gone since are included. If other machines lack the same resource, it is the
    job's failure, and those nodes are left out.
    """
    machines: dict[Lacking, set[str]] = {}
    for node_id, lacking in job.lacking.items():
        machines.setdefault(lacking, set()).add(name_of(job.round, node_id))
    return [(node_id, lacks) for node_id, lacks in job.lacking.items() if len(machines[lacks]) == 1]


def words_of(lacking: Lacking) -> str:
    """Return what a node lacks for its workers, in words, such as `fork: error 11`."""
    return f"{lacking.stage}: error {lacking.errno}"


# ---- failures


def judge(job: JobState, cause: Cause) -> Judgement:
    """Decide whether the failure that ended a round is due to the program or its machine.

    The failure is noted. Its machine may be put into quarantine, or an earlier one released.
    """
    state, failure = job.round, cause.failure
    assert failure is not None
    state.fitness.failure_count += 1
    place = job.assigned.get(cause.node_id)
    found = Failure(
        id=state.fitness.failure_count,
        machine=name_of(state, cause.node_id),
        rank=failure.rank,
        group_rank=-1 if place is None else place.group_rank,
        digest=digest(failure),
        is_charged=False,
    )
    everywhere = any(
        name_of(state, report.node_id) != found.machine
        and not report.failure.tells_of_lost_peer
        and digest(report.failure) == found.digest
        for report in job.reports
    )
    return fitness.judge(state, found, cause.node_id, is_everywhere=everywhere)


def timers_wanted(job: JobState) -> dict[Timer, float]:
    """Return the timer of the minute that the active round's probation lasts, if it still runs."""
    known, round_ = job.round.fitness, job.round.round
    waits = job.started and job.round.phase is RoundPhase.ACTIVE and not known.is_over
    if not waits or known.passed_round == round_:
        return {}
    return {Timer(TimerKind.PROBATION, round_): fitness.PROBATION_S}
