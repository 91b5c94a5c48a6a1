"""The newest position of one job's record that a process knows of. Pure.

And what follows if its register holds an older one (section L9 of the design).

A process knows the records that it has read or written, and the positions that leaders have told
it or its nodes (`told.py`). A record that is older than one of these was put back, and so was one
that is gone. Then the process claims the job above all that it knows, with the newest record that
it has read, and what it was told on top. Until it knows what runs it decides nothing, and it waits
for longer than it would otherwise (`recovery.py`), since the leader before may not know yet.

A read may also be old because of a cache. Nothing comes of that: the claim fails.

A record that no leader writes (`record_limits.py`) counts as one that is gone, for a process that
knows another one.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.core.job_lives import EARLIER_MAX
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.record import JobRecord, LeadRecord, WorldNames
from rallypoint.core.takeover.record_limits import Counts, advance_fault, counts_of, counts_told
from rallypoint.core.takeover.told import NEVER, Position, PositionOrder

EPOCHS_REMEMBERED = 64


def order_of(record: LeadRecord | None) -> PositionOrder:
    """Return the order of this record: epoch number, incarnation, beat; `NEVER` for None."""
    if record is None:
        return NEVER
    life = 0 if record.job is None else record.job.incarnation
    return record.epoch.number, life, record.beat


def told_of(record: LeadRecord) -> Position:
    """Return the position of this record, without a digest."""
    job = record.job
    if job is None:
        return Position(record.epoch.as_int(), record.beat, 0)
    newest = -1 if job.newest_round is None else job.newest_round
    return Position(
        record.epoch.as_int(),
        record.beat,
        job.incarnation,
        newest,
        job.nodes if newest >= 0 else 0,
        job.judged_round,
        job.is_active,
        job.is_started,
        job.restarts,
        len(job.restarts_counted),
        origin=job.first_number if job.earlier else 0,
    )


def is_of_life(job: JobRecord, told: Position) -> bool:
    """Return whether the record and the position are of one life of the job.

    The life may have changed its number since. An older version does not send the first number.
    """
    if told.first_number == job.first_number:
        return True
    return told.told_life == job.incarnation or told.told_life in job.earlier


def is_overtaken(told: Position, job: JobRecord | None, newest_claimed: int) -> bool:
    """Return whether a leader with this record learns nothing from a position that it did not know.

    It learns nothing if it has formed a newer round than the position has, and than
    `newest_claimed`, the newest one at its claim, and knows at least as many restarts. It also
    learns nothing from a position of an earlier life of the job.
    """
    if job is None or job.newest_round is None:
        return False
    if not is_of_life(job, told):
        return told.told_life < job.incarnation
    has_formed = job.newest_round > max(newest_claimed, told.last_round)
    return has_formed and job.restarts >= told.restarts


class Memory:
    """The newest position of one job's record that a process knows while it lives."""

    def __init__(self, settings: SharedSettings | None = None) -> None:
        """Make an empty memory. `settings` are the job's; None: not known yet."""
        self._settings = settings
        self._newest: LeadRecord | None = None
        self._told: Position | None = None
        self._epochs: dict[Epoch, None] = {}
        """The epochs of the last records that this process has read or written."""
        self._counts: dict[str, int] = {}
        """The largest value that this process knows of each count, by its name."""
        self._was_own = False
        """Whether this process has written the newest record."""
        self._given_up: Epoch | None = None
        """The epoch by which this process led and which it gave up for a newer position; None:
        there is none."""
        self.known = NEVER
        """The order of the newest record or position that was known, even of an epoch that was
        given up."""

    @property
    def order(self) -> PositionOrder:
        """The order of the newest record or position that a claim has to continue."""
        told = NEVER if self._told is None else self._told.order
        return max(order_of(self._newest), told)

    def saw(self, record: LeadRecord, *, is_own: bool = False) -> None:
        """Note a record of the register.

        `is_own`: this process has written it, and that was confirmed.
        """
        self._epochs[record.epoch] = None
        if len(self._epochs) > EPOCHS_REMEMBERED:
            del self._epochs[next(iter(self._epochs))]
        self._count(counts_of(record))
        self.known = max(self.known, order_of(record))
        if record.epoch != self._given_up and order_of(record) >= self.order:
            self._newest, self._was_own = record, is_own

    def saw_none(self) -> None:
        """Note that the register holds no record.

        The process that leads by it removes it when all nodes have left: records that this process
        has only read no longer count.
        """
        if not self._was_own:
            self._newest = None
            self.known = NEVER if self._told is None else self._told.order

    def fault_in(self, record: LeadRecord) -> str:
        """Return a text about the first count in this record that is too far beyond the known ones.

        Empty: there is none.
        """
        return advance_fault(counts_of(record), self._counts)

    def is_too_far(self, told: Position) -> bool:
        """Return whether a count in this position is too far beyond all that this process knows."""
        return bool(advance_fault(counts_told(told), self._counts))

    def _count(self, counts: Counts) -> None:
        for name, count in counts.items():
            self._counts[name] = max(self._counts.get(name, 0), count)

    def was_told(self, told: Position, settings: SharedSettings | None = None) -> None:
        """Note a position that a leader has sent to this process, or to a node that reported it.

        A position that is too far beyond the known ones is ignored.
        """
        if self.is_too_far(told):
            return
        self._settings = self._settings or settings
        self._count(counts_told(told))
        self.known = max(self.known, told.order)
        is_given_up = self._given_up is not None and told.epoch == self._given_up.as_int()
        if not is_given_up and (self._told is None or told.order > self._told.order):
            self._told = told

    def is_behind(self, record: LeadRecord | None) -> bool:
        """Return whether this process knows a newer record than this one (None: no record).

        A record of the epoch that this process gave up counts as behind, too.
        """
        is_given_up = record is not None and record.epoch == self._given_up
        return is_given_up or order_of(record) < self.order

    def gives_up(
        self, epoch: Epoch, told: Position, settings: SharedSettings, *, keeps_round: bool
    ) -> None:
        """Note that this process no longer leads by this epoch, since a node knows a newer record.

        `told` is the position of that one. In the same life of the job both records are continued.
        Else this process's record is forgotten, with the positions derived from it. `keeps_round`:
        this process has formed the newest round itself.
        """
        self._given_up = epoch
        newest = self._newest
        job = None if newest is None or newest.epoch != epoch else newest.job
        if newest is not None and job is not None and is_of_life(job, told):
            job = _raised(job, told, job.settings, keeps_round=keeps_round)
            self._newest = replace(newest, job=job)
        elif newest is not None and newest.epoch == epoch:
            self._newest, self._was_own = None, False
        if self._told is not None and self._told.epoch == epoch.as_int():
            self._told = None
        self.was_told(told, settings)

    def goes_on(self, epoch: Epoch, told: Position) -> None:
        """Note that this process gives up this epoch, and claims the job anew with the same record.

        A node has told a position that has nothing newer, but perhaps a higher epoch. The next
        epoch is above that, because an agent follows no lower epoch than before.
        """
        self._given_up = epoch
        self._count(counts_told(told))
        self.known = max(self.known, told.order)

    def may_claim_at_once(self, record: LeadRecord | None) -> bool:
        """Return whether this process may claim at once over this record, which is behind.

        It may if it led the job last, and no other process can have begun to lead by this record.
        """
        if record is not None and record.epoch == self._given_up:
            return True
        is_newest = order_of(self._newest) == self.order
        is_known = record is None or record.epoch in self._epochs
        return self._was_own and is_newest and is_known

    def restored(self, record: LeadRecord | None) -> LeadRecord | None:
        """Return the record to continue instead of an outdated one; None: too little is known."""
        base, told = self._newest, self._told
        is_given_up = record is not None and record.epoch == self._given_up
        if not is_given_up and order_of(base) < order_of(record):
            base = record
        if told is None or told.order <= order_of(base):
            return base
        job = None if base is None else base.job
        settings = self._settings if job is None else job.settings
        shown = base or record
        if settings is None or shown is None:
            return base
        return replace(shown, job=_raised(job, told, settings))

    def next_number(self, record: LeadRecord | None) -> int:
        """Return an epoch number above that of this record and all known ones."""
        highest = self._counts.get("epoch.number", 0)
        return max(highest, 0 if record is None else record.epoch.number) + 1


def _raised(
    job: JobRecord | None, told: Position, settings: SharedSettings, *, keeps_round: bool = False
) -> JobRecord | None:
    """Return the record of a job with the newer values of this position.

    Of the newest world only the number of its nodes is known: the live nodes report the rest.
    `keeps_round`: if the record has a round of the same number, that is another one, and stays.
    """
    if not told.told_life:
        return job
    if job is not None and job.incarnation < told.told_life and is_of_life(job, told):
        earlier = (*job.earlier, job.incarnation)[-EARLIER_MAX:]
        origin = job.first_number
        job = replace(job, incarnation=told.told_life, earlier=earlier, origin=origin)
    if job is None or job.incarnation < told.told_life:
        # The ledger of an earlier life counts no more, and is not known to be empty.
        job = JobRecord(settings, told.told_life, former=None if job is None else job.former)
    newest = -1 if job.newest_round is None else job.newest_round
    restarts, counted = job.restarts, job.restarts_counted
    # No more restarts count than the budget has.
    counts = max(min(told.counted, settings.max_restarts), len(counted))
    if told.restarts > restarts or counts > len(counted):
        restarts = max(restarts, told.restarts)
        counted = tuple(range(restarts - counts + 1, restarts + 1))
    job = replace(
        job,
        restarts=restarts,
        restarts_counted=counted,
        judged_round=max(job.judged_round, told.judged_round),
        verdict=None,
        is_heard=False,
    )
    if told.last_round < 0 or told.last_round < newest + keeps_round:
        # The position may have judged another round of that number.
        latest = newest if job.is_active else newest + 1
        return replace(job, judged_round=min(job.judged_round, max(latest, 0)))
    # A world of another size is another one.
    is_newer = told.last_round > newest or told.nodes != job.nodes
    job = replace(
        job,
        round=told.last_round if told.is_active else told.last_round + 1,
        is_active=told.is_active,
        is_started=told.is_started,
        nodes=told.nodes,
        blamed=None,
        end_reason=None if told.is_active or is_newer else job.end_reason,
        last_end=job.last_end if told.last_round == newest else None,
    )
    if not is_newer:
        return job
    return replace(
        job,
        succeeded=b"",
        stopped=b"",
        leader_rank=-1,
        leader_node="",
        leader_machine="",
        names=WorldNames(),
        largest_world=max(job.largest_world, told.nodes),
    )
