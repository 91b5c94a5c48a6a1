"""The duties of a leader, from its claim to the end of its lead (sections L1 to L3 of the design).

Pure.

It writes the job's record: when something has changed, before its hold ends, and again when the
register was away. One record is written at a time. What a job has decided is let go when the
register holds a record that includes it, and nobody else can have claimed meanwhile. The leader
steps down, or hands over, where another process would lead with more success. It no longer leads
when another one has claimed, its record was put back, or a node knows a newer one.

Times are seconds on the clock of the hold (`leading.py`).
"""

from __future__ import annotations

from math import inf

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.host_effects import HostEffect
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import JobState
from rallypoint.core.liveness import pace_of
from rallypoint.core.model import Outcome, SharedSettings, epoch_number
from rallypoint.core.takeover.candidacy import Claim
from rallypoint.core.takeover.candidacy import Lead as Won
from rallypoint.core.takeover.consent import fenced_at
from rallypoint.core.takeover.durable import Durable
from rallypoint.core.takeover.handover import UNKNOWN, Handover, Predecessor
from rallypoint.core.takeover.leading import Lead, after_put_back_s
from rallypoint.core.takeover.memory import Memory, is_overtaken, told_of
from rallypoint.core.takeover.record import FormerLife, LeadRecord, job_of
from rallypoint.core.takeover.recovery import may_run
from rallypoint.core.takeover.stepping_down import (
    CHECK_S,
    Deference,
    IsSilent,
    SteppingDown,
    silence_of,
)
from rallypoint.core.takeover.told import Position, Seal

RETRY_S = 0.5
"""The pause in seconds before an unreachable register is tried again."""
STALL_SHARE = 1 / 2
"""The share of the hold after which a person is told that nothing could be recorded, while there is
time to act."""
STOPPED_S = 1.0
"""The delay of a timer, in seconds, above which this process itself was stopped, so that the
register is not to blame."""
EARLY_S = 0.001
"""The most seconds that a timer may end too early."""
HEARD_BEATS = 2.5
"""The number of heartbeat intervals without a message after which a node may have another
leader."""
BEHIND = "a node knows a newer record of the job than the register held"


class Write(Struct, frozen=True):
    """The effect to swap this record into the job's register.

    Then call `written`, `unwritten`, `overtaken` or `failed`.
    """

    record: LeadRecord
    lives: list[Durable]
    """The queues of lives of the job: effects that wait there for this record may go when it is
    stored."""


class Release(Struct, frozen=True):
    """The effect to carry out these effects of one life of the job, which waited in its queue."""

    life: Durable
    effects: list[HostEffect]


class StepDown(Struct, frozen=True):
    """The effect to write in the record that this leader goes, and then end its term."""

    why: str


class Depose(Struct, frozen=True):
    """The effect to end the term of this leader at once, without another record."""

    why: str


Effect = Write | Release | StepDown | Depose | Record


class Duties:
    """The state machine of one leader of a job: when it writes its record, and when its term ends.

    Each method that is named after an event returns the resulting effects.
    """

    def __init__(self, won: Won, memory: Memory, deference: Deference | None, seal: Seal) -> None:
        """`won`: the claim by which this process leads. `seal`: gives a position its digest.

        `deference`: of a process that steps down so that others may lead; None: it never does.
        """
        claim, sent_at, at = won.claim, won.sent_at, won.at
        self.lead, self.memory = Lead(claim.record, sent_at), memory
        self._seal, self._told = seal, (claim.record, seal.sealed(told_of(claim.record)))
        self._is_put_back = claim.is_put_back
        self.is_deposed = False
        """Whether another process may lead the job by now, even if this leader's hold has not
        ended."""
        self._predecessor = _predecessor(claim, at)
        self._base = claim.known
        """The order of the newest record that this process knew when it claimed the job."""
        self._newest_claimed = told_of(claim.record).last_round
        """The newest round in the record of its claim; -1: none was formed."""
        self.lives: list[Durable] = []
        """The hosted lives of the job; the last one is the present one."""
        self.is_kept = self._is_active = False
        self._stepping_down = None if deference is None else SteppingDown(deference)
        self._checks_at = inf
        self._is_changed = False
        self._retries_at = -inf
        self._writing: tuple[LeadRecord, float, list[Durable]] | None = None
        """The record that is being written, since when, and the lives that it includes."""
        self._stalls_at, self._is_stalled, self._stall = inf, False, ""

    @property
    def wakes_at(self) -> float:
        """When `passed` is due, if nothing else happens; infinite: never."""
        if not self._is_active or self.is_deposed:
            return inf
        return min(self._stalls_at, self._checks_at, self._writes_at)

    @property
    def _writes_at(self) -> float:
        if self._writing is not None:
            return inf
        return max(self._retries_at, -inf if self._is_changed else self.lead.beats_at)

    def is_sure(self, now: float) -> bool:
        """Return whether no other process can lead this job now."""
        return not self.is_deposed and self.lead.is_sure(now)

    def begin(self, state: JobState, former: Life | None) -> Durable:
        """Return the queue for a new life of the job, which the register does not hold yet.

        `former` is the previous life; None: there was none.
        """
        job = self.lead.record.job
        # A life that nobody has brought to an end has one before it, whose nodes may still come.
        over = None if job is None else job.former
        if former is not None and former.verdict is not None:
            over = FormerLife(former.incarnation, former.verdict, former.earlier)
        return Durable(state, Handover(), is_recorded=False, former=over)

    @property
    def over(self) -> Life | None:
        """The ended life in the register, if all its nodes have heard the verdict; else None."""
        job = self.lead.record.job
        if job is None or not job.is_heard:
            return None
        return Life(job.incarnation, job.verdict, earlier=job.earlier)

    @property
    def unheard(self) -> int:
        """The number of nodes that may not have heard of the end of the job in the register.

        They may run workers until their leases are over.
        """
        job, led = self.lead.record.job, self._predecessor
        if job is None or job.verdict is None or job.is_heard or not job.is_started:
            return 0
        dead = led.rank if led.is_dead else -1
        return sum(may_run(job, rank) for rank in range(job.nodes) if rank != dead)

    @property
    def before(self) -> Life | None:
        """The life of the job before the one in the register; None: none is known.

        Its nodes may come late.
        """
        job = self.lead.record.job
        former = None if job is None else job.former
        if former is None:
            return None
        return Life(former.incarnation, former.verdict, earlier=former.earlier)

    def take_over(self) -> Durable | None:
        """Return the queue that continues the job in the register, with the job's state.

        None: the register holds no job, or one whose verdict all its nodes have heard.
        """
        record, epoch = self.lead.record.job, self.lead.epoch
        if record is None or self.over is not None:
            return None
        longer_s = 0.0
        if self._is_put_back:
            hold_s = self.lead.record.leader.hold_s
            longer_s = after_put_back_s(hold_s, record.settings.lease_s)
        handover = Handover(record, self._predecessor, longer_s, epoch.as_int())
        state = job_of(record, epoch)
        return Durable(state, handover, is_recorded=True, former=record.former)

    @property
    def told(self) -> Position:
        """The position of the newest confirmed record, with its digest."""
        record = self.lead.record
        if self._told[0] is not record:
            self._told = record, self._seal.sealed(told_of(record))
        return self._told[1]

    def is_genuine(self, told: Position) -> bool:
        """Return whether a leader of this job has made this position, as far as can be known.

        False also if a count in it is too far beyond the known ones.
        """
        return self._seal.is_genuine(told) and not self.memory.is_too_far(told)

    def keeps(self, at: float) -> list[Effect]:
        """Begin to write records, and to check whether another process should lead. `at`: now."""
        self.is_kept = self._is_active = True
        self._stalls_at = at + self._stall_s
        if self._stepping_down is not None:
            self._checks_at = at + CHECK_S
        return []

    def opened(self, life: Durable) -> list[Effect]:
        """Note that a life of the job is hosted, as the newest one."""
        self.lives.append(life)
        return self.changed()

    def closed(self, life: Durable) -> list[Effect]:
        """Note that a life is no longer hosted."""
        self.lives.remove(life)
        return []

    def changed(self) -> list[Effect]:
        """Note that something has to be recorded, as soon as no other record is being written."""
        self._is_changed = True
        return []

    def passed(self, now: float, is_silent: IsSilent) -> list[Effect]:
        """Return what is due: a warning that nothing was recorded, an end of the term, a write.

        `is_silent` tells which agents of the newest life are silent.
        """
        at, effects = now + EARLY_S, list[Effect]()
        if at < self.wakes_at:
            return []
        if at >= self._stalls_at:
            effects += self._stalled(now)
        if at >= self._checks_at:
            self._checks_at = now + CHECK_S
            if checked := self._check(now, is_silent):
                return [*effects, *checked]
        if at >= self._writes_at:
            effects.append(self._write(now))
        return effects

    def _write(self, at: float) -> Write:
        lives = list(self.lives)
        jobs = [life.begin() for life in lives]
        record = self.lead.next(jobs[-1] if jobs else self.lead.record.job)
        self._writing, self._is_changed, self._retries_at = (record, at, lives), False, -inf
        return Write(record, lives)

    def written(self, at: float, stored: LeadRecord) -> list[Effect]:
        """Note that the register holds this record, and release the effects that waited for it.

        They wait for the next record if another process may have claimed since this one was sent.
        """
        if self._writing is None or self._writing[0] is not stored:
            return []
        record, sent_at, lives = self._writing
        self._writing = None
        if record.is_vacant:
            return [Release(life, life.written()) for life in lives]
        self.lead.confirmed(record, sent_at)
        self.memory.saw(record, is_own=True)
        told: list[Effect] = [kinds.RECORDED_AGAIN()] if self._is_stalled else []
        self._stalls_at, self._is_stalled, self._stall = at + self._stall_s, False, ""
        if not self.is_sure(at):
            # Others may have claimed since it was sent. The next swap tells.
            self._is_changed = True
            return told
        return told + [Release(life, life.written()) for life in lives]

    def unwritten(self, at: float, why: str) -> list[Effect]:
        """Plan to write again soon: it is not known whether the register has taken the record.

        `why`: the reason, which a person is told if it lasts.
        """
        self._writing, self._is_changed = None, True
        self._retries_at, self._stall = at + RETRY_S, why
        return []

    def failed(self, why: str, *, is_deposed: bool = True) -> list[Effect]:
        """End the term: the register can't be written any more.

        `is_deposed`: another process may lead by now.
        """
        self.is_deposed |= is_deposed
        self._is_active = False
        return [Depose(why)]

    @property
    def _stall_s(self) -> float:
        return self.lead.record.leader.hold_s * STALL_SHARE

    def _stalled(self, at: float) -> list[Effect]:
        if at > self._stalls_at + STOPPED_S:
            self._stalls_at = at + self._stall_s
            return []  # This process was stopped, and not the register.
        self._stalls_at, self._is_stalled = inf, True
        why = self._stall or "the register does not answer"
        return [kinds.NOT_RECORDED(why=why, seconds=f"{self._stall_s:g}")]

    def _check(self, now: float, is_silent: IsSilent) -> list[Effect]:
        """Return the effects that end the term, if another process is to lead; else none."""
        if not self.lives or self._stepping_down is None:
            return []
        life = self.lives[-1]
        if self.lead.hand_over(now):
            return self._depose("it can't write its record, and another node can")
        job, recovery = life.job, life.handover.recovery
        why = self._stepping_down.why(
            self.lead, lambda seconds: silence_of(job, recovery, is_silent, seconds), now
        )
        if not why:
            return []
        self._checks_at = inf
        if self.is_sure(now) or not _may_tell_cancel(life, is_silent):
            return [StepDown(why)]
        why = f"{why}: all nodes know that the job is cancelled, but this is not recorded"
        return [Release(life, life.unrecorded()), StepDown(why)]

    def overtaken(self, found: LeadRecord | None) -> list[Effect]:
        """End the term: the register has not taken this leader's record.

        `found` is the one that it holds; None: none.
        """
        if found is not None and (fault := self.memory.fault_in(found)):
            return self._depose(why_unfit(fault))
        if not self.memory.is_behind(found):
            return self._depose("another coordinator has taken over this job")
        if found is None:
            return self._depose("its record is gone from the register")
        return self._depose(
            "its register holds an older record of the job, which somebody has put back"
        )

    def _depose(self, why: str) -> list[Effect]:
        self.is_deposed = True
        return [Depose(why)]

    def learned(self, told: Position, settings: SharedSettings) -> list[Effect]:
        """End the term, because a node has told of a later position than this leader knew.

        The process then claims the job anew, with a higher epoch than that of the position.
        """
        if self._has_overtaken(told):
            self.memory.goes_on(self.lead.epoch, told)
        else:
            has_formed = told_of(self.lead.record).last_round > self._newest_claimed
            self.memory.gives_up(self.lead.epoch, told, settings, keeps_round=has_formed)
        return self._depose(BEHIND) if self.is_kept and not self.is_deposed else []

    def _has_overtaken(self, told: Position) -> bool:
        """Return whether the leader has nothing to learn from this position."""
        return is_overtaken(told, self.lead.record.job, self._newest_claimed)

    def is_behind(self, told: Position) -> bool:
        """Return whether this position, which a node tells, makes the leader claim the job anew.

        It does if it is of another epoch, and newer than what the leader knew when it claimed: the
        record was replaced by an older one. It does not if the leader has nothing to learn from it,
        nor a higher epoch to claim above.
        """
        if told.epoch == self.lead.epoch.as_int() or told.order <= self._base:
            return False
        # Who has followed a higher epoch follows this one only when that is claimed above.
        return not self._has_overtaken(told) or epoch_number(told.epoch) > self.lead.epoch.number

    def leaves(self, *, is_heard: bool = False, steps_down: bool = False) -> list[Write]:
        """End the duties, and return the write of a last record, which says that this leader goes.

        The record has everything that is not recorded yet. Empty: another process may lead by now.
        `is_heard`: all live nodes have heard the verdict. `steps_down`: others may lead with more
        success.
        """
        self._is_active = False
        if self.is_deposed:
            return []
        self.is_deposed = steps_down
        lives = self.lives[-1:]
        job = lives[0].begin() if lives else self.lead.record.job
        if job is not None and is_heard:
            job = replace(job, is_heard=True)
        if job is not None and steps_down:
            job = replace(job, stepped_down=job.stepped_down + 1)
        record = self.lead.next(job, is_vacant=True)
        self._writing = record, -inf, lives
        return [Write(record, lives)]

    def removes(self, at: float) -> list[Write]:
        """End the duties, and return the write of a record before the register is removed.

        The job in it is the one that was recorded last. Empty: another process may lead by now.
        """
        self._is_active = False
        if self.is_deposed:
            return []
        record = self.lead.next(self.lead.record.job)
        self._writing = record, at, []
        return [Write(record, [])]


def why_unfit(fault: str) -> str:
    """Return the reason of a leader that gives up, because its register holds such a record.

    `fault`: a text about the value in the record that no leader writes.
    """
    return f"its register holds a record that was not written by a leader: {fault}"


def _may_tell_cancel(life: Durable, is_silent: IsSilent) -> bool:
    """Return whether all nodes may be told of a cancel that can't be recorded.

    Only if each node is connected to this leader, so that no other leader has any of them. Any
    other verdict may as well be found anew by the next leader.
    """
    job = life.job
    lives = [member.ref.incarnation for member in job.round.members.values()]
    heard_s = HEARD_BEATS * pace_of(job.round.settings, len(lives)).beat_s
    if job.verdict is None or job.verdict.outcome is not Outcome.CANCELLED:
        return False
    return not any(is_silent(each, heard_s) or is_silent(each, 0.0) for each in lives)


def _predecessor(claim: Claim, now: float) -> Predecessor:
    """Return what is known of the former leader's node at the time of this claim."""
    found, job = claim.found, None if claim.found is None else claim.found.job
    if found is None or job is None or claim.is_put_back:
        return UNKNOWN
    fenced_in_s = fenced_at(claim.seen_at, claim.promised_until, job.settings.lease_s) - now
    return Predecessor(job.leader_rank, found.is_dead, fenced_in_s, job.leader_node)
