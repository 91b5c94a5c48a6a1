"""The leader of a job: one process at a time, by swaps of the record. Pure.

In the job's register (sections L1 and L2 of the design).

A record whose epoch and beat stand still for longer than the hold, on the watcher's own clock, has
no leader any more: then the watcher claims, by a swap that only one of several can win. A watcher
that did not look for a while has seen nothing stand still. A leader that has said that it goes, or
whose process is known to be gone, is not waited for; but if it had workers, its guard gets a moment
to kill them and to mark the record.

A leader may act for the hold, counted from when the last swap that was confirmed was *sent*. After
that it is unsure, and acknowledges nothing, until another swap is confirmed: others may have
claimed. A swap renews the hold, a beat does if nothing else is to be written. A leader that is a
node of the job may act for longer, while all heirs promise that they don't claim (`consent.py`): a
register that stalls disturbs nobody.

A leader that alone has lost the register hands over: an heir that sees the record stand still
tries to write beside it, and offers in its heartbeats to lead instead. The leader tells all nodes
who is to follow, and no longer leads: that heir need not wait for its own promise, and the node of
the old leader finds the new one though it can't read the register.

Of the nodes of a job that has no leader an heir claims first, in the order of ranks. While a world
runs, the others claim only when the record has stood still for so long that no heir can have a
promise in force (`consent`), or when the leader has said that it goes and no heir has claimed.
Where one of the heirs is known to be dead, no promise of it can be in force for longer than half a
lease, and a leader needs those of all.
Candidates that the record lists claim before all nodes.

Times are seconds on one clock that also counts suspend.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import messages as m
from rallypoint.core.model import DeadPlace, Epoch, Outcome, Promise
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import own_lease_s, with_margin
from rallypoint.core.takeover.consent import Consent, Speaker, heirs_in, promised_s
from rallypoint.core.takeover.heirs import Claimant, HeardCandidates, Turn, knows_dead_heir, turn_of
from rallypoint.core.takeover.record import SCHEMA, JobRecord, Leader, LeadRecord, is_set

ATTACH_S = 0.5
"""The usual time in seconds of a claim and of the nodes' way to the new leader, together."""
BEAT_SHARE = 1 / 5
"""The share of the hold after which a leader renews it; where the lease is shorter, the same share
of the lease."""
LOOK_SHARE = 1 / 8
"""The share of the hold between two looks of a waiting process at the record; a second at most."""
RELEASE_S = 3.0
"""The longest time in seconds that the guard of a dead leader takes to mark the record. A process
that claims earlier does not know that no worker of that node lives, and must wait for its lease."""
LONELY_SHARE = 3 / 5
"""The share of the hold without a stored record after which a leader may hand over to an heir that
can write."""
LONELY_S = 2.0
"""The seconds for which an heir has to offer to lead before the leader hands over to it."""
HEIRS_ONLY_LEASES = 4
"""The number of leases after the hold in which only heirs may claim: a leader may still act by
their promises."""
CONSENT_LEASES = 3
"""The number of leases after the hold in which a leader may act by promises."""


NO_EPOCH = Epoch(0, 1)


def after_put_back_s(hold_s: float, lease_s: float) -> float:
    """Return how much longer to wait for nodes after a claim over an older record, in seconds.

    Until then the former leader may act by promises with the nodes of the newest world.
    """
    return with_margin(hold_s + CONSENT_LEASES * lease_s)


def takeover_s(hold_s: float) -> float:
    """Return the usual maximum time until another process leads, in seconds.

    It applies if a leader's machine has vanished: nodes without a leader for a lease stop their
    workers.
    """
    return with_margin(hold_s) + look_s(hold_s) + ATTACH_S


def look_s(hold_s: float) -> float:
    """Return how often a process that would lead looks at the record, in seconds."""
    return min(1.0, hold_s * LOOK_SHARE)


class Watch:
    """The observation of another leader's record by a process that would lead."""

    def __init__(self) -> None:
        self._hold_s = HOLD_S
        """The hold in seconds of the leader that was seen last."""
        self._seen: tuple[Epoch, int] | None = None
        self._since = self._looked_at = 0.0
        self._gone_since: float | None = None

    @property
    def look_s(self) -> float:
        """The interval of looks at the record, in seconds."""
        return look_s(self._hold_s)

    @property
    def late_s(self) -> float:
        """The seconds after which an unchanged record is late: three of its usual intervals."""
        return self._hold_s * LONELY_SHARE

    def claims_in_s(
        self, record: LeadRecord, now: float, *, is_gone: bool, claimant: Claimant | None = None
    ) -> float:
        """Note a look at this record, and return the least wait before a claim over it, in seconds.

        0: claim now. `is_gone`: the process of this leader is known to be gone. `claimant`: None
        for a coordinator that is neither a node nor a candidate: it waits for others' turns only
        after a leader that is a node.
        """
        seen = record.epoch, record.beat
        self._hold_s = record.leader.hold_s
        has_gap = now - self._looked_at > self._hold_s * BEAT_SHARE + self.look_s
        if seen != self._seen or (has_gap and not record.is_vacant):
            self._seen, self._since, self._gone_since = seen, now, None
        self._looked_at = now
        turn = Turn(0.0, True)
        if claimant is not None or record.leader.has_workers:
            turn = turn_of(record, claimant or Claimant())
        defers_s = 0.0 if claimant is None else claimant.defers_until - now
        if claimant is not None and claimant.freed_epoch == record.epoch.as_int():
            return 0.0
        if record.is_vacant or is_gone:
            return max(0.0, defers_s, self._free_since(record, now) + turn.delay_s - now)
        still_s = with_margin(self._hold_s) + turn.delay_s
        if not turn.is_heir and record.job is not None:
            lease_s = record.job.settings.lease_s
            if knows_dead_heir(record, claimant):
                # It was dead when this process began to look, and all heirs have to promise.
                still_s = max(with_margin(self._hold_s), with_margin(promised_s(lease_s)))
                still_s += turn.delay_s
            else:
                still_s += HEIRS_ONLY_LEASES * lease_s
        ends_at = self._since + still_s
        if claimant is not None:
            ends_at = max(ends_at, claimant.promised_until)
        return max(0.0, defers_s, ends_at - now)

    def claims_behind_in_s(
        self,
        record: LeadRecord | None,
        restored: LeadRecord | None,
        now: float,
        claimant: Claimant | None,
        unfit: int = 0,
    ) -> float:
        """Return the least wait before a claim over an outdated record, in seconds; 0: claim now.

        As `claims_in_s`, but the claim continues `restored`. The former leader may act, and may not
        know yet, so the record must stand still, even one that says that its leader has gone.
        `unfit` is the number of records so far that no leader writes; each of them is a change.
        """
        if restored is None:
            return 0.0
        shown = replace(restored, epoch=NO_EPOCH, beat=unfit, is_vacant=False)
        if record is not None:
            found = record.epoch, record.beat, record.leader
            shown = replace(shown, epoch=found[0], beat=found[1], leader=found[2])
        return self.claims_in_s(shown, now, is_gone=False, claimant=claimant)

    def begins_in_s(self, record: LeadRecord, now: float, claimant: Claimant | None) -> float:
        """Return the least wait before a claim that would begin an ended job anew, in seconds.

        Nodes that may not have heard the verdict have a lease to come. 0 for any other claim.
        """
        if record.job is None or not is_unheard(record, claimant):
            return 0.0
        return max(0.0, self._since + with_margin(record.job.settings.lease_s) - now)

    def _free_since(self, record: LeadRecord, now: float) -> float:
        """Return from when the job is free after its leader has gone.

        That is later if the guard of the leader's agent may still mark the record.
        """
        if record.is_vacant or not record.leader.has_workers:
            return self._since
        self._gone_since = now if self._gone_since is None else self._gone_since
        return self._gone_since + RELEASE_S

    @property
    def since(self) -> float:
        """When the record was first seen as it is now, or seen again after a pause in looking."""
        return self._since


class VersionRefusals:
    """The decision whether a node can ever take part under a leader that refuses its versions.

    The versions are those of the session protocol.
    """

    def __init__(self, own: tuple[int, int]) -> None:
        """`own`: the oldest and the newest version that this node speaks."""
        self._own = own
        self._refused: tuple[Epoch, int] | None = None

    def is_final(self, record: LeadRecord) -> bool:
        """Return whether the refusal of this node's versions is final, and note the first one.

        It is if the leader has renewed its record since the first refusal; a leader that is about
        to be replaced, or has gone, does not. It is not if the record's leader uses a version of
        this node: another program may answer at its address.
        """
        versions = record.leader.versions
        has_common = versions is not None and max(versions[0], self._own[0]) <= min(
            versions[1], self._own[1]
        )
        if record.is_vacant or has_common:
            return False
        if self._refused is None or self._refused[0] != record.epoch:
            self._refused = record.epoch, record.beat
        return self._refused[1] != record.beat


def is_unheard(record: LeadRecord, claimant: Claimant | None) -> bool:
    """Return whether live nodes may still come for the verdict of a job that has succeeded.

    They come before their lease is over. False for a claimant that took part in the job, or that is
    None.
    """
    job, is_fresh = record.job, claimant is not None and claimant.is_fresh
    if job is None or job.verdict is None or not is_fresh:
        return False
    return job.verdict.outcome is Outcome.SUCCEEDED and not job.is_heard


def claimed(
    found: LeadRecord | None,
    leader: Leader,
    nonce: int,
    own_rank: int = -1,
    beat: int = 0,
    number: int = 0,
) -> LeadRecord:
    """Return the record that a claim writes over the one that it found (None: there is none).

    `nonce` is random. `own_rank` is written as `leader_rank`. `beat` differs at each attempt of one
    process, since the record of an earlier attempt may yet be stored. `number` is the least number
    of the new epoch; 0: the next one.
    """
    number = max(number, 1 if found is None else found.epoch.number + 1)
    job = None if found is None else found.job
    if job is not None:
        job = replace(job, leader_rank=own_rank, leader_node="")
    return LeadRecord(SCHEMA, Epoch(number, nonce), leader, beat, job)


def released(found: LeadRecord, epoch: Epoch) -> LeadRecord | None:
    """Return the record that marks the leader of this epoch as dead; None: none is needed.

    The guard of its agent writes it when no worker of that node lives. None if the leader of this
    epoch does not lead any more.
    """
    if found.epoch != epoch or found.is_vacant:
        return None
    return replace(found, beat=found.beat + 1, is_vacant=True, is_dead=True)


def who_hears(found: LeadRecord, place: DeadPlace) -> tuple[str, ...] | None:
    """Return the addresses of the leader that should be told of a dead node's place.

    Empty: no process leads at present. None: no leader needs to be told any more, according to the
    record.
    """
    job = found.job
    if job is None or job.verdict is not None or job.newest_round is None:
        return None
    newest, rank = (job.incarnation, job.newest_round), place.group_rank
    known = (place.stamp.incarnation, place.stamp.round)
    is_known = is_set(job.succeeded, rank) or is_set(job.stopped, rank)
    is_known |= found.is_dead and job.leader_rank == rank
    if newest > known or (newest == known and is_known):
        return None
    return () if found.is_vacant else found.leader.addresses


class _Offer(Struct, frozen=True):
    """An heir's offer to lead in place of a leader that can't write its record."""

    addresses: tuple[str, ...]
    since: float
    heard_at: float
    """When the last heartbeat with the offer arrived."""


class Lead:
    """One leader's record, and how long it may act."""

    def __init__(self, record: LeadRecord, sent_at: float) -> None:
        """`record`: the claim, which was confirmed; it was sent at `sent_at`."""
        self.record, self._hold_s = record, record.leader.hold_s
        self._beat = record.beat
        self._sent_at = self._consent_at = sent_at
        # Other processes than nodes promise nothing.
        self._consent = Consent() if record.leader.has_workers else None
        self._candidates = HeardCandidates()
        self._heirs = {heirs_in(record.job, record.candidates)}
        """The heirs that may claim soon: one set for each record that the register may hold."""
        self._is_vacant = False
        self._offers: dict[int, _Offer] = {}
        """The offers of heirs to lead, by their group ranks."""
        self.successor: tuple[str, ...] = ()
        """The addresses of the heir to which the job was handed over; empty: it was not."""
        self._expect_promises()

    @property
    def epoch(self) -> Epoch:
        """The epoch that this leader has claimed."""
        return self.record.epoch

    def next(self, job: JobRecord | None, *, is_vacant: bool = False) -> LeadRecord:
        """Return the record to swap in next, with this state of the job.

        No other attempt has the same beat: an earlier one of which it is not known whether it was
        stored is never taken for this one. `is_vacant`: the record says that the leader goes, which
        then is sure of nothing any more.
        """
        self._beat += 1
        self._heirs.add(heirs_in(job, self.candidates))
        self._expect_promises()
        self._is_vacant |= is_vacant
        record = replace(self.record, candidates=self.candidates)
        return replace(record, beat=self._beat, job=job, is_vacant=is_vacant)

    @property
    def candidates(self) -> tuple[int, ...]:
        """The numbers of the candidates that the next record lists."""
        return self._candidates.numbers

    def confirmed(self, record: LeadRecord, sent_at: float) -> None:
        """Note that the register holds this record, sent at `sent_at`, which renews the hold.

        The offers of heirs are dropped.
        """
        self.record, self._sent_at = record, max(self._sent_at, sent_at)
        self._offers.clear()
        self._heirs = {heirs_in(record.job, record.candidates)}
        self._expect_promises()

    def heard(self, heartbeat: m.Heartbeat, now: float, speaker: Speaker | None = None) -> None:
        """Note a heartbeat and the promise in it, just before the heartbeat is answered.

        `speaker`: the sender; None: its promise does not count. Candidates that were silent for a
        lease are dropped.
        """
        promise = heartbeat.promise
        if promise is not None and speaker is not None and speaker.promises(promise):
            self._promised(heartbeat.number, promise, speaker, now)
        if self._lease_s:
            self._candidates.drop_silent(now - self._lease_s)
        if self._consent is not None:
            latest = self.held_until + (CONSENT_LEASES - 1) * self._lease_s
            self._consent_at = max(self._consent_at, min(self._consent_since, latest))

    def _promised(self, number: int, promise: Promise, speaker: Speaker, now: float) -> None:
        if promise.candidate:
            if not self._candidates.heard(promise.candidate, speaker.connection, now):
                return
        else:
            self._offered(promise, now)
        if self._consent is not None:
            self._consent.heard(speaker, number, promise.answered, now)

    def hand_over(self, now: float) -> bool:
        """End the term if this leader can't write and an heir offers to lead.

        Returns whether the term ends.
        """
        job = self.record.job
        if job is None or now < self._sent_at + LONELY_SHARE * self._hold_s:
            return False
        recent_s = 2 * job.settings.heartbeat_s
        for offer in self._offers.values():
            if now >= offer.since + LONELY_S and now < offer.heard_at + recent_s:
                self.successor, self._is_vacant = offer.addresses, True
                return True
        return False

    def _offered(self, promise: Promise, now: float) -> None:
        offers = promise.offers
        known = self._offers.pop(promise.rank, None)
        if known is None or known.addresses != offers:
            known = _Offer(offers, now, now)
        if offers:
            self._offers[promise.rank] = replace(known, heard_at=now)

    @property
    def vouched_at(self) -> float:
        """The latest time from which the lease of the leader's own node may count.

        It lies before the sending of the last confirmed swap, or the beginning of the last consent.
        It does so by as much as that node's own lease is shorter than the others'. No next leader
        forms a round without the node until its lease is over.
        """
        shorter_s = self._lease_s - own_lease_s(self._lease_s)
        return max(self._sent_at, self._consent_at) - shorter_s

    @property
    def sure_until(self) -> float:
        """The time before which no other process can have claimed the job."""
        if self._is_vacant:
            return -inf
        by_consent = self._consent_since + promised_s(self._lease_s)
        latest = self.held_until + CONSENT_LEASES * self._lease_s
        return max(self.held_until, min(by_consent, latest))

    def is_sure(self, now: float) -> bool:
        """Return whether no other process can have claimed the job."""
        return now < self.sure_until

    @property
    def held_until(self) -> float:
        """The end of the hold that the last confirmed swap of this leader gives."""
        return self._sent_at + self._hold_s

    @property
    def _lease_s(self) -> float:
        return 0.0 if self.record.job is None else self.record.job.settings.lease_s

    @property
    def _consent_since(self) -> float:
        if self._consent is None:
            return -inf
        return min(self._consent.since(heirs) for heirs in self._heirs)

    def _expect_promises(self) -> None:
        if self._consent is not None:
            self._consent.expect(frozenset().union(*self._heirs))

    @property
    def beats_at(self) -> float:
        """When the hold has to be renewed, if nothing else is written until then."""
        shortest_s = min(self._hold_s, self._lease_s or self._hold_s)
        return self._sent_at + shortest_s * BEAT_SHARE
