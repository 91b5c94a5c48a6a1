"""Handover: how a coordinator that takes over a job learns what runs. Pure.

From the record of the one before it, and from the agents, each of which says what it does (section
L5 of the design).

Until it knows, nothing is decided: agents attach and are heard, and their reports are kept. It
knows when every node of the newest world has attached, or when those that have not can't run
anything any more: a lease has passed, or no worker of that round was started. Of the node that the
last leader lived in more is known (section L4): that it is dead, or since when nobody can have
renewed its lease.

Then the job goes on as if the coordinator had never changed. If the round was active and all of
its nodes are here, it goes on with its number, and no worker notices: what has happened meanwhile
the kept reports tell, one by one. Otherwise the round is over, in the one way in which any round
ends.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from rallypoint.core import event_kinds as kinds
from rallypoint.core import fitness
from rallypoint.core import messages as m
from rallypoint.core.cause import NodeFailure
from rallypoint.core.events import RoundOver, RoundReleased, TooManyLosses
from rallypoint.core.job_rounds import perform, run_round
from rallypoint.core.job_state import JobEffect, JobState
from rallypoint.core.liveness import DIED, DIED_FOR_MEMORY
from rallypoint.core.model import EndKind, EndReason, NodeLoss, NodeRef, WorldEntry, world_entry
from rallypoint.core.round_state import MemberState, RoundMember, RoundPhase, add, is_active
from rallypoint.core.settings import MAX_SECONDS
from rallypoint.core.takeover.record import (
    LEFT_CHARS,
    LEFT_MAX,
    JobRecord,
    Mark,
    is_set,
    is_settled,
    mark_of,
    with_bit,
)
from rallypoint.core.takeover.recovery import UNKNOWN as UNKNOWN
from rallypoint.core.takeover.recovery import Predecessor as Predecessor
from rallypoint.core.takeover.recovery import Recovery as Recovery
from rallypoint.core.takeover.recovery import may_run, missing_ranks
from rallypoint.core.text import count, names

LED_AND_DIED = f"{DIED}, while it led the job"
LED_AND_GONE = "it led the job, and did not come back"
NOT_BACK = "it did not come to the coordinator that took over"
UNTOLD = "another coordinator took over before its nodes had heard of it"
ANOTHER_NUMBER = "no worker of the round runs, so the next one has another RALLYPOINT_INCARNATION"
CAME_BACK = "its lease was over, and it came back without its workers"


class Handover:
    """The state that a coordinator got from the former one, or that the next one would need."""

    def __init__(
        self,
        record: JobRecord | None = None,
        predecessor: Predecessor = UNKNOWN,
        put_back_s: float = 0.0,
        epoch: int = 0,
    ) -> None:
        """`record`: the job's record that this coordinator has taken over; None: none.

        `predecessor`: what is known of the former leader's node. `put_back_s`: the additional
        seconds to wait for the nodes of the newest world, because an older record was put back into
        the register; 0: none was. `epoch`: this coordinator's, as agents are told.
        """
        self.recovery: Recovery | None = None
        """The takeover under way, with the part of the newest world that is known; None: no node is
        waited for."""
        if record is not None and record.verdict is None and record.newest_round is not None:
            self.recovery = _begun(record, predecessor)
            self.recovery.put_back_s, self.recovery.epoch = put_back_s, epoch
        self._unsettled: dict[str, None] = {}
        """The incarnations of agents that have sent reports which another coordinator would
        need."""
        self._mark: Mark = ()
        """The mark of the job (`mark_of`) at the last call of `to_settle`."""
        self._recovered: Recovery | None = None
        self.left: tuple[str, ...] = () if record is None else record.left
        """The ids of the last nodes that have left the job, the newest last."""

    def keep(self, ref: NodeRef, waiting: list[m.Numbered], numbered: m.Numbered) -> None:
        """Keep a report of this agent unacknowledged until no other coordinator would need it.

        So the agent sends it again to a coordinator that takes over. `waiting`: the agent's reports
        that are kept, to which this one is added.
        """
        waiting.append(numbered)
        self._unsettled[ref.incarnation] = None

    def settle(self, job: JobState, ref: NodeRef, waiting: list[m.Numbered]) -> None:
        """Drop an agent's oldest kept reports, up to one that another coordinator would need.

        That one and all later ones stay. `waiting`: the agent's kept reports, the oldest first.
        """
        settled = 0
        while settled < len(waiting) and is_settled(job, ref.node_id, waiting[settled].report):
            settled += 1
        del waiting[:settled]
        if not waiting:
            self._unsettled.pop(ref.incarnation, None)

    def to_settle(self, job: JobState) -> list[str]:
        """Return the incarnations of the agents whose kept reports may have become unnecessary.

        Empty: nothing that is recorded has changed since the last call, or no reports are kept.
        """
        if (mark := mark_of(job)) == self._mark:
            return []
        self._mark = mark
        return list(self._unsettled)

    def forget(self, ref: NodeRef, waiting: list[m.Numbered], *, has_left: bool) -> None:
        """Note that the session of this agent has ended, and drop its kept reports (`waiting`).

        `has_left`: the node has left, and was not lost.
        """
        if has_left and len(ref.node_id) <= LEFT_CHARS:
            self._has_come(ref.node_id)
            self.left = (*self.left, ref.node_id)[-LEFT_MAX:]
        waiting.clear()
        self._unsettled.pop(ref.incarnation, None)
        if self.recovery is not None:
            self.recovery.lost(ref)

    def _has_come(self, node_id: str) -> None:
        """Take this node off the list of those that have left: it takes part, perhaps again."""
        if node_id in self.left:
            self.left = tuple(each for each in self.left if each != node_id)

    def gone(self, node_id: str) -> str:
        """Return why an absent node is no longer in the job.

        Empty: not known, it may still come.
        """
        if node_id in self.left:
            return f"node {node_id} has left"
        found = self.recovery or self._recovered
        rank = _rank_of(found, node_id) if found is not None else -1
        if found is None or rank < 0 or rank in found.returned:
            return ""
        led = found.predecessor
        if led.is_dead and led.rank == rank:
            return f"node {node_id} was lost: {LED_AND_DIED}"
        # One that has stopped before may be back, and has yet to come.
        is_lost = self.recovery is None and may_run(found.record, rank)
        return f"node {node_id} was lost: {NOT_BACK}" if is_lost else ""

    def follow(self, job: JobState, at: float) -> tuple[Recovery, list[JobEffect]]:
        """Restore the job's state from the record and from the nodes that came back.

        Called once, when no more nodes are expected. Returns the takeover, which has ended, and the
        effects.
        """
        assert self.recovery is not None
        found, self.recovery = self.recovery, None
        self._recovered = found
        return found, [kinds.TAKEN_OVER(_taken_over(found)), *_recover(job, found, at)]

    def takes(self, job: JobState, ref: NodeRef, hello: m.Attach) -> bool:
        """Return whether an agent may go on with its session, which this coordinator does not know.

        During the takeover it may if its node takes part in the round that is taken over.
        Afterwards it may only if its node had succeeded, while that round is active.
        """
        self._has_come(ref.node_id)
        if self.recovery is not None:
            return self.recovery.takes(ref, hello)
        found, place = self._recovered, hello.place
        if found is None or place is None or hello.claim.doing is not m.Doing.SUCCEEDED:
            return False
        rank, state = place.assignment.group_rank, job.round
        if not is_active(state, place.assignment.round) or not found.takes(ref, hello):
            return False
        if state.world[rank].incarnation:
            return False
        state.world[rank] = _taken_back(job, found, rank)
        if rank == 0:
            job.store_lost = None
        return True


def _begun(record: JobRecord, predecessor: Predecessor) -> Recovery:
    """Return the state of a takeover before any node is here."""
    rank = predecessor.rank
    if not 0 <= rank < record.nodes or not may_run(record, rank):
        predecessor = UNKNOWN
    elif predecessor.is_dead:  # Who leads after this one has to know that too.
        record = replace(record, stopped=with_bit(record.stopped, rank, is_set=True))
    awaited = sum(may_run(record, rank) for rank in range(record.nodes))
    return Recovery(record, awaited, predecessor)


def _recover(job: JobState, found: Recovery, at: float) -> list[JobEffect]:
    record, state = found.record, job.round
    assert record.newest_round is not None
    state.round, state.phase = record.newest_round, RoundPhase.ACTIVE
    for rank in range(record.nodes):
        state.world.append(_taken_back(job, found, rank))
    fitness.taken_over(state)
    state.succeeded = record.successes
    state.finishing = state.succeeded > 0
    job.started = record.is_started
    job.withdrawn = job.notices
    if not record.is_active:
        reason = record.end_reason or EndReason(EndKind.LOSS, "the last coordinator ended it")
        here = {node.ref.node_id for node in found.returned.values()}
        blamed = record.blamed if reason.kind is EndKind.FAILURE else None
        if blamed is not None and blamed.node_id in here:
            blamed = None  # It tells of that itself.
        if blamed is not None:
            job.reports.append(NodeFailure(blamed.node_id, blamed.failure, 0.0))
            if blamed.lacking is not None:
                job.lacking[blamed.node_id] = blamed.lacking
        if reason.kind is EndKind.FAILURE:
            _note_lost(job, found, "" if blamed is None else blamed.node_id, at)
        effects = _over(job, reason, at)
        if reason.kind is not EndKind.FAILURE:
            job.ended_at = -inf  # What has failed since may have failed because of that.
        return effects
    if found.is_contested:
        text = "two agents reported to the new coordinator as the same node"
        return _over(job, EndReason(EndKind.LOSS, text), at)
    if 0 not in found.returned and is_set(record.succeeded, 0):
        job.store_lost = NodeLoss(state.world[0].node_id, 0.0, NOT_BACK)
    missing = missing_ranks(found)
    if missing and found.untold:
        return _untold(job, found, missing, at)
    if missing:
        return _lost(job, found, missing, at)
    return _without_workers(job, found, at)


def _note_lost(job: JobState, found: Recovery, blamed: str, at: float) -> None:
    """Note the loss of a node that is missing besides the one with the blamed worker.

    The time of the loss is not known: of other nodes' failures, only those that tell of a lost peer
    certainly follow from it.
    """
    gone = [job.round.world[rank].node_id for rank in missing_ranks(found)]
    others = [node_id for node_id in gone if node_id != blamed]
    if others and len(gone) > bool(blamed):
        job.losses.append(NodeLoss(others[0], at + MAX_SECONDS, NOT_BACK))


def _lost(
    job: JobState, found: Recovery, missing: list[int], at: float, came: int = 0
) -> list[JobEffect]:
    """End a round, because the nodes of these group ranks are lost.

    `came` is how many of them have come after all, without having been told of the round.
    """
    led, world = found.predecessor, job.round.world
    dead = [rank for rank in missing if rank in found.dead and rank != led.rank]
    others = [rank for rank in missing if rank not in dead and rank != led.rank]
    # Nobody knows when they were lost: what others report may follow from it.
    text = ""

    def lose(rank: int, why: str, said: str = "") -> None:
        nonlocal text
        node_id = world[rank].node_id
        job.losses.append(NodeLoss(node_id, 0.0, why))
        text = text or said or f"node {node_id} was lost: {why}"

    if led.is_dead or (led.rank in missing and not others):
        lose(led.rank, LED_AND_DIED if led.is_dead else LED_AND_GONE)
    else:
        others = [rank for rank in missing if rank not in dead]
    for rank in dead:
        lose(rank, DIED_FOR_MEMORY if found.dead[rank].out_of_memory else DIED)
    if others:
        nodes = f"{max(len(others) - came, 1)} of {count(found.record.nodes, 'node')}"
        which = f" ({_known_names(found, others)})" if found.record.names.all else ""
        why = f"{nodes} did not come to the coordinator that took over{which}"
        lose(others[0], why, why)
    effects = _over(job, EndReason(EndKind.LOSS, text), at)
    if job.verdict is None and _counts_too_often(job, found):
        effects += perform(job, TooManyLosses(len(job.round.lossy_rounds)), at)
    return effects


def _counts_too_often(job: JobState, found: Recovery) -> bool:
    """Count the loss for the machine of the former leader's node; no other machine is known.

    If that node is not known, the loss counts for no machine. Returns whether the limit of losses
    is exceeded.
    """
    led = found.predecessor
    if led.rank < 0 or not led.node_id:
        return fitness.count_round(job.round)
    machine = found.record.leader_machine or led.node_id
    return fitness.count_loss(job.round, machine, led.node_id)


def _untold(job: JobState, found: Recovery, missing: list[int], at: float) -> list[JobEffect]:
    """End the newest round, of which nodes that wait here had not been told.

    The next world forms at once with as many nodes as this one had, less those that have left or
    died. Which of the missing ones wait here is not known.
    """
    gone = [rank for rank in missing if is_set(found.record.stopped, rank)]
    if len(missing) - len(gone) > len(found.untold):
        effects = _lost(job, found, missing, at, came=len(found.untold))
    elif found.predecessor.is_dead:
        effects = _lost(job, found, gone, at)
    else:
        effects = _over(job, EndReason(EndKind.LOSS, UNTOLD), at)
    job.round.expected = found.record.nodes - len(gone)
    placed = sorted(
        (place.assignment.round, place.assignment.group_rank, ref, place.joined.candidate)
        for ref, place in found.untold.items()
        if place is not None
    )
    job.round.world = [world_entry(ref, candidate) for _, _, ref, candidate in placed]
    return effects


def _without_workers(job: JobState, found: Recovery, at: float) -> list[JobEffect]:
    """Return the effects for a world whose nodes are all back; empty: its round goes on.

    The round ends if a node has stopped its workers because its lease was over. That node counts as
    lost, though it is back: other nodes' failures may follow from that.
    """
    if not found.record.is_started:
        return []
    for node in found.returned.values():
        if node.lease_ended:
            job.losses.append(NodeLoss(node.ref.node_id, 0.0, CAME_BACK))
            text = f"node {node.ref} was lost: {CAME_BACK}"
            return _over(job, EndReason(EndKind.LOSS, text, node.ref.node_id), at)
    return []


def _taken_over(found: Recovery) -> str:
    """Return the sentence about the takeover for a person."""
    record, led, missing = found.record, found.predecessor, missing_ranks(found)
    dead = [rank for rank in found.dead if rank != led.rank]
    here = record.nodes - len(missing)
    missing = [rank for rank in missing if not is_set(record.stopped, rank)]
    nodes = count(record.nodes, "node")
    text = f"took over round {record.newest_round} with {here} of {nodes}"
    if found.untold:
        text = f"took over round {record.newest_round} of {nodes}, of which not all had heard"
        missing = []
    said: list[str] = []
    if led.is_dead:
        said.append(f"the leading node died ({_known_names(found, [led.rank])})")
    if dead:
        gone = _known_names(found, sorted(dead))
        said.append(f"{count(len(dead), 'other node' if led.is_dead else 'node')} died ({gone})")
    if missing:
        which = _known_names(found, missing)
        said.append(f"{count(len(missing), 'node')} did not come back ({which})")
    parts = [", ".join(said)] if said else []
    if found.may_be_outdated and not found.is_of_strangers:
        parts.append(ANOTHER_NUMBER)
    return f"{text}: {'; '.join(parts)}" if parts else text


def _known_names(found: Recovery, ranks: list[int]) -> str:
    """Return the ids of the absent nodes of these group ranks, for display.

    If one is not known, returns the ranks.
    """
    known = tuple(name for rank in ranks if (name := _known_name(found, rank)))
    if len(known) == len(ranks):
        return names(known)
    return f"group rank {names(tuple(map(str, ranks)))}"


def _known_name(found: Recovery, rank: int) -> str:
    """Return the id of an absent node; empty: not known."""
    led, recorded = found.predecessor, found.record.names.all
    if led.node_id and led.rank == rank:
        return led.node_id
    if rank in found.dead and found.dead[rank].node_id:
        return found.dead[rank].node_id
    return recorded[rank] if rank < len(recorded) else ""


def _rank_of(found: Recovery, node_id: str) -> int:
    """Return the group rank of the newest world's node with this id; -1: not known."""
    ranks = range(found.record.nodes)
    return next((rank for rank in ranks if _known_name(found, rank) == node_id), -1)


def _name_of(found: Recovery, rank: int) -> str:
    """Return the id of the node with this group rank, or a replacement for it."""
    return _known_name(found, rank) or f"(group rank {rank})"


def _taken_back(job: JobState, found: Recovery, rank: int) -> WorldEntry:
    """Return one node's entry of the world, and make it a member if it is back."""
    has_succeeded = is_set(found.record.succeeded, rank)
    node = found.returned.get(rank)
    node_id = _name_of(found, rank) if node is None else node.ref.node_id
    if has_succeeded:
        job.succeeded_at[node_id] = -inf
    if node is None and is_set(found.record.stopped, rank):
        job.stopped.add(node_id)
        return WorldEntry(node_id, node_id, 0, "")
    if node is None:
        return WorldEntry(node_id, "", 0, "")
    ref, candidate = node.ref, node.candidate
    member = RoundMember(ref, node.place.joined.seq, candidate, MemberState.RUNNING)
    member.succeeded = has_succeeded
    add(job.round, member)
    job.assigned[ref.node_id] = node.place.assignment
    job.world_workers = node.place.assignment.world_size
    return world_entry(ref, candidate)


def _over(job: JobState, reason: EndReason, at: float) -> list[JobEffect]:
    """End the newest round for this reason, and return the effects.

    If the record says that it was judged, and no backoff is due, the next round may form.
    """
    judged, backoff_s = job.judged_round, job.backoff_s
    effects = run_round(job, RoundOver(job.round.round, reason), at)
    if not backoff_s:
        effects += run_round(job, RoundReleased(judged), at)
    return effects
