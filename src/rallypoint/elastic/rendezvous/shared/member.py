"""One node's part in a job that a shared store hosts: what it must do, and what it may conclude.

There is no server, so the members do a server's duties among themselves: one of them must notice
that a last call has ended or that a node has stopped counting. The first member in rank order, the
*leader*, does all of that. The two after it, its *heirs*, watch all nodes too, and act when it
should have; all others watch these three alone, so that a heartbeat costs O(N) reads in all, and a
leader that dies together with others delays nothing. A duty done twice does no harm.

Liveness is judged by counters, on the observer's own clock (behaviour F5). Every node has a counter
that it raises now and then, and an observer notes *when it saw* a counter change: no clock is
compared with another. A counter that stood still for a whole lease, over several reads that were
apart from each other, belongs to a node that is gone. An observer that did not look for a while
starts anew, because its own pause (a stopped process, a store that could not be reached) says
nothing about others.

Pure: times are seconds on the caller's monotonic clock, what was read comes in, what is to be done
comes out.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.model import NodeRef
from rallypoint.core.round_state import MemberState, RoundPhase, RoundState, timers_wanted
from rallypoint.core.text import quoted_job
from rallypoint.elastic.rendezvous.shared.round import SharedState
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)

HEADS = 3
"""The number of members that watch all others: the first (the leader) and two more (its heirs)."""
BEATS_PER_LEASE = 3
"""The least number of heartbeats in a lease: a slower node would look dead."""
READS = 3
"""The number of further reads that must find a counter unchanged before its node counts as lost."""
SPACING_SHARE = 0.2
"""A share of the lease: reads that are closer to each other count as one."""
GAP_SHARE = 0.5
"""A share of the lease: an observer that has not looked for so long starts anew."""


class Suspect(Struct, frozen=True):
    """A node whose heartbeat counter has stopped, the counter's value, and for how long."""

    ref: NodeRef
    beat: int
    silent_s: float


class _Sighting(Struct):
    beat: int
    first_at: float
    counted_at: float
    reads: int = 0


class BeatWatch:
    """One node's observations of other nodes' heartbeat counters.

    Times are seconds on the observer's monotonic clock.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[NodeRef, _Sighting] = {}
        self._read_at: float | None = None

    def read(self, beats: Mapping[NodeRef, int], now: float) -> None:
        """Note the counters that were just read, of all nodes that this observer watches.

        After more than half a lease without a read all earlier observations are dropped.
        """
        if self._read_at is not None and now - self._read_at > self._lease_s * GAP_SHARE:
            self._seen.clear()
        self._read_at = now
        for ref in [ref for ref in self._seen if ref not in beats]:
            del self._seen[ref]
        for ref, beat in beats.items():
            sighting = self._seen.get(ref)
            if sighting is None or sighting.beat != beat:
                self._seen[ref] = _Sighting(beat, now, now)
            elif now - sighting.counted_at >= self._lease_s * SPACING_SHARE:
                sighting.counted_at = now
                sighting.reads += 1

    def suspects(self, patience_s: float = 0.0) -> list[Suspect]:
        """Return the nodes whose counters stood still for the lease and `patience_s` more.

        Several reads must have found each of them unchanged.
        """
        if self._read_at is None:
            return []
        return [
            Suspect(ref, sighting.beat, self._read_at - sighting.first_at)
            for ref, sighting in self._seen.items()
            if sighting.reads >= READS
            and self._read_at - sighting.first_at >= self._lease_s + patience_s
        ]


class InWorld(Struct, frozen=True):
    """The node takes part in the active round."""

    round: int
    rank: int
    world_size: int
    bootstrap: tuple[str, int]


class Pending(Struct, frozen=True):
    """The node is part of the job, but in no active round: it waits, or its round has ended."""

    state: MemberState
    joined: int
    min_nodes: int
    missing: tuple[str, ...]
    """The nodes of the last round that have not come back."""
    needed: bool
    """Whether a round may take this node; False: it stands by, as when the round is full."""

    def timeout_error(self, run_id: str, timeout_s: float) -> RendezvousTimeoutError:
        """Return the error for too few nodes within `timeout_s`.

        It names the nodes of the last round that have not come back.
        """
        missing = ", ".join(self.missing) or "none of the earlier nodes"
        return RendezvousTimeoutError(
            f"waited {timeout_s:g} s for {self.min_nodes} nodes of {quoted_job(run_id)}, "
            f"and {self.joined} came; missing: {missing}"
        )


class Closed(Struct, frozen=True):
    """The job is over; `was_needed` is False for a node that was on standby."""

    why: str
    was_needed: bool

    def error(self, run_id: str) -> RendezvousClosedError:
        """Return the error for a node that wants to join; to a standby node this is no failure."""
        text = f"{quoted_job(run_id)} is over: {self.why}"
        return RendezvousClosedError(text) if self.was_needed else RendezvousGracefulExitError(text)


class Outside(Struct, frozen=True):
    """The node is not (or no longer) part of the job."""


Outlook = InWorld | Pending | Closed | Outside


class JoinWait:
    """The time limit of one call that waits for a round.

    The time on standby does not count: no timeout applies to a node that a full round does not
    need.
    """

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s, self._began_at = timeout_s, now
        self._stood_by = False

    @property
    def ends_at(self) -> float:
        """The time at which the call gives up, unless this node is on standby by then."""
        return self._began_at + self._timeout_s

    def must_ask(self, outlook: Outlook, now: float) -> bool:
        """Return whether this node has to ask to join again.

        That is so if it was removed meanwhile, or its round formed and ended before it could look.
        The time limit begins anew if the node was on standby, or in such a round.
        """
        match outlook:
            case Outside() | Pending(state=MemberState.STOPPING):
                if self._stood_by or isinstance(outlook, Pending):
                    self._began_at, self._stood_by = now, False
                return True
            case Pending(needed=False):
                self._stood_by = True
            case Pending() if self._stood_by:  # promoted
                self._began_at, self._stood_by = now, False
        return False

    def left_s(self, now: float) -> float | None:
        """Return the seconds that are left; None if no timeout applies now."""
        return None if self._stood_by else self.ends_at - now


Duty = Suspect | TimerEnded


class SharedMember:
    """One node's knowledge of a job in a shared store, and the duties that follow from it."""

    def __init__(self, ref: NodeRef, interval_s: float, lease_s: float) -> None:
        self.ref = ref
        self._interval_s = min(interval_s, lease_s / BEATS_PER_LEASE)
        self._lease_s = lease_s
        self._watch = BeatWatch(lease_s)
        self._shared: SharedState | None = None
        self._due: dict[Timer, float] = {}
        self._order: tuple[NodeRef, ...] = ()

    @property
    def interval_s(self) -> float:
        """The interval of heartbeats and of reading the others' counters, in seconds."""
        return self._interval_s

    def observe(self, shared: SharedState, now: float) -> None:
        """Take over the state that was just read or written, and start its timers on this node."""
        self._shared = shared
        self._order = member_order(shared.round)
        wanted = timers_wanted(shared.round)
        self._due = {
            timer: self._due.get(timer, now + length_s)
            for timer, length_s in wanted.items()
            if timer.kind is not TimerKind.JOIN  # each node has its own join timeout
        }

    def watched(self) -> tuple[NodeRef, ...]:
        """Return the other nodes whose heartbeat counters this node reads.

        The first three members read those of all, any other member those of the first three. A
        node that is no member reads none.
        """
        place = self._place()
        if place is None:
            return ()
        heads = self._order if place < HEADS else self._order[:HEADS]
        return tuple(ref for ref in heads if ref != self.ref)

    def read_beats(self, beats: Mapping[NodeRef, int], now: float) -> None:
        """Note the counters of the watched nodes that were just read."""
        self._watch.read(beats, now)

    def duties(self, now: float) -> list[Duty]:
        """Return the duties of this node now: silent nodes to be removed, and timers that ended."""
        place = self._place()
        if place is None:
            return []
        ended = [
            TimerEnded(timer) for timer, at in self._due.items() if at + self._patience() <= now
        ]
        return [*self._watch.suspects(place * self._interval_s), *ended]

    def next_due(self) -> float | None:
        """Return the time at which this node must act on the next timer.

        None if there is none, or this node is no member.
        """
        if self._place() is None or not self._due:
            return None
        return min(self._due.values()) + self._patience()

    def outlook(self) -> Outlook:
        """Return this node's place in the job, by the state that was last observed."""
        shared = self._shared
        if shared is None:
            return Outside()
        member = shared.round.members.get(self.ref.node_id)
        is_member = member is not None and member.ref == self.ref
        if shared.round.phase is RoundPhase.CLOSED:
            stands_by = member is not None and is_member and member.state is MemberState.STANDBY
            return Closed(shared.why, was_needed=not stands_by)
        if member is None or not is_member:
            return Outside()
        if shared.round.phase is RoundPhase.ACTIVE and member.state is MemberState.RUNNING:
            rank = next(
                rank
                for rank, entry in enumerate(shared.round.world)
                if entry.incarnation == self.ref.incarnation
            )
            size = len(shared.round.world)
            return InWorld(shared.round.round, rank, size, shared.bootstrap)
        return _pending(shared.round, member.state)

    def _place(self) -> int | None:
        """Return this node's place in the order in which members act for the leader, from 0.

        None if it is not a member.
        """
        try:
            return self._order.index(self.ref)
        except ValueError:
            return None

    def _patience(self) -> float:
        """Return how long after the end of a timer this node acts on it, in seconds.

        The leader acts at once; other members leave time to the leader and to those before them.
        """
        place = self._place()
        return self._lease_s + place * self._interval_s if place else 0.0


def member_order(state: RoundState) -> tuple[NodeRef, ...]:
    """Return all members: those of the last round in rank order, then the others as they came."""
    members = state.members
    in_world = [
        members[entry.node_id].ref
        for entry in state.world
        if entry.node_id in members and members[entry.node_id].ref.incarnation == entry.incarnation
    ]
    known = set(in_world)
    return (*in_world, *(m.ref for m in members.values() if m.ref not in known))


def _pending(state: RoundState, member_state: MemberState) -> Pending:
    here = {m.ref.node_id for m in state.members.values() if m.state is MemberState.JOINED}
    return Pending(
        state=member_state,
        joined=len(here),
        min_nodes=state.settings.min_nodes,
        missing=tuple(entry.node_id for entry in state.world if entry.node_id not in here),
        needed=member_state is not MemberState.STANDBY,
    )
