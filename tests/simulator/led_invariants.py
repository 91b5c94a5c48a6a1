"""Rules that must hold besides where coordinators lead by a register.

* The records are one chain: epochs only grow, each number has one nonce; rounds, restarts and
  successes only grow; a verdict stays. How often the same has failed changes only with the end of a
  round, and is not forgotten: a job ends for want of progress only after so many restarts.
* What an agent is told is in the newest record: the epoch before it is attached, its round before
  it is assigned to it, and the charge with it; the start, the end and the verdict before they are
  told.
* A failure is acknowledged when the record has the charge for its round, or none is due any more; a
  success when the record has it, but where workers were asked for a last checkpoint.
* A round that an agent was told of has one world, whoever leads: of the coordinator that has
  recorded it, and of no other one that takes itself for the leader. A round is charged once in all.
* An agent follows no coordinator of an earlier epoch than one that it has followed.
* A coordinator answers no heartbeat that it read when its hold was over, before a later swap
  was confirmed: that one shows that nobody else led meanwhile.
* An agent takes part in one life of the job, and hears how that has ended.
* Each record is one that others read: its values have their limits, and its counts advance in small
  steps.
* When somebody has put an older record back, whoever leads next goes on above all that its agent
  was told, and what was charged stays charged. No world forms while another leader may act that a
  node of that world has followed. Only a life without a round gives way to one before it.
* A verdict that is recorded is the only one of its life, and heard by every member that lives.
* A coordinator that is started again in time is noticed by no worker, and leads at once.
* What a job must remember for a while its record keeps for as long (`rules/round_ends.py`).
* No world is forgotten with its coordinator. What a coordinator has not recorded never happened.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from msgspec.structs import replace
from tests.simulator.facts import Violation, World, parsed
from tests.simulator.invariants import Invariants
from tests.simulator.rules.round_ends import RecordRules
from tests.simulator.workers import Worker

from rallypoint.core import messages as m
from rallypoint.core.job_state import JobEffect, JobEvent, JobState
from rallypoint.core.model import EndKind, Outcome, SharedSettings, Stamp, Verdict, epoch_number
from rallypoint.core.settings import OnJoin
from rallypoint.core.takeover.memory import order_of
from rallypoint.core.takeover.record import FormerLife, JobRecord, LeadRecord, is_set
from rallypoint.core.takeover.record_limits import advance_fault, counts_of, fault_in
from rallypoint.core.takeover.told import Position, PositionOrder

TAKES_OVER_S = 1.5
"""A coordinator that is started where the last one has died leads within this time."""


class LedInvariants(Invariants):
    """Of one simulation with a register."""

    def __init__(self, settings: SharedSettings, *, is_gentle: bool) -> None:
        """`is_gentle`: as of a plan."""
        super().__init__(settings)
        self._is_gentle = is_gentle
        self._records: list[LeadRecord] = []
        """The newest one only."""
        self._counts: dict[str, int] = {}
        self._named: set[tuple[str, Stamp]] = set()
        """The rounds of which each agent was told."""
        self._fit: LeadRecord | None = None
        """The newest record that was within its limits, without its beat."""
        """The largest counts of all records."""
        self._epochs: dict[int, int] = {}
        """Which coordinator has claimed each."""
        self._drafts: dict[tuple[int, Stamp], World] = {}
        """Worlds that no agent knows of, by coordinator."""
        self._given: list[tuple[int, Verdict, list[str]]] = []
        """Verdicts that are not recorded, with the members that are owed them."""
        self._late: set[tuple[str, int]] = set()
        """Heartbeats that the leader has read when its hold was over, and is still."""
        self._followed: dict[str, int] = {}
        self._formed_by: dict[Stamp, int] = {}
        """The coordinator that has recorded each round first."""
        self._formed_last: Stamp | None = None
        """The round that the newest record has for the first time."""
        self._forgotten: dict[Stamp, int] = {}
        """The same of rounds that nobody was told of before an older record was put back."""
        self._remembered = RecordRules()
        self._started_at = 0.0
        self._took_part: dict[str, int] = {}
        """In which life of the job the workers of each agent were."""
        self._renamed: dict[int, int] = {}
        """The next number of each life of the job whose number has changed."""
        self._first_numbers: dict[int, int] = {}
        """The first number of the life of the job that has, or had, each number."""
        self._said: dict[tuple[str, int], dict[int, m.Report]] = {}
        """The reports of each agent that each coordinator has read and not acknowledged, by their
        numbers. An agent numbers them anew for another coordinator."""
        self._attached_to: dict[str, int] = {}
        """The coordinator that each agent is attached to, or was attached to last."""
        self._was_put_back = False
        """An older record is in the register than the newest one, which these rules know."""
        self._has_put_back = False
        """Whether an older record has been in the register at any time."""
        self._base: PositionOrder | None = None
        """The order of that record, until whoever leads knows of the newest one."""
        self._positions: dict[str, Position] = {}
        """The newest position that each agent was told."""
        self._charged: dict[str, dict[int, int]] = {}
        """How many restarts of each life of the job each agent was told of."""
        self._told_of: dict[str, set[int]] = {}
        """The leaders that have told each agent a position, by their epochs."""
        self._told_lives: dict[str, set[int]] = {}
        """The lives of the job of which each agent was told, by their numbers."""
        self.acting: Callable[[], set[int]] = set
        """The epochs of all leaders that may act now, as far as each of them knows."""
        self._before: tuple[list[LeadRecord], set[int], list[tuple[int, Verdict, list[str]]], bool]
        """What was true before the newest record: the record, whose verdicts are recorded, and
        those that are not."""

    @property
    def _any_leads(self) -> bool:
        """Agents lead, each in turn, and none of them is started to do so."""
        return False

    @property
    def leader(self) -> int:
        return self._records[-1].leader.process.pid if self._records else 0

    @property
    def leadership(self) -> int:
        return self._records[-1].epoch.as_int() if self._records else 0

    @property
    def _job(self) -> JobRecord | None:
        return self._records[-1].job if self._records else None

    # The coordinators

    def stepped(self, state: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        """What one does that was deposed, and does not know it yet, is seen by nobody."""
        if self.jobs[id(state)].coordinator == self.leader:
            super().stepped(state, event, effects)

    def coordinator_started(self, number: int) -> None:
        super().coordinator_started(number)
        self._started_at = self.now_s

    def coordinator_died(self) -> None:
        """Another one knows what it has promised."""

    def read(
        self, incarnation: str, coordinator: int, message: m.ToCoordinator, *, is_late: bool
    ) -> None:
        super().read(incarnation, coordinator, message, is_late=is_late)
        if isinstance(message, m.Attach):
            # The agent says again all that is not acknowledged.
            self._said.pop((incarnation, coordinator), None)
        if isinstance(message, m.Numbered):
            said = self._said.setdefault((incarnation, coordinator), {})
            said[message.number] = message.report
        if isinstance(message, m.Heartbeat) and is_late:
            self._late.add((incarnation, message.number))

    def held(self, coordinator: int) -> None:
        if coordinator == self.leader:
            self._late.clear()

    def _check_old(self, state: JobState, verdict: Verdict) -> None:
        """It may have been found by taking over, and not be recorded yet."""

    def _is_known(self, stamp: Stamp) -> bool:
        return False

    def _is_orphaned(self, world: World) -> bool:
        return False

    def _keep(self, stamp: Stamp, world: World) -> None:
        self._drafts[world.coordinator, stamp] = world

    def _gave(self, number: int, verdict: Verdict, members: list[str]) -> None:
        self._given.append((number, verdict, members))

    # The register

    @property
    def has_verdict(self) -> bool:
        is_over = self._job is not None and self._job.verdict is not None
        return is_over or bool(self.verdicts)

    def put_back(self, record: bytes | None) -> None:
        self._was_put_back = self._has_put_back = True
        self._base = order_of(None if record is None else parsed(record))
        self.fitness = self.fitness.begun_anew()  # An older record knows less of machines.
        # What nobody was told of may be forgotten with its record.
        untold = [stamp for stamp in self._formed_by if stamp not in self.worlds]
        self._forgotten |= {stamp: self._formed_by.pop(stamp) for stamp in untold}

    def stored(self, record: bytes) -> None:
        new = parsed(record)
        self._check_limits(new)
        was_put_back = self._was_put_back
        self._before = self._records, set(self.verdicts), self._given, was_put_back
        self._formed_last = None
        old, led_before = (self._records[-1] if self._records else None), self.leader
        self._records = [new]
        if self.leader != led_before:
            for life in self.lives.values():
                life.banned_in = 0  # who had its place is not in the record
        self._epochs.setdefault(new.epoch.as_int(), self.leader)
        self._follows_record(new)
        if old is not None and (self._was_put_back or self._catches_up(old, new)):
            self._was_put_back = False
            self._check_after_put_back(old, new)
        elif old is not None:
            is_later = new.epoch.number > old.epoch.number
            if not is_later and (new.epoch != old.epoch or new.leader != old.leader):
                raise Violation("register", f"{new.epoch} of {new.leader} follows {old.epoch}")
            if is_later and self._is_gentle and not self._any_leads:
                self._check_takeover()
            if old.job is not None:
                self._check_chain(old.job, new.job)
        if new.job is not None:
            self.fitness.recorded(new.job)
            self._renamed |= pairwise((*new.job.earlier, new.job.incarnation))
            self._renamed.pop(new.job.incarnation, None)
            numbers = (*new.job.earlier, new.job.incarnation)
            first = self._first_numbers.get(numbers[0], numbers[0])
            self._first_numbers |= dict.fromkeys(numbers, first)
            self._remembered.note(new.job, self.now_s)
            if new.job.newest_round is not None:
                formed = Stamp(new.job.incarnation, new.job.newest_round)
                if formed not in self._formed_by:
                    self._check_alone_leads(formed)
                    self._formed_by[formed] = self.leader
                    self._formed_last = formed
        former = None if new.job is None else new.job.former
        if former is not None:
            self._check_former(former, old)
        if new.job is not None and new.job.verdict is not None:
            self._recorded(new.job.incarnation, new.job.verdict)

    def _check_alone_leads(self, formed: Stamp) -> None:
        """No world forms while another leader may act that a node of this world has followed."""
        world = self._drafts.get((self.leader, formed))
        if world is None:
            return
        followed = set().union(*(self._told_of.get(life, set()) for life in world.lives))
        others = (self.acting() & followed) - {self._records[-1].epoch.as_int()}
        if any(not self._acts_by_lies(each) for each in others):
            raise Violation("put back", f"{formed} forms while another leader may act: {others}")

    def _is_unknown_to(self, world: World, other: Stamp) -> bool:
        """Where a record was removed, or one of before the first round was put back, agents that
        know of nothing begin the job beside the one that runs."""
        lives = (self._told_lives.get(life, set()) for life in world.lives)
        return self._has_put_back and all(other.incarnation not in each for each in lives)

    def _acts_by_lies(self, coordinator: int) -> bool:
        """Whether it can't know yet that it has lost the job."""
        return False

    def _check_limits(self, new: LeadRecord) -> None:
        without_beat = replace(new, beat=0)
        if without_beat == self._fit:  # A beat has no limit that a plan can reach.
            return
        self._fit, counts = without_beat, counts_of(new)
        if fault := fault_in(new) or advance_fault(counts, self._counts):
            raise Violation("record", f"no leader reads it: {fault}")
        for name, count in counts.items():
            self._counts[name] = max(count, self._counts.get(name, 0))

    def _catches_up(self, old: LeadRecord, new: LeadRecord) -> bool:
        """Whether a leader with an older record has learned of a newer one from an agent."""
        newest = max(self._positions.values(), key=lambda told: told.order, default=None)
        if newest is None or self._base is None or newest.order <= self._base:
            return False
        if new.epoch.number == old.epoch.number:
            return False
        if new.job is not None and _covers_told(new.job, newest):
            self._base = None
        return True

    def _check_after_put_back(self, old: LeadRecord, new: LeadRecord) -> None:
        """Check that a leader that knows a newer record continues that one. The ranks that have
        succeeded may be forgotten: their agents tell it again."""
        if new.is_dead:  # The guard of the leader has marked the record that it has found.
            self._was_put_back, self._records = True, [replace(old, is_vacant=True, is_dead=True)]
            return
        told, job = self._positions.get(self.leading_life), new.job
        if told is None:
            return
        if order_of(new) < told.order:
            text = f"{self.leading_life} was told of {told}, and continues {order_of(new)}"
            raise Violation("put back", text)
        if job is None or job.incarnation != told.told_life or job.verdict is not None:
            return
        if (job.newest_round or 0) < told.last_round or job.restarts < told.restarts:
            raise Violation("put back", f"the record fell behind {told}: {job}")

    def _check_takeover(self) -> None:
        """The process of the last coordinator is gone, and nothing else goes wrong."""
        if (took_s := self.now_s - self._started_at) > TAKES_OVER_S:
            raise Violation("takeover", f"it took {took_s:.2f} s")

    def unstored(self) -> None:
        """What was stored last is not in the register any more, and nobody was told that it
        was."""
        self._records, known, given, self._was_put_back = self._before
        if self._formed_last is not None:
            self._formed_by.pop(self._formed_last, None)
        self._given = [*given, *(each for each in self._given if each not in given)]
        forgotten = [self.verdicts.pop(number) for number in set(self.verdicts) - known]
        self.owed = {life: v for life, v in self.owed.items() if v not in forgotten}
        self._late.clear()

    def _follows_record(self, new: LeadRecord) -> None:
        """This one is in the register now."""

    def _check_former(self, former: FormerLife, old: LeadRecord | None) -> None:
        """Of a life that ended while the register was away, and was begun anew before it was back,
        this is the first record of its verdict."""
        number, verdict = former.incarnation, former.verdict
        was_given = (number, verdict) in [each[:2] for each in self._given]
        # A coordinator that takes over may find too many losses before it gives the job an event.
        is_of_losses = verdict.outcome is Outcome.INFRASTRUCTURE and verdict.cause is not None
        last = None if old is None else old.job
        if is_of_losses and last is not None and last.incarnation == number:
            was_given = was_given or last.verdict is None
        if number not in self.verdicts and was_given:
            self._recorded(number, verdict)
        if self.verdicts.get(number) != verdict:
            raise Violation("register", f"a life before is said to have had {verdict}")

    def _check_chain(self, old: JobRecord, new: JobRecord | None) -> None:
        if new is None or new.incarnation < old.incarnation:
            if self._gives_way(old, new):
                return
            raise Violation("register", "the job is not in the record any more")
        if new.incarnation > old.incarnation:
            return
        if old.verdict is not None and new.verdict != old.verdict:
            raise Violation("verdict", f"{old.verdict} became {new.verdict} in the record")
        if new.verdict is not None:
            if new.verdict.no_progress and new.restarts + 1 < new.settings.max_no_progress:
                raise Violation("crash loop", f"{new.restarts} restarts: {new.verdict.text}")
            return
        # After an older record was put back, a node may know that the round runs already for which
        # this one has a pause.
        known = self._positions.values() if self._has_put_back else ()
        runs = any(told.is_active and told.last_round >= old.round for told in known)
        self._remembered.check(old, new, self.now_s, runs=runs)
        if new.judged_round == old.judged_round and new.crash_loop != old.crash_loop:
            raise Violation("crash loop", f"{old.crash_loop} became {new.crash_loop} in a round")
        if (new.newest_round or 0) < (old.newest_round or 0) or new.restarts < old.restarts:
            raise Violation("register", f"the record fell behind: {old} became {new}")
        goes_on = new.newest_round == old.newest_round and new.is_active
        if goes_on and not old.is_active:
            raise Violation("round", f"round {new.newest_round} had ended, and is active again")
        if goes_on and not _covers(new.succeeded, old.succeeded):
            raise Violation("success", f"a success in round {new.newest_round} is lost")
        # Two: an earlier failure was taken for its machine's, and is the program's.
        failures = () if new.machines is None else new.machines.failures
        most = 2 if any(failure.is_programs for failure in failures) else 1
        if new.restarts > old.restarts + most * (new.judged_round > old.judged_round):
            rounds = f"{old.judged_round} and {new.judged_round}"
            raise Violation("budget", f"charged more than once between rounds {rounds}")
        if new.restarts > old.restarts:
            self._check_recorded_charge(old, new)

    def _gives_way(self, old: JobRecord, new: JobRecord | None) -> bool:
        """A life that has begun without knowing of one before it, since somebody has put a record
        back, goes without a round as soon as a node of that one is heard."""
        number = 0 if new is None else new.incarnation
        is_told = any(told.told_life == number for told in self._positions.values())
        return self._has_put_back and is_told and old.newest_round is None and old.verdict is None

    def _check_recorded_charge(self, old: JobRecord, new: JobRecord) -> None:
        """Rounds may have ended since that no agent knows of."""
        numbers = range(old.judged_round, new.judged_round)
        ended = [Stamp(new.incarnation, max(0, number)) for number in numbers]
        worlds = [(stamp, self.worlds[stamp]) for stamp in ended if stamp in self.worlds]
        failed = [each for each in worlds if self._failures(each[1]) or self._full(each[1])]
        if not failed:
            raise Violation("budget", f"one of {ended} was charged, and no worker had failed")
        self._check_stopped(*failed[-1])

    def _recorded(self, number: int, verdict: Verdict) -> None:
        if self.verdicts.setdefault(number, verdict) != verdict:
            raise Violation("verdict", f"life {number} has two: {self.verdicts[number]}, {verdict}")
        for other, given, members in self._given:
            if (other, given) == (number, verdict):
                alive = [each for each in members if not self.lives[each].died]
                self.owed |= dict.fromkeys(alive, verdict)
        self._given = [each for each in self._given if each[0] > number]

    # The agents

    def worker_started(self, worker: Worker) -> None:
        super().worker_started(worker)
        incarnation = worker.owner.stamp.incarnation
        life = self.lives[worker.owner.place.life]
        before = self._took_part.setdefault(life.ref.incarnation, incarnation)
        is_given_up = self._has_put_back and before not in self.verdicts
        # The record has the verdict of the life before alone: nobody knows one that is older.
        is_old = any(before < number < incarnation for number in self.verdicts)
        if self._last_number(before) != incarnation and not is_given_up and not is_old:
            raise Violation("life", f"{life.ref} takes part in another life of the job")

    def _last_number(self, incarnation: int) -> int:
        """The present number of the life that once had this number."""
        while incarnation in self._renamed:
            incarnation = self._renamed[incarnation]
        return incarnation

    def worker_ended(self, worker: Worker) -> None:
        super().worker_ended(worker)
        end = worker.ended
        if self._is_gentle and end is not None and (end.was_asked or end.code != 0):
            raise Violation("takeover", f"{worker.owner.place.name} noticed it: {end}")

    def follows(self, incarnation: str, epoch: int) -> None:
        before = self._followed.get(incarnation, 0)
        if epoch_number(epoch) < epoch_number(before):
            raise Violation("epoch", f"{incarnation} follows an earlier coordinator than before")
        self._followed[incarnation] = epoch

    def told(self, incarnation: str, message: m.ToAgent) -> None:
        super().told(incarnation, message)
        match message:
            case m.Attached(epoch=epoch, resumed=resumed):
                if epoch not in self._epochs:
                    raise Violation("durable", f"{incarnation} attached to an epoch of nobody")
                life = self.lives[incarnation]
                self._attached_to[incarnation] = self._epochs[epoch]
                # The leader that has lost an agent gives it no place back by that.
                if resumed and not life.is_leaving and life.lost_by != epoch:
                    life.lost_at = None
            case m.Ack(number):
                said = self._said.get((incarnation, self._attached_to[incarnation]), {})
                for each in [each for each in said if each <= number]:
                    self._check_acknowledged(incarnation, said.pop(each))
            case m.HeartbeatAck(number):
                if (incarnation, number) in self._late:
                    raise Violation("hold", f"heartbeat {number} of {incarnation} was answered")
            case m.Ended(stamp, verdict):
                known = self.verdicts.get(self._last_number(stamp.incarnation))
                if known != replace(verdict, ended_s_ago=None):
                    raise Violation("durable", f"{incarnation} hears {verdict}, and not {known}")
            case m.Assigned() | m.StartNow() | m.StopNow():
                self._check_durable(incarnation, message)
        if isinstance(message, m.Positioned) and message.told is not None:
            self._note_position(incarnation, message.told)

    def _note_position(self, incarnation: str, told: Position) -> None:
        self._told_of.setdefault(incarnation, set()).add(told.epoch)
        self._told_lives.setdefault(incarnation, set()).add(told.told_life)
        charged = self._charged.setdefault(incarnation, {})
        charged[told.told_life] = max(told.restarts, charged.get(told.told_life, 0))
        before = self._positions.get(incarnation, told)
        self._positions[incarnation] = max(before, told, key=lambda each: each.order)

    def _check_acknowledged(self, incarnation: str, report: m.Report) -> None:
        job = self._job
        if job is None or job.verdict is not None:
            return
        match report:
            case m.Failed(stamp):
                is_passed = job.judged_round > stamp.round or job.round < stamp.round
                is_passed |= not job.is_active and self._needs_no_report(job, incarnation)
            case m.Succeeded(stamp) if stamp in self.worlds and not self._asks(job):
                place = self.worlds[stamp].places.get(incarnation)
                is_over = not job.is_active or job.round != stamp.round
                is_passed = is_over or place is None or is_set(job.succeeded, place.group_rank)
            case _:
                return
        if not is_passed and stamp.incarnation == job.incarnation:
            raise Violation("durable", f"{report} of {incarnation} is acknowledged, not recorded")

    def _needs_no_report(self, job: JobRecord, incarnation: str) -> bool:
        """It is recorded what the failed round may be charged for, or that it ended for another
        reason; or what failed on this node does not count, as it was told to go."""
        if job.blamed is not None or job.end_reason is None:
            return job.blamed is not None
        node_id = self.lives[incarnation].ref.node_id
        states = (each.state for each in self.jobs.values() if each.coordinator == self.leader)
        counts = any(report.node_id == node_id for state in states for report in state.reports)
        return job.end_reason.kind is not EndKind.FAILURE or not counts

    def _asks(self, job: JobRecord) -> bool:
        """Workers may have been asked for a last checkpoint: what follows is not held for good."""
        return bool(self.asked) or job.settings.on_join is OnJoin.AT_CHECKPOINT

    def _check_durable(
        self, incarnation: str, message: m.Assigned | m.StartNow | m.StopNow
    ) -> None:
        job, stamp = self._job, message.stamp
        if job is not None and (job.incarnation > stamp.incarnation or job.verdict is not None):
            return
        newest = -1 if job is None or job.newest_round is None else job.newest_round
        is_recorded = job is not None and job.incarnation == stamp.incarnation
        is_recorded = is_recorded and newest >= stamp.round
        is_over = newest > stamp.round
        match message:
            case m.Assigned(_, assignment):
                is_recorded &= job is not None and assignment.restart_count <= job.restarts
                if is_recorded:
                    self._check_place(incarnation, message)
                    self._check_budget(incarnation, message)
            case m.StartNow():
                is_recorded &= job is not None and (is_over or job.is_started)
            case _:
                is_recorded &= job is not None and (is_over or not job.is_active)
        if not is_recorded:
            raise Violation("durable", f"{incarnation} is told {message}, and it is not recorded")

    def _check_budget(self, incarnation: str, message: m.Assigned) -> None:
        """Check that a charge stays, as far as an agent was told of it. A round that goes on has
        the count with which it was formed."""
        if (incarnation, message.stamp) in self._named:
            return
        self._named.add((incarnation, message.stamp))
        firsts, life = self._first_numbers, message.stamp.incarnation
        first, charged = firsts.get(life, life), self._charged.get(incarnation, {}).items()
        known = max((n for each, n in charged if firsts.get(each, each) == first), default=0)
        if message.assignment.restart_count < known:
            text = f"{message.stamp} tells of {message.assignment.restart_count} restarts"
            raise Violation("budget", f"{text}, and {incarnation} knows of {known}")

    def _check_place(self, incarnation: str, message: m.Assigned) -> None:
        stamp = message.stamp
        if stamp not in self.worlds:
            draft = self._drafts.pop((self._epochs[self._followed[incarnation]], stamp), None)
            if draft is None:
                raise Violation("world", f"nobody has formed {stamp}, which {incarnation} is told")
            by = self._formed_by.get(stamp), self._forgotten.get(stamp)
            if draft.coordinator not in by:
                raise Violation("world", f"{stamp} was formed by one that had not recorded it")
            self.worlds[stamp] = draft
        if self.worlds[stamp].places.get(incarnation) != message.assignment:
            raise Violation("world", f"{stamp} has two worlds: {incarnation} has another place")


def _covers_told(job: JobRecord, told: Position) -> bool:
    """Whether the record has all that matters of this position, or is of a later life."""
    if job.incarnation != told.told_life:
        return job.incarnation > told.told_life and job.newest_round is not None
    is_newest = job.newest_round is not None and job.newest_round >= told.last_round
    return (is_newest or job.verdict is not None) and job.restarts >= told.restarts


def _covers(now: bytes, before: bytes) -> bool:
    old = int.from_bytes(before, "little")
    return int.from_bytes(now, "little") & old == old
