"""Consent: how a leader holds its job while its register is away. Pure.

By the promises of those that may claim it (section L2 of the design).

While a world runs only its heirs may claim soon (`heirs.py`). Each heartbeat of an heir promises
that its node claims nothing for half a lease, and names the last acknowledgement that it got. Both
count from that acknowledgement: the leader half a lease from when it was about to send it, the heir
that and a margin from when it got it, which is later. So the leader is never sure of a promise
that has ended, however long anything was under way and whatever was lost, as long as the margin
covers the difference of the two clocks.

Acknowledgements come several times in half a lease, so that a leader that runs loses nothing by
promises that are no longer. One that does not run any more is replaced before the workers of the
others reach the end of their lease.

An heir whose claim may still succeed promises nothing, since that claim may be executed late. What
ends a promise early is the leader's own word that it goes: a vacant record.

Candidates promise the same, and from when they attach: the leader needs the promises of those that
the record lists, beside those of heirs.

A promise is bound to the connection on which it comes. It counts for the place that the leader
knows its sender to have (`speakers.py`), and only if it names an acknowledgement that this leader
has sent on that very connection. A new connection of an heir begins anew, and promises that are
read later on an older one do not count. Promises that were counted before stay, since the heir
keeps them whatever becomes of the connection. A candidate draws a new number for each connection.
An heir that has seen a later leader in the register promises nothing to the one before.

The leader needs the promises of all heirs of every record that its register may hold: of the last
one that was confirmed, and of those that were sent since. A record without heirs (no world runs, or
no other node is part of it) may be claimed by anybody: then promises are worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct, field

from rallypoint.core.model import Promise, Stamp, epoch_number
from rallypoint.core.takeover.clock_rates import own_lease_s, with_margin
from rallypoint.core.takeover.heirs import RANKS, heirs_of
from rallypoint.core.takeover.record import JobRecord, LeadRecord

UNANSWERED_MAX = 64
"""The most heartbeats of one heir that a leader remembers until the heir names the acknowledgement
of one."""

OFFERED_S = 3.0
"""The seconds for which an offer to lead stays in a node's heartbeats; it is renewed after each
look at the register."""
PROMISE_SHARE = 1 / 2
"""The share of the lease for which a promise not to claim the job lasts."""

Heir = tuple[Stamp, int, int]
"""The identity of an heir: a round, its group rank there, which only one agent has, and 0. Of a
candidate: `NO_ROUND`, 0 and its number."""
NO_ROUND = Stamp(0, 0)
OFFERS_MAX = 64
"""The most addresses at which a node offers to lead."""


def promised_s(lease_s: float) -> float:
    """Return how long a leader may count on a promise: half a lease, in seconds.

    It counts from the acknowledgement that the promise names.
    """
    return PROMISE_SHARE * lease_s


def fenced_at(seen_at: float, promised_until: float, lease_s: float) -> float:
    """Return when the lease of the former leader's own node is over: no worker lives there then.

    `seen_at`: when the caller first saw that leader's last record. `promised_until`: the end of the
    caller's own promise to it. The lease counts from that record, or from the acknowledgement from
    which the promise counts, whichever is later.
    """
    own_s = with_margin(own_lease_s(lease_s))
    return max(seen_at + own_s, promised_until + own_s - with_margin(promised_s(lease_s)))


class Speaker(Struct, frozen=True):
    """The sender of a heartbeat, as the leader knows it (`speakers.py`)."""

    connection: int
    """The number of the connection; later connections to this leader have larger numbers."""
    heir: Heir

    def promises(self, said: Promise) -> bool:
        """Return whether a promise names this sender's own place, or its own candidate number."""
        return (said.stamp, said.rank, said.candidate) == self.heir


class NextLeader(Struct, frozen=True):
    """The successor that a leader names."""

    epoch: int
    """The epoch of the leader that names the successor; 0: none has."""
    addresses: tuple[str, ...]


class Promises:
    """The promises not to claim the job that one process makes, a node or a candidate.

    A node makes them only while its place in the newest round is one of an heir.
    """

    def __init__(self, lease_s: float, candidate: int = 0) -> None:
        """`lease_s`: the job's lease in seconds. `candidate`: its number; 0: it is a node."""
        self.lease_s = lease_s
        self.until = -inf
        """The end of the last promise not to claim the job. Until then this process claims only if
        the leader is known to be gone, or has said that it goes."""
        self.next_leader = NextLeader(0, ())
        """The successor that the last leader named when it handed the job over; epoch 0: there was
        no handover."""
        self._offers: tuple[str, ...] = ()
        self._offered_at = -inf
        self._claims_after: tuple[int, int] | None = None
        """The epoch number and beat of the record over which this process has sent a claim that may
        still be stored; None: there is no such claim."""
        self._led_by = 0
        """The epoch number of the last record seen in the register that was not outdated; 0:
        none."""
        self._heir: Heir | None = (NO_ROUND, 0, candidate) if candidate else None
        self._answered = 0
        self.answered_at = -inf
        """When the leader last acknowledged a heartbeat."""

    def assigned(self, stamp: Stamp, rank: int) -> None:
        """Note the newest place of this node; with a group rank below `RANKS` it is an heir."""
        self._heir = (stamp, rank, 0) if rank < RANKS else None

    def has_number(self, candidate: int) -> None:
        """Note a new connection to the leader, on which the candidate has this number."""
        self._heir = (NO_ROUND, 0, candidate)

    @property
    def is_heir(self) -> bool:
        """Whether this process makes promises: it is a candidate, or a node in an heir's place."""
        return self._heir is not None

    def answered(self, number: int, now: float) -> None:
        """Note that the leader has acknowledged the heartbeat of this number."""
        self._answered, self.answered_at = number, now

    def claiming(self, found: LeadRecord | None) -> None:
        """Note that a claim over this record is about to be sent.

        Nothing is promised from now on, until `saw` is told of a later record.
        """
        self._claims_after = _order(found)

    def saw(self, record: LeadRecord | None, *, is_newest: bool = True) -> None:
        """Note that the register holds this record.

        A claim that follows an earlier record is stored by now, or never will be. Unless
        `is_newest`, this process knows a newer record, whose leader is the later one.
        """
        if is_newest:
            self._led_by, _ = _order(record)
        if self._claims_after is not None and _order(record) > self._claims_after:
            self._claims_after = None

    def offer(self, addresses: tuple[str, ...], now: float) -> None:
        """Offer in the next promises to lead at these addresses, because the leader can't write.

        Empty: no offer.
        """
        self._offers, self._offered_at = addresses[:OFFERS_MAX], now

    def handed_over(self, epoch: int, addresses: tuple[str, ...]) -> None:
        """Note that this epoch's leader has handed the job over to the node at these addresses."""
        self.next_leader = NextLeader(epoch, addresses)

    @property
    def freed_epoch(self) -> int:
        """The epoch of the leader that handed the job over to this node; 0: none has."""
        own = self.next_leader.addresses == self._offers
        return self.next_leader.epoch if own and self._offers else 0

    def next(self, now: float, epoch: int) -> Promise | None:
        """Return the promise for the next heartbeat to this epoch's leader, and be bound by it.

        None: this process is neither an heir nor a candidate, its claim may still be stored, or it
        has seen a later leader.
        """
        if self._heir is None or self._claims_after is not None:
            return None
        if epoch_number(epoch) < self._led_by:
            return None
        self.until = max(self.until, self.answered_at + with_margin(promised_s(self.lease_s)))
        offers = self._offers if now - self._offered_at <= OFFERED_S else ()
        return Promise(self._answered, *self._heir, offers=offers)


class _Promised(Struct):
    """The promises of one heir or candidate to claim nothing, as a leader counts them."""

    connection: int = 0
    """The newest connection on which it has promised to claim nothing, a number; 0: none."""
    since: float = -inf
    """When the newest acknowledgement that its promises name was about to be sent."""
    answers: dict[int, float] = field(default_factory=dict)
    """When later acknowledgements on that connection were about to be sent, by the numbers of the
    heartbeats that they answer."""

    def is_heard_on(self, speaker: Speaker) -> bool:
        """Return whether promises on this sender's connection count.

        A later connection of a node counts from now on instead of the one before; nothing was
        acknowledged on it yet. A candidate has one connection only.
        """
        if speaker.connection == self.connection:
            return True
        _, _, candidate = speaker.heir
        if self.connection and (candidate or speaker.connection < self.connection):
            return False
        self.connection, self.answers = speaker.connection, {}
        return True


class Consent:
    """The promises of heirs and candidates that one leader has received."""

    def __init__(self) -> None:
        self._promised: dict[Heir, _Promised] = {}

    def expect(self, heirs: Iterable[Heir]) -> None:
        """Set the heirs and candidates whose promises are counted, and forget all others."""
        self._promised = {heir: self._promised.get(heir, _Promised()) for heir in heirs}

    def heard(self, speaker: Speaker, number: int, answered: int, now: float) -> None:
        """Note a promise in the heartbeat `number`, just before that is answered.

        `answered`: the earlier heartbeat whose acknowledgement the promise names. A promise of
        another process than the expected ones is ignored.
        """
        promised = self._promised.get(speaker.heir)
        if promised is None or not promised.is_heard_on(speaker):
            return
        answers = promised.answers
        if answered in answers:
            promised.since = answers[answered]
            for each in [each for each in answers if each <= answered]:
                del answers[each]
        answers[number] = now
        if len(answers) > UNANSWERED_MAX:
            del answers[next(iter(answers))]

    def since(self, heirs: Iterable[Heir]) -> float:
        """Return since when the promises of all these heirs count.

        -inf: those of at least one do not count, or there are no heirs.
        """
        promised = (self._promised.get(heir) for heir in heirs)
        return min((-inf if each is None else each.since for each in promised), default=-inf)


def _order(record: LeadRecord | None) -> tuple[int, int]:
    return (0, 0) if record is None else (record.epoch.number, record.beat)


def heirs_in(record: JobRecord | None, candidates: Iterable[int] = ()) -> frozenset[Heir]:
    """Return the heirs and candidates that alone may claim the job soon; empty: any process may.

    `record` is the one in the register; `candidates` are the numbers that it lists.
    """
    ranks = heirs_of(record)
    if record is None or record.newest_round is None or not ranks:
        return frozenset()
    stamp = Stamp(record.incarnation, record.newest_round)
    listed = ((NO_ROUND, 0, number) for number in candidates)
    return frozenset([*((stamp, rank, 0) for rank in ranks), *listed])
