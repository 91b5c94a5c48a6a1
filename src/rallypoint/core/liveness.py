"""Lost nodes: leases, the graces of connections, many lost at once (behaviours F2, F3).

A member that sends nothing is lost after its lease and a little more. One whose connection the peer
ended is lost after the reconnect grace: as a rule its process is gone. One whose connection broke
in any other way has longer, the reset grace: whatever sends resets and drops connections on the way
lets the member live. One whose guard has reported its death is lost as soon as its connection is
gone, for what it has sent may still be on its way. Two cases call for patience. When many vanish at
once, the network or this process is the more likely culprit than all of them. And when this process
was itself not running, a missing heartbeat proves nothing. In both cases everybody gets the lease
once more.

Patience ends when another agent waits for the member's id or rank: a lease after that agent has
joined, unless this process did not run meanwhile.

Nobody is declared lost before the sockets have been polled once after the deadline: the
heartbeat that arrived meanwhile counts.

All times are seconds on one monotonic clock, given by the caller; those of the fence are
nanoseconds on a clock that also counts suspend. Touching a member is O(1).

An agent knows its own lease (`Lease`): one whose heartbeats have had no answer for so long ends its
workers. An agent that is stopped (SIGSTOP, a frozen container) can't keep that fence: its ranks are
given away while its workers run on. Its guard, another process, sees in memory that both share when
the lease ends, and kills the workers instead (`overdue`, `next_look_ns`; behaviour F2).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from msgspec import Struct

from rallypoint.core.settings import SharedSettings

LEASE_SLACK_S = 0.5
"""The slack in seconds before a silent member is lost: its own lease has ended before."""
RESET_SHARE = 1 / 3
"""A share of the lease: the default of the reset grace. Time for some tries to reconnect."""
MASS_MIN = 2
MASS_SHARE = 0.05
DIED = "its agent died, and its workers with it"
OUT_OF_MEMORY = "its container was probably killed for memory"
DIED_FOR_MEMORY = f"{DIED}: {OUT_OF_MEMORY}"
DEATHS = (DIED, DIED_FOR_MEMORY)
"""The reasons of losses that a node's guard has reported."""
LEASE_OVER = "the lease expired without an answer from the coordinator"
"""The reason when a node has stopped its workers by itself; a coordinator that takes over
recognises it."""
MISSING_SHARE = 2 / 3
"""A share of the lease: once one member is overdue, all that were silent this long count as
missing. Members that vanished together were last heard up to a heartbeat apart."""
DEAF_SHARE = 0.5
"""A share of the lease: how long a heartbeat may wait for its answer before its connection is
dropped."""


HEARTBEATS_PER_S = 3000
"""The rate of heartbeats of all nodes of a job together: one coordinator has one core for them."""
RETURNS_PER_S = 3000
"""The rate at which nodes attach again after a takeover, per second."""
BEAT_SHARE = 1 / 5
"""A share of the lease: the longest time between two heartbeats that a node is told."""
FEW = 1000
"""The most nodes of a job whose pace is that of its settings."""


class Pace(NamedTuple):
    """The rate at which nodes may send to their coordinator, depending on their number."""

    beat_s: float
    """The seconds between two heartbeats of a node."""
    spread_s: float
    """The longest random wait of a node that finds its connection closed, in seconds. It is short
    enough that the node is back before it counts as lost."""


def pace_of(settings: SharedSettings, nodes: int) -> Pace:
    """Return the pace for this number of nodes; a small job has the pace of its settings."""
    longest_s = max(settings.heartbeat_s, BEAT_SHARE * settings.lease_s)
    beat_s = min(max(settings.heartbeat_s, nodes / HEARTBEATS_PER_S), longest_s)
    return Pace(beat_s, min(nodes / RETURNS_PER_S, settings.reset_grace_s / 2))


def is_outgrown(nodes: int, told_of: int) -> bool:
    """Return whether this number of nodes needs another pace than the number announced before."""
    return nodes > max(FEW, 2 * told_of)


def is_mass(number: int, nodes: int) -> bool:
    """Return whether so many simultaneous losses must have a cause outside of the nodes."""
    return number > max(MASS_MIN, int(nodes * MASS_SHARE))


class Lost(Struct, frozen=True):
    """A member has to be declared lost."""

    member: str
    why: str
    last_heard_at: float


class Patience(Struct, frozen=True):
    """All members get one more lease, for a reason to show."""

    why: str


class Liveness:
    """The last sign of life of every member."""

    def __init__(
        self, lease_s: float, reconnect_grace_s: float, reset_grace_s: float | None = None
    ) -> None:
        """Make the table; without `reset_grace_s` the reconnect grace counts for resets too."""
        self._lease_s = lease_s
        self._grace_s = reconnect_grace_s
        self._reset_grace_s = reconnect_grace_s if reset_grace_s is None else reset_grace_s
        self._heard: OrderedDict[str, float] = OrderedDict()
        self._ended: OrderedDict[str, float] = OrderedDict()
        self._reset: OrderedDict[str, float] = OrderedDict()
        self._dead: set[str] = set()
        self._gone: dict[str, None] = {}
        """The dead members without a connection, in order."""
        self._overdue: set[str] = set()
        self._wanted: OrderedDict[str, float] = OrderedDict()
        """The silent members whose id or rank another agent waits for, with the start of the
        wait."""
        self._short: set[str] = set()
        """The members whose container was nearly out of memory at their last message."""
        self._patient_until = 0.0
        self._mass_seen = False

    def __len__(self) -> int:
        return len(self._heard)

    def heard(self, member: str, now: float) -> None:
        """Note a sign of life: also the first one, and one on a new connection."""
        self._heard[member] = now
        self._heard.move_to_end(member)
        if member in self._dead:
            return  # It has said so before it died.
        self._ended.pop(member, None)
        self._reset.pop(member, None)
        self._overdue.discard(member)
        self._wanted.pop(member, None)

    def wanted(self, member: str, now: float) -> None:
        """Note that another agent waits for this member's id or rank."""
        if member in self._heard:
            self._wanted.setdefault(member, now)

    def vanished(self, member: str, now: float, *, reset: bool) -> None:
        """Note that a member's connection ended although it had not left.

        `reset`: the peer did not end it.
        """
        if member in self._dead:
            self._gone[member] = None
        elif member in self._heard and not self._has_vanished(member):
            (self._reset if reset else self._ended)[member] = now

    def has_memory(self, member: str, yes: bool) -> None:
        """Note whether a member's container has memory left."""
        (self._short.discard if yes else self._short.add)(member)

    def died(self, member: str, now: float, *, out_of_memory: bool = False) -> None:
        """Note that a member is dead; messages may still arrive for the reconnect grace at most."""
        if member in self._heard:
            self._dead.add(member)
            self.has_memory(member, not (out_of_memory or member in self._short))
            if self._has_vanished(member):
                self._gone[member] = None
            else:
                self._ended[member] = now

    def job_ended(self) -> None:
        """Note that no node waits for a place any more; one that returns gets the verdict."""
        self._grace_s = self._reset_grace_s = self._lease_s

    def forget(self, member: str) -> None:
        """Forget a member that has left."""
        self._dead.discard(member)
        self._short.discard(member)
        self._gone.pop(member, None)
        self._heard.pop(member, None)
        self._ended.pop(member, None)
        self._reset.pop(member, None)
        self._overdue.discard(member)
        self._wanted.pop(member, None)

    def last_heard_at(self, member: str, now: float) -> float:
        """Return the time of a member's last sign of life; `now` for a stranger."""
        return self._heard.get(member, now)

    def is_dead(self, member: str) -> bool:
        """Return whether the guard of this member has reported its death."""
        return member in self._dead

    def is_silent(self, member: str, since: float) -> bool:
        """Return whether a member was silent since then, and no guard has reported its death."""
        return member not in self._dead and self._heard.get(member, -inf) < since

    def is_disconnected(self, member: str) -> bool:
        """Return whether a member has no connection, and no guard has reported its death."""
        return member not in self._dead and self._has_vanished(member)

    def lagged(self, now: float, lag_s: float) -> Patience | None:
        """Return the caller did not run for `lag_s`: a missing heartbeat proves nothing."""
        if lag_s < min(self._lease_s / 2, self._grace_s):
            return None
        self._patient_until = now + self._lease_s
        self._wanted = OrderedDict.fromkeys(self._wanted, now)
        return Patience(f"the coordinator itself did not run for {lag_s:.1f} s")

    def check(self, now: float) -> tuple[list[Lost], Patience | None]:
        """Return the members that are lost now. Call again at `next_check`."""
        gone = [Lost(member, self._why(member), self._heard[member]) for member in self._gone]
        for item in gone:
            self.forget(item.member)
        lost, patience = self._missing(now)
        return gone + lost, patience

    def _missing(self, now: float) -> tuple[list[Lost], Patience | None]:
        due = self._due(now)
        if not due:
            self._mass_seen = self._mass_seen and bool(self._ended or self._reset)
            return [], None
        awaited = [member for member in due if self._is_wanted_too_long(member, now)]
        if now < self._patient_until:
            return self._polled(awaited), None
        missing = len({*due, *self._ended, *self._reset, *self._unheard(now)})
        if is_mass(missing, len(self._heard)) and not self._mass_seen:
            self._mass_seen = True
            self._patient_until = now + self._lease_s
            why = f"{missing} of {len(self._heard)} nodes stopped responding at once"
            return self._polled(awaited), Patience(why)
        return self._polled(due), None

    def _polled(self, due: list[str]) -> list[Lost]:
        """Return as lost the members that were due at two checks in a row without a message."""
        polled_since = [member for member in due if member in self._overdue]
        self._overdue.update(due)
        lost = [Lost(m, self._why(m), self._heard[m]) for m in polled_since]
        for member in polled_since:
            self.forget(member)
        return lost

    def _is_wanted_too_long(self, member: str, now: float) -> bool:
        since = self._wanted.get(member)
        return since is not None and since + self._lease_s + LEASE_SLACK_S <= now

    def next_check(self, now: float) -> float | None:
        """Return when to call `check` next, in seconds from `now`; None: there are no members."""
        if not self._heard:
            return None
        if self._gone:
            return 0.0
        deadline = next(iter(self._heard.values())) + self._lease_s + LEASE_SLACK_S
        for vanished, grace_s in self._vanished():
            for at in islice(vanished.values(), 1):
                deadline = min(deadline, at + grace_s)
        deadline = max(deadline, self._patient_until)
        for since in islice(self._wanted.values(), 1):
            deadline = min(deadline, since + self._lease_s + LEASE_SLACK_S)
        return max(0.0, deadline - now)

    def _due(self, now: float) -> list[str]:
        due: list[str] = []
        for member, heard_at in self._heard.items():
            if now < heard_at + self._lease_s + LEASE_SLACK_S:
                break
            due.append(member)
        for vanished, grace_s in self._vanished():
            for member, at in vanished.items():
                if now < at + grace_s:
                    break
                if member not in due:
                    due.append(member)
        return due

    def _vanished(self) -> tuple[tuple[OrderedDict[str, float], float], ...]:
        """Return the members without a connection, with its end, and the grace for each kind."""
        return (self._ended, self._grace_s), (self._reset, self._reset_grace_s)

    def _has_vanished(self, member: str) -> bool:
        return member in self._ended or member in self._reset

    def _unheard(self, now: float) -> list[str]:
        since = now - self._lease_s * MISSING_SHARE
        return list(takewhile(lambda member: self._heard[member] < since, self._heard))

    def _why(self, member: str) -> str:
        is_short = member in self._short
        if member in self._dead:
            return DIED_FOR_MEMORY if is_short else DIED
        if self._has_vanished(member):
            if is_short:
                return OUT_OF_MEMORY
            return "its connection broke and did not come back"
        return f"it sent no heartbeat for {self._lease_s:g} s"


class Lease:
    """An agent's own lease, and the heartbeats that extend it.

    It counts from when an answered heartbeat was *sent*. Without `has_fence`, no other node can
    take this node's place, and the lease never ends.
    """

    def __init__(self, lease_s: float, heartbeat_s: float, *, has_fence: bool) -> None:
        self._lease_s, self._heartbeat_s, self._has_fence = lease_s, heartbeat_s, has_fence
        self._held_until: float | None = None
        self._answered_at = -inf
        """When the last message that has an answer was sent on the present connection."""
        self.is_over = False
        """Whether the lease has ended and was not renewed since."""
        self._beats = 0
        self._beats_sent: dict[int, float] = {}
        """The heartbeats without an answer on the present connection: when each was sent."""
        self._attached_at = -inf
        """When the coordinator attached this agent on the present connection."""

    def disconnected(self) -> None:
        """No heartbeat of the last connection will be answered."""
        self._beats_sent.clear()
        self._answered_at = self._attached_at = -inf

    def attached(self, now: float) -> None:
        """Note that the coordinator has attached this agent, and answers heartbeats from now on."""
        self._attached_at = now

    def beat(self, now: float) -> int:
        """Return the number of a heartbeat that is sent now."""
        self._beats += 1
        self._beats_sent[self._beats] = now
        if len(self._beats_sent) > 2 * self._lease_s / self._heartbeat_s:
            del self._beats_sent[next(iter(self._beats_sent))]
        return self._beats

    def answered(self, number: int) -> float | None:
        """Return when this heartbeat was sent, for `renew`; None: not on this connection."""
        sent_at = self._beats_sent.pop(number, None)
        while (oldest := next(iter(self._beats_sent), number)) < number:
            del self._beats_sent[oldest]  # a coordinator that was unsure then has not answered it
        return sent_at

    def renew(self, now: float, sent_at: float, vouched_at: float = inf) -> float:
        """Renew the lease by the answer to a heartbeat, and return the lease's end.

        The lease counts from `sent_at`, but not from a time after `vouched_at`.
        """
        self._answered_at = sent_at
        return self.vouch(now, vouched_at)

    def vouch(self, now: float, vouched_at: float) -> float:
        """Raise the latest time from which the lease may count, and return the lease's end."""
        counted_at = min(self._answered_at, vouched_at)
        self._held_until = max(self._held_until or 0.0, counted_at + self._lease_s)
        self.is_over = self.is_over and now > self._held_until
        return self._held_until

    def has_ended(self, now: float) -> bool:
        """Return whether the lease has ended since the last call."""
        if self._held_until is None or self.is_over or not self._has_fence:
            return False
        self.is_over = now > self._held_until
        return self.is_over

    def ends_at(self, now: float) -> float:
        """Return the end of the lease if nothing renews it; a first one would begin now."""
        return self._held_until if self._held_until is not None else now + self._lease_s

    def silent_s(self, now: float) -> float:
        """Return the seconds since the last message was sent that has an answer."""
        return now - self.ends_at(now) + self._lease_s

    def unanswered_s(self, now: float) -> float:
        """Return how long the oldest heartbeat of this connection has waited for its answer.

        A coordinator that could not attach this agent yet could not answer it either.
        """
        oldest = next(iter(self._beats_sent.values()), now)
        return now - max(oldest, self._attached_at)

    def next_wake_s(self, now: float, beat_s: float = 0.0) -> float:
        """Return the seconds until a heartbeat is due, or until just after the end of the lease.

        `beat_s` is the shortest interval that the coordinator wants.
        """
        wake_s = max(self._heartbeat_s, beat_s)
        if self._held_until is None or self.is_over or not self._has_fence:
            return wake_s
        return min(wake_s, max(0.0, self._held_until - now) + 0.001)


AGENT_FIRST_NS = 100_000_000
"""The lead in nanoseconds that a running agent has over its guard to end its own workers. It is
less than the slack of the coordinator."""


def overdue(
    held_until_ns: int, now_ns: int, workers: Collection[int], killed: Collection[int]
) -> set[int]:
    """Return the workers that must be killed now. A node without a fence has `held_until_ns` 0."""
    if not held_until_ns or now_ns < held_until_ns + AGENT_FIRST_NS:
        return set()
    return set(workers).difference(killed)


def next_look_ns(
    held_until_ns: int, now_ns: int, workers: Collection[int], killed: Collection[int]
) -> int | None:
    """Return the nanoseconds until a worker may be overdue; None: never, unless workers change.

    The lease may be renewed meanwhile; the next call then returns a later time.
    """
    if not held_until_ns or not set(workers).difference(killed):
        return None
    return max(0, held_until_ns + AGENT_FIRST_NS - now_ns)
