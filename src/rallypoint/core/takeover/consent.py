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
"""The most heartbeats of one heir that are remembered until it names one of them."""

OFFERED_S = 3.0
"""The lifetime of an offer in seconds; it is repeated after each look at the register."""
PROMISE_SHARE = 1 / 2
"""A share of the lease: how long a promise lasts."""

Heir = tuple[Stamp, int, int]
"""A round, and the heir's group rank in it, which only one agent has. For a candidate no round, and
its number."""
NO_ROUND = Stamp(0, 0)
OFFERS_MAX = 64
"""The most addresses at which a node offers to lead."""


def promised_s(lease_s: float) -> float:
    """Return how long a promise lasts, from the acknowledgement that it names."""
    return PROMISE_SHARE * lease_s


def fenced_at(seen_at: float, promised_until: float, lease_s: float) -> float:
    """Return when no worker of the leader's own node lives any more.

    On the clock of who has seen its last record then, and had promised until then: the lease of
    that node counts from that record, or from the acknowledgement from which the promise counts.
    """
    own_s = with_margin(own_lease_s(lease_s))
    return max(seen_at + own_s, promised_until + own_s - with_margin(promised_s(lease_s)))


class Speaker(Struct, frozen=True):
    """The sender of a heartbeat, as the leader knows it (`speakers.py`)."""

    connection: int
    """The number of the connection; later connections to this leader have larger numbers."""
    heir: Heir

    def promises(self, said: Promise) -> bool:
        """Return whether this promise is the sender's own."""
        return (said.stamp, said.rank, said.candidate) == self.heir


class NextLeader(Struct, frozen=True):
    """The successor that a leader names."""

    epoch: int
    """The epoch of the leader that names the successor; 0: none has."""
    addresses: tuple[str, ...]


class Promises:
    """The promises of one node or candidate.

    A node is an heir once it was assigned such a place.
    """

    def __init__(self, lease_s: float, candidate: int = 0) -> None:
        """`candidate`: its number; 0: it is a node."""
        self.lease_s = lease_s
        self.until = -inf
        """The time before which it may not claim, unless the leader announces its leave."""
        self.next_leader = NextLeader(0, ())
        """The successor that the last leader named when it handed the job over."""
        self._offers: tuple[str, ...] = ()
        self._offered_at = -inf
        self._claims_after: tuple[int, int] | None = None
        """The epoch and beat of the record that a pending claim of this node follows, and that may
        still be stored."""
        self._led_by = 0
        """The number of the newest epoch that was seen in the register."""
        self._heir: Heir | None = (NO_ROUND, 0, candidate) if candidate else None
        self._answered = 0
        self.answered_at = -inf
        """When the leader answered last."""

    def assigned(self, stamp: Stamp, rank: int) -> None:
        """Note the newest place of this node."""
        self._heir = (stamp, rank, 0) if rank < RANKS else None

    def has_number(self, candidate: int) -> None:
        """Note a new connection to the leader, on which the candidate has this number."""
        self._heir = (NO_ROUND, 0, candidate)

    @property
    def is_heir(self) -> bool:
        """Whether the leader relies on these promises."""
        return self._heir is not None

    def answered(self, number: int, now: float) -> None:
        """Note that the leader has acknowledged this heartbeat."""
        self._answered, self.answered_at = number, now

    def claiming(self, found: LeadRecord | None) -> None:
        """Note that a claim is about to be sent that follows this record."""
        self._claims_after = _order(found)

    def saw(self, record: LeadRecord | None) -> None:
        """Note that the register holds this record.

        A claim that follows an earlier record is stored by now, or never will be.
        """
        self._led_by, _ = _order(record)
        if self._claims_after is not None and _order(record) > self._claims_after:
            self._claims_after = None

    def offer(self, addresses: tuple[str, ...], now: float) -> None:
        """Offer to lead at these addresses in place of a leader that can't write.

        Empty: no offer.
        """
        self._offers, self._offered_at = addresses[:OFFERS_MAX], now

    def handed_over(self, epoch: int, addresses: tuple[str, ...]) -> None:
        """Note that the leader of this epoch no longer leads, by its own word."""
        self.next_leader = NextLeader(epoch, addresses)

    @property
    def freed_epoch(self) -> int:
        """The epoch of the leader that handed the job over to this node; 0: none has."""
        own = self.next_leader.addresses == self._offers
        return self.next_leader.epoch if own and self._offers else 0

    def next(self, now: float, epoch: int) -> Promise | None:
        """Return the promise in a heartbeat to the leader of this epoch; None: there is none."""
        if self._heir is None or self._claims_after is not None:
            return None
        if epoch_number(epoch) < self._led_by:
            return None
        self.until = max(self.until, self.answered_at + with_margin(promised_s(self.lease_s)))
        offers = self._offers if now - self._offered_at <= OFFERED_S else ()
        return Promise(self._answered, *self._heir, offers=offers)


class _Promised(Struct):
    """The promises of one heir."""

    connection: int = 0
    """The newest connection on which promises have come; 0: none has."""
    since: float = -inf
    """When the last acknowledgement that its promises name was about to be sent."""
    answers: dict[int, float] = field(default_factory=dict)
    """The same times for later acknowledgements on that connection, by the numbers of
    heartbeats."""

    def is_heard_on(self, speaker: Speaker) -> bool:
        """Return whether a promise on this sender's connection counts.

        On a new connection nothing was acknowledged yet.
        """
        if speaker.connection == self.connection:
            return True
        _, _, candidate = speaker.heir
        if self.connection and (candidate or speaker.connection < self.connection):
            return False
        self.connection, self.answers = speaker.connection, {}
        return True


class Consent:
    """The promises that one leader knows."""

    def __init__(self) -> None:
        self._promised: dict[Heir, _Promised] = {}

    def expect(self, heirs: Iterable[Heir]) -> None:
        """Set the heirs."""
        self._promised = {heir: self._promised.get(heir, _Promised()) for heir in heirs}

    def heard(self, speaker: Speaker, number: int, answered: int, now: float) -> None:
        """Note a heartbeat with a promise, which names the acknowledgement of `answered`.

        If this heartbeat has an answer, the answer is about to be sent.
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

        -inf: one's do not, or there is none.
        """
        promised = (self._promised.get(heir) for heir in heirs)
        return min((-inf if each is None else each.since for each in promised), default=-inf)


def _order(record: LeadRecord | None) -> tuple[int, int]:
    return (0, 0) if record is None else (record.epoch.number, record.beat)


def heirs_in(record: JobRecord | None, candidates: Iterable[int] = ()) -> frozenset[Heir]:
    """Return the heirs that alone may claim the job soon; empty: any node may.

    The register holds this record, which lists these candidates.
    """
    ranks = heirs_of(record)
    if record is None or record.newest_round is None or not ranks:
        return frozenset()
    stamp = Stamp(record.incarnation, record.newest_round)
    listed = ((NO_ROUND, 0, number) for number in candidates)
    return frozenset([*((stamp, rank, 0) for rank in ranks), *listed])
