"""How a coordinator that takes over a job learns what runs: from the record of the one before it,
and from the agents, each of which says what it does (section L5 of the design). Pure.

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

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core import quarantine
from rallypoint.core.cause import Report
from rallypoint.core.claims import join_refused
from rallypoint.core.events import RoundOver, RoundReleased, Timer, TimerKind
from rallypoint.core.job_rounds import perform, run_round
from rallypoint.core.job_state import JobEffect, JobState
from rallypoint.core.liveness import DIED, LEASE_OVER
from rallypoint.core.model import EndKind, EndReason, NodeLoss, NodeRef, Stamp, WorldEntry
from rallypoint.core.round_state import Member, MemberState, Phase, add, is_active
from rallypoint.core.takeover.record import JobRecord, Mark, is_set, is_settled, mark_of, with_bit
from rallypoint.core.text import count, names

MARGIN_S = 0.5
SLEW = 1 / 12
"""So much faster or slower than true time a clock may run: chrony corrects one by no more unless it
is told to. Others correct by 0.05 %."""
NOT_STARTED_S = 3.0
"""So long agents are waited for whose workers can't run yet: a few tries to reconnect."""
LED_AND_DIED = f"{DIED}, while it led the job"
LED_AND_GONE = "it led the job, and did not come back"
CAME_BACK = "its lease was over, and it came back without its workers"


def with_margin(seconds: float) -> float:
    """So long another clock may take for it: the fastest, while the slowest shows `seconds`."""
    return seconds * (1 + SLEW) / (1 - SLEW) + MARGIN_S


def own_lease_s(lease_s: float) -> float:
    """The lease of a leader's own node. It is shorter than that of the others, so that who leads
    next has waited for its end after a lease and half a second, whatever the two clocks do."""
    return lease_s * (1 - SLEW) / (1 + SLEW)


class _Returned(Struct, frozen=True):
    """A node of the newest world, as it came back."""

    ref: NodeRef
    place: m.Place
    is_without_workers: bool
    """They were ended when its lease was over."""

    @property
    def claims(self) -> list[object]:
        """What no other node has: its group rank, its id, its fixed rank if there are such."""
        fixed = self.place.joined.candidate.node_rank
        found: list[object] = [self.place.assignment.group_rank, self.ref.node_id]
        return found if fixed < 0 else [*found, (fixed,)]


class Predecessor(Struct, frozen=True):
    """What a new leader knows of the node in whose agent the leader before it lived. That node is
    not like others: nobody but its own agent could renew its lease, and only while that led."""

    rank: int = -1
    """Its group rank in the newest world, as the record said before this leader claimed; -1: it
    took no part, or is not known."""
    is_dead: bool = False
    """The record said so: no worker of that node lives."""
    fenced_in_s: float = inf
    """After so long it has ended its workers by itself."""
    node_id: str = ""

    @property
    def is_fenced(self) -> bool:
        """It runs no worker, though nobody has said that it is dead."""
        return self.rank >= 0 and not self.is_dead and self.fenced_in_s <= 0


UNKNOWN = Predecessor()


class Recovery(Struct):
    """What is known of the newest world so far."""

    record: JobRecord
    awaited: int
    """How many nodes of the newest world are neither here, nor have succeeded, nor are dead."""
    predecessor: Predecessor = UNKNOWN
    """While it is missing."""
    reports: list[tuple[str, m.Numbered, float]] = field(default_factory=list)
    """Of the agents of these incarnations, in the order in which they came, each with when."""
    returned: dict[int, _Returned] = field(default_factory=dict)
    """By group rank."""
    is_contested: bool = False
    """Two agents have claimed the same: who took part is not known."""
    _held: dict[object, NodeRef] = field(default_factory=dict)
    """Who has what only one node has."""
    _ranks: dict[NodeRef, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Nobody is waited for."""
        return self.awaited <= self.predecessor.is_fenced

    @property
    def lasts_s(self) -> float:
        """How long it may take at most."""
        record = self.record
        return with_margin(record.settings.lease_s) if record.is_started else NOT_STARTED_S

    def timers_wanted(self) -> dict[Timer, float]:
        """The waits of the job meanwhile, in seconds; answered by `is_over`."""
        wanted = {Timer(TimerKind.RECOVERY): 0.0 if self.is_complete else self.lasts_s}
        led = self.predecessor
        if led.rank >= 0 and not led.is_dead and 0 < led.fenced_in_s < self.lasts_s:
            wanted[Timer(TimerKind.FENCE)] = led.fenced_in_s
        return wanted

    def is_over(self, timer: Timer) -> bool:
        """This wait has ended: whether nobody is waited for any longer."""
        if timer.kind is TimerKind.FENCE:
            self.predecessor = replace(self.predecessor, fenced_in_s=0.0)
        return timer.kind is TimerKind.RECOVERY or self.is_complete

    def takes(self, ref: NodeRef, hello: m.Attach) -> bool:
        """An agent attaches. Whether its session goes on: it took part in the newest world. Any
        other agent, which has nothing to lose, begins anew."""
        record, place = self.record, hello.place
        stamp, newest = hello.claim.stamp, record.newest_round
        if place is None or newest is None or stamp != Stamp(record.incarnation, newest):
            return False
        rank = place.assignment.group_rank
        if place.assignment.round != newest or rank >= record.nodes:
            return False
        if join_refused(record.settings, place.joined.candidate):
            return False
        node = _Returned(ref, place, hello.claim.why == LEASE_OVER)
        if any(claim in self._held for claim in node.claims):
            self.is_contested = True
            return False
        self.returned[rank], self._ranks[ref] = node, rank
        self._held.update(dict.fromkeys(node.claims, ref))
        if rank == self.predecessor.rank:  # It is a node like any other from now on.
            self.predecessor = UNKNOWN
        if is_set(record.stopped, rank):  # Nobody who comes is dead.
            self.record = replace(record, stopped=with_bit(record.stopped, rank, is_set=False))
        else:
            self.awaited -= _may_run(record, rank)
        return True

    def forget(self, incarnation: str) -> None:
        """This agent begins anew: it says again what holds, of all that it has said before."""
        self.reports = [each for each in self.reports if each[0] != incarnation]

    def lost(self, ref: NodeRef) -> None:
        """An agent is gone, or comes again."""
        rank = self._ranks.pop(ref, None)
        if rank is not None:
            for claim in self.returned.pop(rank).claims:
                del self._held[claim]
            self.awaited += _may_run(self.record, rank)


class Handover:
    """What lets another coordinator take over from this one, and this one from the last."""

    def __init__(self, record: JobRecord | None = None, predecessor: Predecessor = UNKNOWN) -> None:
        """`record`: the one that this coordinator has taken over, if any; `predecessor`: what is
        known of the one that it has taken it over from."""
        self.recovery: Recovery | None = None
        """What is known of the world so far, while that is not all."""
        if record is not None and record.verdict is None and record.newest_round is not None:
            self.recovery = _begun(record, predecessor)
        self._unsettled: dict[str, None] = {}
        """The incarnations of agents that have said what another coordinator would need."""
        self._mark: Mark = ()
        """Of the job, when it was last known who these are."""
        self._recovered: Recovery | None = None

    def keep(self, ref: NodeRef, waiting: list[m.Numbered], numbered: m.Numbered) -> None:
        """The agent has said this. `waiting`: what it has said that another coordinator would
        need."""
        waiting.append(numbered)
        self._unsettled[ref.incarnation] = None

    def settle(self, job: JobState, ref: NodeRef, waiting: list[m.Numbered]) -> None:
        """Drop of these what no other coordinator would need any more."""
        settled = 0
        while settled < len(waiting) and is_settled(job, ref.node_id, waiting[settled].report):
            settled += 1
        del waiting[:settled]
        if not waiting:
            self._unsettled.pop(ref.incarnation, None)

    def to_settle(self, job: JobState) -> list[str]:
        """The agents of which that may have changed."""
        if (mark := mark_of(job)) == self._mark:
            return []
        self._mark = mark
        return list(self._unsettled)

    def forget(self, ref: NodeRef, waiting: list[m.Numbered]) -> None:
        """This agent is gone."""
        waiting.clear()
        self._unsettled.pop(ref.incarnation, None)
        if self.recovery is not None:
            self.recovery.lost(ref)

    def follow(self, job: JobState, at: float) -> tuple[Recovery, list[JobEffect]]:
        """Nobody is waited for any longer: make the job, of which nobody is a member yet, what it
        was. Once."""
        assert self.recovery is not None
        found, self.recovery = self.recovery, None
        self._recovered = found
        return found, [kinds.TAKEN_OVER(_taken_over(found)), *_recover(job, found, at)]

    def takes(self, job: JobState, ref: NodeRef, hello: m.Attach) -> bool:
        """An agent attaches, whose session this coordinator does not know. Whether it goes on: the
        node takes part in what was taken over. One that had succeeded may come at any time."""
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
        return True


def _begun(record: JobRecord, predecessor: Predecessor) -> Recovery:
    """Nobody is here yet."""
    rank = predecessor.rank
    if not 0 <= rank < record.nodes or not _may_run(record, rank):
        predecessor = UNKNOWN
    elif predecessor.is_dead:  # Who leads after this one has to know that too.
        record = replace(record, stopped=with_bit(record.stopped, rank, is_set=True))
    awaited = sum(_may_run(record, rank) for rank in range(record.nodes))
    return Recovery(record, awaited, predecessor)


def _recover(job: JobState, found: Recovery, at: float) -> list[JobEffect]:
    record, state = found.record, job.round
    assert record.newest_round is not None
    state.round, state.phase = record.newest_round, Phase.ACTIVE
    for rank in range(record.nodes):
        state.world.append(_taken_back(job, found, rank))
    state.succeeded = record.successes
    state.finishing = state.succeeded > 0
    job.started = record.is_started
    job.withdrawn = job.notices
    if not record.is_active:
        reason = record.end_reason or EndReason(EndKind.LOSS, "the last coordinator ended it")
        here = {node.ref.node_id for node in found.returned.values()}
        blamed = record.blamed if reason.kind is EndKind.FAILURE else None
        if blamed is not None and blamed.node_id not in here:
            job.reports.append(Report(blamed.node_id, blamed.failure, 0.0))
        effects = _over(job, reason, at)
        if reason.kind is not EndKind.FAILURE:
            job.ended_at = -inf  # What has failed since may have failed because of that.
        return effects
    if found.is_contested:
        text = "two agents told the coordinator that took over that they were the same node"
        return _over(job, EndReason(EndKind.LOSS, text), at)
    if missing := _missing(found):
        return _lost(job, found, missing, at)
    return _without_workers(job, found, at)


def _lost(job: JobState, found: Recovery, missing: list[int], at: float) -> list[JobEffect]:
    """The nodes of these group ranks are: one more round has ended by the loss of nodes."""
    led, world = found.predecessor, job.round.world
    others = [rank for rank in missing if rank != led.rank]
    # Nobody knows when they were lost: what others report may follow from it.
    text = ""
    if led.is_dead or not others:
        why = LED_AND_DIED if led.is_dead else LED_AND_GONE
        job.losses.append(NodeLoss(world[led.rank].node_id, 0.0, why))
        text = f"node {world[led.rank].node_id} was lost: {why}"
    else:
        others = missing
    if others:
        nodes = f"{len(others)} of {count(found.record.nodes, 'node')}"
        why = f"{nodes} did not come to the coordinator that took over"
        job.losses.append(NodeLoss(world[others[0]].node_id, 0.0, why))
        text = text or why
    effects = _over(job, EndReason(EndKind.LOSS, text), at)
    for effect in quarantine.count_round(job.round) if job.verdict is None else []:
        effects += perform(job, effect, at)
    return effects


def _without_workers(job: JobState, found: Recovery, at: float) -> list[JobEffect]:
    """All nodes are here. If one has ended its workers by itself, since its lease was over, what
    others report may follow from that: it was lost, though it is back."""
    if not found.record.is_started:
        return []
    for node in found.returned.values():
        if node.is_without_workers:
            job.losses.append(NodeLoss(node.ref.node_id, 0.0, CAME_BACK))
            text = f"node {node.ref} was lost: {CAME_BACK}"
            return _over(job, EndReason(EndKind.LOSS, text, node.ref.node_id), at)
    return []


def _may_run(record: JobRecord, rank: int) -> bool:
    """Workers of this group rank may live."""
    return not is_set(record.succeeded, rank) and not is_set(record.stopped, rank)


def _missing(found: Recovery) -> list[int]:
    """The group ranks of those that are neither here nor have succeeded."""
    record = found.record
    gone = (rank for rank in range(record.nodes) if rank not in found.returned)
    return [rank for rank in gone if not is_set(record.succeeded, rank)]


def _taken_over(found: Recovery) -> str:
    """What a person reads."""
    record, led, missing = found.record, found.predecessor, _missing(found)
    here = record.nodes - len(missing)
    missing = [rank for rank in missing if not is_set(record.stopped, rank)]
    text = f"took over round {record.newest_round} with {here} of {count(record.nodes, 'node')}"
    said: list[str] = []
    if led.is_dead:
        name = led.node_id or f"group rank {led.rank}"
        said.append(f"the one that led has died ({name})")
    if missing:
        ranks = names(tuple(map(str, missing)))
        said.append(f"{count(len(missing), 'node')} did not come back (group rank {ranks})")
    return f"{text}: {', '.join(said)}" if said else text


def _name_of(found: Recovery, rank: int) -> str:
    """Of a node that is not here."""
    led = found.predecessor
    return led.node_id if led.node_id and led.rank == rank else f"(group rank {rank})"


def _taken_back(job: JobState, found: Recovery, rank: int) -> WorldEntry:
    """One node of the world, and a member if it is here."""
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
    ref, candidate = node.ref, node.place.joined.candidate
    member = Member(ref, node.place.joined.seq, candidate, MemberState.RUNNING)
    member.succeeded = has_succeeded
    add(job.round, member)
    job.assigned[ref.node_id] = node.place.assignment
    job.world_workers = node.place.assignment.world_size
    return WorldEntry(ref.node_id, ref.incarnation, candidate.workers, candidate.role)


def _over(job: JobState, reason: EndReason, at: float) -> list[JobEffect]:
    """The round has ended, and was judged or not."""
    judged, backoff_s = job.judged_round, job.backoff_s
    effects = run_round(job, RoundOver(job.round.round, reason), at)
    if not backoff_s:
        effects += run_round(job, RoundReleased(judged), at)
    return effects
