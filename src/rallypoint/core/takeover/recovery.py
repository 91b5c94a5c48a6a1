"""The state of a takeover (`handover.py`). Pure.

The part of the world that a new coordinator knows so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core import messages as m
from rallypoint.core.claims import join_refused
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job_state import JobEvent, PersonWants, PlacesDead, SessionLost
from rallypoint.core.liveness import DEATHS, DIED_FOR_MEMORY, LEASE_OVER
from rallypoint.core.model import Candidate, DeadPlace, NodeRef, Stamp
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.memory import is_of_life
from rallypoint.core.takeover.record import JobRecord, is_set, with_bit

NOT_STARTED_S = 3.0
"""The seconds that a takeover waits for agents whose workers were not started yet, so that each can
try a few times to reconnect."""

_WAITING = m.Doing.IDLE, m.Doing.JOINED
_WITHOUT_WORKERS = *_WAITING, m.Doing.SUCCEEDED, m.Doing.SUCCEEDED_WHEN_ASKED

NAMED_MAX = 4
"""The most group ranks of missing nodes that a message names."""


class Returned(Struct, frozen=True):
    """A node of the newest world that has come back."""

    ref: NodeRef
    place: m.Place
    lease_ended: bool
    """Whether the node has stopped its workers because its lease was over."""
    doing: m.Doing
    """The present activity of the node, by its own word: it waits, runs workers, stops them."""

    @property
    def candidate(self) -> Candidate:
        """The data with which the node joined that world, as a candidate for a place."""
        return self.place.joined.candidate

    @property
    def claims(self) -> list[object]:
        """The properties that only one node may have: group rank, id, and a fixed rank, if any."""
        fixed = self.candidate.node_rank
        found: list[object] = [self.place.assignment.group_rank, self.ref.node_id]
        return found if fixed < 0 else [*found, (fixed,)]

    @property
    def may_have_workers(self) -> bool:
        """Whether workers of this node may run: it has not said that it waits, or has succeeded."""
        return self.doing not in _WITHOUT_WORKERS


class Predecessor(Struct, frozen=True):
    """The node in whose agent the former leader lived, as a new leader knows it.

    It differs from other nodes: only its own agent could renew its lease, and only while it led.
    """

    rank: int = -1
    """The node's group rank in the newest world, as in the record before this leader's claim; -1:
    it took no part, or is not known."""
    is_dead: bool = False
    """Whether the record, or a report of the death, shows that no worker of that node lives."""
    fenced_in_s: float = inf
    """The seconds after which the node has stopped its workers by itself; infinite: not known."""
    node_id: str = ""

    @property
    def is_fenced(self) -> bool:
        """Whether the node runs no worker, though its death was not reported."""
        return self.rank >= 0 and not self.is_dead and self.fenced_in_s <= 0


UNKNOWN = Predecessor()


class Recovery(Struct):
    """A takeover under way: the job's record, and the known part of the newest world."""

    record: JobRecord
    awaited: int
    """The number of nodes of the newest world that are absent, and have not succeeded, left or
    died."""
    predecessor: Predecessor = UNKNOWN
    """The node of the former leader, while it is missing."""
    put_back_s: float = 0.0
    """The additional wait for nodes, in seconds, because an older record of the job was restored in
    its register; 0: none was."""
    epoch: int = 0
    """The epoch of this coordinator, as agents know it."""
    reports: list[tuple[str, m.Numbered, float]] = field(default_factory=list)
    """The kept reports of agents, in the order in which they came: the agent's incarnation, the
    report, and its time."""
    wishes: list[PersonWants] = field(default_factory=list)
    """The requests of people, to be carried out when the world is known."""
    returned: dict[int, Returned] = field(default_factory=dict)
    """The nodes of the newest world that have come back, by group rank."""
    untold: dict[NodeRef, m.Place | None] = field(default_factory=dict)
    """The nodes that wait for a world because they were not told of the record's, which has not
    begun, each with its last place."""
    dead: dict[int, DeadPlace] = field(default_factory=dict)
    """The places in the newest world of nodes that are known to be dead, by group rank."""
    is_contested: bool = False
    """Whether two agents have claimed the same place, so that the world is uncertain."""
    _held: dict[object, NodeRef] = field(default_factory=dict)
    """The node that has each unique property (`Returned.claims`)."""
    _ranks: dict[NodeRef, int] = field(default_factory=dict)
    _here: int = 0
    """One bit for each rank that has returned; `awaits` is computed at each heartbeat."""
    _is_longer: bool = False
    """Whether the wait was made longer, because no node came for a moment: the record may be an old
    one, of a round that was started since then."""
    _left: dict[NodeRef, int] = field(default_factory=dict)
    """The group ranks of agents that had come back and are gone again."""

    @property
    def is_complete(self) -> bool:
        """Whether no node has to be waited for.

        A node that waits because it was not told of the world counts as one of it. The former
        leader's node may be absent once it has stopped its workers by itself.
        """
        return self.awaited - len(self.untold) <= self.predecessor.is_fenced

    @property
    def is_of_strangers(self) -> bool:
        """Whether no agent has come that took part in the newest world, or was to.

        The record may be an old one.
        """
        return not self.returned and not self.untold

    @property
    def may_be_outdated(self) -> bool:
        """Whether the record may be an old one, so that later rounds than its newest may have run.

        It may if nodes are missing, or none has come, and none that is here may have workers. Then
        the job gets another number with its next round.
        """
        if any(node.may_have_workers for node in self.returned.values()):
            return False
        return self.is_of_strangers or bool(missing_ranks(self))

    @property
    def lasts_s(self) -> float:
        """The longest time that the wait for the nodes may take, in seconds."""
        record = self.record
        is_short = not (record.is_started or self.put_back_s or self._is_longer)
        lease_s = with_margin(record.settings.lease_s)
        return self.put_back_s + (NOT_STARTED_S if is_short else lease_s)

    @property
    def awaits(self) -> str:
        """The nodes that are still missing, how long they are waited for and why; empty: none.

        The text follows the words "waiting for".
        """
        if self.is_complete:
            return ""
        record = self.record
        gone = int.from_bytes(record.succeeded, "little") | int.from_bytes(record.stopped, "little")
        missing = ((1 << record.nodes) - 1) & ~self._here & ~gone
        ranks: list[str] = []
        while missing and len(ranks) < NAMED_MAX:
            ranks.append(str((missing & -missing).bit_length() - 1))
            missing &= missing - 1
        more = f" and {missing.bit_count()} more" if missing else ""
        who = f"group rank {', '.join(ranks)}{more} of round {record.newest_round}"
        if self.put_back_s:
            why = "since an older record of the job was put back into its register"
            return f"{who}, {why}, {self.lasts_s:.0f} s at most"
        if not record.is_started and not self._is_longer:
            return f"{who} to come to the new leader, for {self.lasts_s:.0f} s at most"
        return f"{who}, where workers may run until its lease is over, {self.lasts_s:.0f} s at most"

    def timers_wanted(self) -> dict[Timer, float]:
        """Return the job's timers during the takeover, in seconds; `hears` gets their ends."""
        left_s = self.lasts_s - (NOT_STARTED_S if self._is_longer else 0.0)
        wait = Timer(TimerKind.RECOVERY, int(self._is_longer))
        wanted = {wait: 0.0 if self.is_complete else left_s}
        led = self.predecessor
        if led.rank >= 0 and not led.is_dead and 0 < led.fenced_in_s < self.lasts_s:
            wanted[Timer(TimerKind.FENCE)] = led.fenced_in_s
        return wanted

    def hears(self, event: JobEvent) -> bool:
        """Note an event of the job. Returns whether the wait for nodes has ended by it."""
        if isinstance(event, PersonWants):
            self.wishes.append(event)
        if isinstance(event, TimerEnded):
            return self._is_over(event.timer)
        if isinstance(event, PlacesDead):
            self._told_dead(event.places)
        elif isinstance(event, SessionLost) and event.why in DEATHS:
            self._died(event)
        return isinstance(event, PlacesDead | SessionLost) and self.is_complete

    def _is_over(self, timer: Timer) -> bool:
        """Return whether the end of this timer ends the wait for nodes."""
        if timer.kind is TimerKind.FENCE:
            self.predecessor = replace(self.predecessor, fenced_in_s=0.0)
        is_short = timer == Timer(TimerKind.RECOVERY) and self.lasts_s == NOT_STARTED_S
        if is_short and self.is_of_strangers and not self.is_complete:
            self._is_longer = True
            return False
        return timer.kind is TimerKind.RECOVERY or self.is_complete

    def takes(self, ref: NodeRef, hello: m.Attach) -> bool:
        """Return whether an attaching agent's session goes on, and note its node as returned.

        It goes on if the node took part in the newest world, and no other one has claimed its
        place. Any other agent begins anew.
        """
        self._told_dead(hello.dead)
        record, place = self.record, hello.place
        stamp, newest = hello.claim.stamp, record.newest_round
        if place is None or newest is None or stamp != Stamp(record.incarnation, newest):
            is_waiting = hello.claim.doing is m.Doing.JOINED and not record.is_started
            if is_waiting and self._has_followed(hello):
                self.untold[ref] = place
            return False
        rank = place.assignment.group_rank
        if place.assignment.round != newest or rank >= record.nodes:
            return False
        if join_refused(record.settings, place.joined.candidate):
            return False
        node = Returned(ref, place, hello.claim.why == LEASE_OVER, hello.claim.doing)
        if any(claim in self._held for claim in node.claims):
            self.is_contested = True
            return False
        self.returned[rank], self._ranks[ref] = node, rank
        self._here |= 1 << rank
        self._held.update(dict.fromkeys(node.claims, ref))
        self.dead.pop(rank, None)
        if rank == self.predecessor.rank:  # It is a node like any other from now on.
            self.predecessor = UNKNOWN
        if is_set(record.stopped, rank):  # Nobody who comes is dead.
            self.record = replace(record, stopped=with_bit(record.stopped, rank, is_set=False))
        else:
            self.awaited -= may_run(record, rank)
        return True

    def _has_followed(self, hello: m.Attach) -> bool:
        """Return whether the agent had another leader before, in this life of the job."""
        told = hello.told
        if told is None or told.epoch == self.epoch:
            return False
        return is_of_life(self.record, told)

    def forget(self, incarnation: str) -> None:
        """Drop the kept reports of an agent that begins anew; it reports its state again."""
        self.reports = [each for each in self.reports if each[0] != incarnation]

    def _told_dead(self, places: Iterable[DeadPlace]) -> None:
        """Note the places of dead nodes, except of nodes whose agents are here."""
        record = self.record
        for place in places:
            rank = place.group_rank
            is_newest = place.stamp == Stamp(record.incarnation, record.newest_round or 0)
            if is_newest and rank < record.nodes and rank not in self.returned:
                self._is_dead(place)

    def _is_dead(self, place: DeadPlace) -> None:
        rank = place.group_rank
        if not may_run(self.record, rank):
            return
        self.record = replace(self.record, stopped=with_bit(self.record.stopped, rank, is_set=True))
        self.awaited -= 1
        if rank == self.predecessor.rank:
            self.predecessor = replace(self.predecessor, is_dead=True)
        self.dead[rank] = place

    def _died(self, lost: SessionLost) -> None:
        """Note a guard's proof that an agent that was here died, and its workers with it."""
        rank, record = self._left.pop(lost.ref, None), self.record
        if rank is not None and rank not in self.returned:
            stamp = Stamp(record.incarnation, record.newest_round or 0)
            is_short = lost.why == DIED_FOR_MEMORY
            self._is_dead(DeadPlace(stamp, rank, lost.ref.node_id, is_short))

    def lost(self, ref: NodeRef) -> None:
        """Note that an agent is gone, or comes again."""
        self.untold.pop(ref, None)
        rank = self._ranks.pop(ref, None)
        if rank is not None:
            self._left[ref] = rank
            self._here &= ~(1 << rank)
            for claim in self.returned.pop(rank).claims:
                del self._held[claim]
            self.awaited += may_run(self.record, rank)


def may_run(record: JobRecord, rank: int) -> bool:
    """Return whether workers of the node of this group rank may live.

    They do not if it has succeeded, has left or is dead.
    """
    return not is_set(record.succeeded, rank) and not is_set(record.stopped, rank)


def missing_ranks(found: Recovery) -> list[int]:
    """Return the group ranks of the newest world's nodes that are absent and have not succeeded."""
    record = found.record
    gone = (rank for rank in range(record.nodes) if rank not in found.returned)
    return [rank for rank in gone if not is_set(record.succeeded, rank)]
