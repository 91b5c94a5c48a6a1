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
"""How long after its lease a silent member is lost, in seconds. By then its agent has ended the
workers."""
RESET_SHARE = 1 / 3
"""A share of the lease: the default of `reset_grace_s`, which leaves time for some tries to
reconnect."""
MASS_MIN = 2
MASS_SHARE = 0.05
DIED = "its agent died, and its workers with it"
OUT_OF_MEMORY = "its container was probably killed for memory"
DIED_FOR_MEMORY = f"{DIED}: {OUT_OF_MEMORY}"
DEATHS = (DIED, DIED_FOR_MEMORY)
"""The reasons of losses that a node's guard has reported."""
LEASE_OVER = "the lease expired without an answer from the coordinator"
"""The reason that a node gives when its lease ended, and it has stopped its workers by itself. A
coordinator that takes over recognises it."""
MISSING_SHARE = 2 / 3
"""A share of the lease: once one member is overdue, all that were silent this long count as
missing. Members that vanished together were last heard up to a heartbeat apart."""
DEAF_SHARE = 0.5
"""A share of the lease: when a heartbeat has waited that long for its answer, its agent drops the
connection."""


HEARTBEATS_PER_S = 3000
"""The number of heartbeats per second that all nodes of a large job aim at together: one core of
the coordinator handles them."""
RETURNS_PER_S = 3000
"""The number of nodes per second that attach again after a takeover, which random waits aim at."""
BEAT_SHARE = 1 / 5
"""A share of the lease: the longest interval between heartbeats that a coordinator asks a node for,
unless the job's own interval is longer."""
FEW = 1000
"""The number of nodes up to which a growing job is told of no new pace."""


class Pace(NamedTuple):
    """How often nodes may send to their coordinator, depending on their number."""

    beat_s: float
    """The seconds between two heartbeats of a node."""
    spread_s: float
    """The longest random wait of a node that finds its connection closed, in seconds. It is short
    enough that the node is back before it counts as lost."""


def pace_of(settings: SharedSettings, nodes: int) -> Pace:
    """Return the pace for so many nodes; a small job keeps its own heartbeat interval."""
    longest_s = max(settings.heartbeat_s, BEAT_SHARE * settings.lease_s)
    beat_s = min(max(settings.heartbeat_s, nodes / HEARTBEATS_PER_S), longest_s)
    return Pace(beat_s, min(nodes / RETURNS_PER_S, settings.reset_grace_s / 2))


def is_outgrown(nodes: int, told_of: int) -> bool:
    """Return whether a job of `nodes` nodes needs another pace than was told for `told_of` nodes.

    It does if they are more than twice as many, and more than `FEW`.
    """
    return nodes > max(FEW, 2 * told_of)


def is_mass(number: int, nodes: int) -> bool:
    """Return whether so many nodes are lost at once that the cause must be outside of them."""
    return number > max(MASS_MIN, int(nodes * MASS_SHARE))


class Lost(Struct, frozen=True):
    """A member that has to be declared lost, with the reason, and when it was last heard."""

    member: str
    why: str
    last_heard_at: float


class Patience(Struct, frozen=True):
    """The decision that all members get one more lease; `why` is for display."""

    why: str


class Liveness:
    """The account of when each member (an agent of the job) was last heard, and who is lost."""

    def __init__(
        self, lease_s: float, reconnect_grace_s: float, reset_grace_s: float | None = None
    ) -> None:
        """Make an empty table. A `reset_grace_s` that is not given equals `reconnect_grace_s`."""
        self._lease_s = lease_s
        self._grace_s = reconnect_grace_s
        self._reset_grace_s = reconnect_grace_s if reset_grace_s is None else reset_grace_s
        self._heard: OrderedDict[str, float] = OrderedDict()
        self._ended: OrderedDict[str, float] = OrderedDict()
        self._reset: OrderedDict[str, float] = OrderedDict()
        self._dead: set[str] = set()
        self._gone: dict[str, None] = {}
        """The members without a connection whose guard has reported their death, the first one
        first."""
        self._overdue: set[str] = set()
        self._wanted: OrderedDict[str, float] = OrderedDict()
        """The silent members whose id or rank another agent waits for, with the start of the
        wait."""
        self._short: set[str] = set()
        """The members whose container was nearly out of memory when they were last heard, or was
        out of it."""
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
        """Note that another agent waits for a known member's id or rank; else do nothing."""
        if member in self._heard:
            self._wanted.setdefault(member, now)

    def vanished(self, member: str, now: float, *, reset: bool) -> None:
        """Note that a member's connection ended although it had not left.

        `reset`: it broke, rather than that the peer closed it. A member that was reported dead is
        lost at the next check.
        """
        if member in self._dead:
            self._gone[member] = None
        elif member in self._heard and not self._has_vanished(member):
            (self._reset if reset else self._ended)[member] = now

    def has_memory(self, member: str, yes: bool) -> None:
        """Note whether a member's container has memory to spare, or (False) nearly none left."""
        (self._short.discard if yes else self._short.add)(member)

    def died(self, member: str, now: float, *, out_of_memory: bool = False) -> None:
        """Note that a member's guard has reported its death.

        It is lost as soon as its connection is gone, after the reconnect grace at the latest.
        """
        if member in self._heard:
            self._dead.add(member)
            self.has_memory(member, not (out_of_memory or member in self._short))
            if self._has_vanished(member):
                self._gone[member] = None
            else:
                self._ended[member] = now

    def job_ended(self) -> None:
        """Set the graces for closed and for broken connections to the lease: the job has ended.

        No node waits for a place any more, and one that returns gets the verdict.
        """
        self._grace_s = self._reset_grace_s = self._lease_s

    def forget(self, member: str) -> None:
        """Forget all about a member that has left or was lost."""
        self._dead.discard(member)
        self._short.discard(member)
        self._gone.pop(member, None)
        self._heard.pop(member, None)
        self._ended.pop(member, None)
        self._reset.pop(member, None)
        self._overdue.discard(member)
        self._wanted.pop(member, None)

    def last_heard_at(self, member: str, now: float) -> float:
        """Return the time of a member's last sign of life; `now` for one that is unknown."""
        return self._heard.get(member, now)

    def is_dead(self, member: str) -> bool:
        """Return whether the guard of this member has reported its death."""
        return member in self._dead

    def is_silent(self, member: str, since: float) -> bool:
        """Return whether nothing was heard of a member after `since`.

        False if its guard has reported its death.
        """
        return member not in self._dead and self._heard.get(member, -inf) < since

    def is_disconnected(self, member: str) -> bool:
        """Return whether a member has no connection, and no guard has reported its death."""
        return member not in self._dead and self._has_vanished(member)

    def lagged(self, now: float, lag_s: float) -> Patience | None:
        """Give all members one more lease, because the caller did not run for `lag_s` seconds.

        Returns None, and gives nothing, if that was too short to make heartbeats late.
        """
        if lag_s < min(self._lease_s / 2, self._grace_s):
            return None
        self._patient_until = now + self._lease_s
        self._wanted = OrderedDict.fromkeys(self._wanted, now)
        return Patience(f"the coordinator itself did not run for {lag_s:.1f} s")

    def check(self, now: float) -> tuple[list[Lost], Patience | None]:
        """Return the members that are lost now, and `Patience` if all get one more lease.

        The lost ones are forgotten. Call again after `next_check` seconds.
        """
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
        """Return as lost, and forget, the members of `due` that an earlier check found due, too.

        One that was heard since is not lost.
        """
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
        """Return the seconds from `now` until the next `check`; None: there are no members."""
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
        """Return two tables of members without a connection, each with the grace in seconds.

        The first has those whose connection the peer has closed, the second those whose connection
        broke. The values are the times of that.
        """
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

    It counts from when an answered heartbeat was *sent*. `has_fence` is false where no other node
    can take this node's place: then the lease never ends.
    """

    def __init__(self, lease_s: float, heartbeat_s: float, *, has_fence: bool) -> None:
        self._lease_s, self._heartbeat_s, self._has_fence = lease_s, heartbeat_s, has_fence
        self._held_until: float | None = None
        self._answered_at = -inf
        """When the newest message with an answer was sent, on the present connection."""
        self.is_over = False
        """Whether the lease has ended and was not renewed since."""
        self._beats = 0
        self._beats_sent: dict[int, float] = {}
        """The heartbeats without an answer on the present connection: when each was sent."""
        self._attached_at = -inf
        """When the coordinator attached this agent on the present connection."""

    def disconnected(self) -> None:
        """Forget the heartbeats of a connection that has ended: none of them will be answered."""
        self._beats_sent.clear()
        self._answered_at = self._attached_at = -inf

    def attached(self, now: float) -> None:
        """Note that the coordinator has attached this agent, and answers heartbeats from now on."""
        self._attached_at = now

    def beat(self, now: float) -> int:
        """Note that a heartbeat is sent now, and return its number."""
        self._beats += 1
        self._beats_sent[self._beats] = now
        if len(self._beats_sent) > 2 * self._lease_s / self._heartbeat_s:
            del self._beats_sent[next(iter(self._beats_sent))]
        return self._beats

    def answered(self, number: int) -> float | None:
        """Note the answer to this heartbeat, and return when it was sent, for `renew`.

        None: no heartbeat with this number waits for an answer on this connection.
        """
        sent_at = self._beats_sent.pop(number, None)
        while (oldest := next(iter(self._beats_sent), number)) < number:
            del self._beats_sent[oldest]  # a coordinator that was unsure then has not answered it
        return sent_at

    def renew(self, now: float, sent_at: float, vouched_at: float = inf) -> float:
        """Renew the lease by the answer to a message sent at `sent_at`, and return the lease's end.

        The lease counts from `sent_at`, but not from a time after `vouched_at`. It never gets
        shorter.
        """
        self._answered_at = sent_at
        return self.vouch(now, vouched_at)

    def vouch(self, now: float, vouched_at: float) -> float:
        """Count the lease from the last answered message or `vouched_at`; return its end.

        The earlier time counts, but the lease never gets shorter. For a node that leads the job
        itself, whose `vouched_at` advances without heartbeats.
        """
        counted_at = min(self._answered_at, vouched_at)
        self._held_until = max(self._held_until or 0.0, counted_at + self._lease_s)
        self.is_over = self.is_over and now > self._held_until
        return self._held_until

    def has_ended(self, now: float) -> bool:
        """Return whether the lease has just ended: True only once, unless it is renewed."""
        if self._held_until is None or self.is_over or not self._has_fence:
            return False
        self.is_over = now > self._held_until
        return self.is_over

    def ends_at(self, now: float) -> float:
        """Return the end of the lease if nothing renews it; a first one would begin now."""
        return self._held_until if self._held_until is not None else now + self._lease_s

    def silent_s(self, now: float) -> float:
        """Return the seconds since the time from which the lease counts; 0 before the first one."""
        return now - self.ends_at(now) + self._lease_s

    def unanswered_s(self, now: float) -> float:
        """Return the seconds for which the oldest heartbeat of this connection has had no answer.

        The wait begins when the coordinator has attached this agent: it answers none before. 0:
        none waits.
        """
        oldest = next(iter(self._beats_sent.values()), now)
        return now - max(oldest, self._attached_at)

    def next_wake_s(self, now: float, beat_s: float = 0.0) -> float:
        """Return the seconds until a heartbeat is due or, if sooner, the lease has just ended.

        `beat_s` is the shortest interval between heartbeats that the coordinator wants.
        """
        wake_s = max(self._heartbeat_s, beat_s)
        if self._held_until is None or self.is_over or not self._has_fence:
            return wake_s
        return min(wake_s, max(0.0, self._held_until - now) + 0.001)


AGENT_FIRST_NS = 100_000_000
"""How long after the lease the guard waits before it kills the workers, in nanoseconds. So an agent
that runs ends them first. It is less than `LEASE_SLACK_S`."""


def overdue(
    held_until_ns: int, now_ns: int, workers: Collection[int], killed: Collection[int]
) -> set[int]:
    """Return the workers that the guard must kill now: those not in `killed`, after the lease.

    `held_until_ns` is the end of the lease; 0: a node without a fence, whose lease never ends.
    """
    if not held_until_ns or now_ns < held_until_ns + AGENT_FIRST_NS:
        return set()
    return set(workers).difference(killed)


def next_look_ns(
    held_until_ns: int, now_ns: int, workers: Collection[int], killed: Collection[int]
) -> int | None:
    """Return the nanoseconds until the guard may have to kill workers, by `overdue`.

    None: there is no lease that ends, or no worker that is left. The lease may be renewed
    meanwhile; the next call then returns a later time.
    """
    if not held_until_ns or not set(workers).difference(killed):
        return None
    return max(0, held_until_ns + AGENT_FIRST_NS - now_ns)
