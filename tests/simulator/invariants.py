"""Rules that must hold in every simulated job, whatever goes wrong; checked as things happen.

* Two rounds' worlds run at once only where a member of the older one was lost, or its coordinator,
  or where it drains (it takes its time, and the others do not wait); never on one machine. A node
  that was lost may also start its workers only then: it reads late that it was.
* A node's workers are dead when its lease is over, counted from when the coordinator heard it last
  (in a job of one node at most a stopped agent is left alone: see `agent.run`; where another node
  takes its place meanwhile, two worlds run).
* The ranks of a world are total and unique; a round has one world; round numbers only grow.
* A life of a job has one verdict; every member that lives and was not lost hears it.
* A round is charged once at most, by a failure of its workers, when none of them runs any more, and
  the first of them is blamed.
* SUCCEEDED: every rank of one round exited with 0, of itself. When that is so and nothing was
  wrong, the job has succeeded.
* A node is lost only if it died, was silent, or lost its connection; one that has been expelled
  for good never takes part in that life of the job again.
* An agent with the id of another agent takes its place only after that agent was lost. The newcomer
  is refused only after a coordinator has read a message of that agent.
* Why rounds end, and what that counts for: `rules/round_ends.py`.
* A job's time and its steps are accounted for (`facts.py`). Nothing raises.
"""

from __future__ import annotations

import signal

from msgspec.structs import replace
from tests.simulator.facts import Job, Life, Violation, World, name_of
from tests.simulator.rules.fitness import FitnessRules
from tests.simulator.rules.round_ends import RoundRules
from tests.simulator.workers import KILL_S, Worker

from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, SessionLost
from rallypoint.core.liveness import AGENT_FIRST_NS, DEATHS
from rallypoint.core.model import Assignment, NodeRef, Outcome, SharedSettings, Stamp, Verdict
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.core.round_state import RoundPhase
from rallypoint.core.search import NO_ANSWER_S

SLACK_S = 0.05
"""For the network and the scheduler of one machine."""
LEAVING_S = 6.0 / 0.92
"""A node that leaves may take its shutdown grace."""
MARGIN_S = 2.0
TOLD_S = 3.0
"""Within this time after the last disturbance every node is told what holds."""
DUPLICATE, REPLACED = "is used by another running agent", "another agent has joined as node"
"""Why an agent is refused, and why one that was lost may not come back."""
BLAME_S = 0.3
"""Failures so near to each other may be taken for each other's consequence."""
SCHEDULER_SIGNALS = (1, 2, 3, 15)
"""Of these a worker is a suspect first."""


class Invariants:
    """Told of everything that happens; raises Violation."""

    def __init__(self, settings: SharedSettings) -> None:
        self._lease_s, self._grace_s = settings.lease_s, settings.reconnect_grace_s
        self.now_s = 0.0
        self.disturbed_at = float("-inf")
        """When the network, a machine or an agent was last made to fail, or was still failing."""
        self.coordinator = 0
        """The number of the one that lives."""
        self.lives: dict[str, Life] = {}
        self._rounds = RoundRules(settings, self.lives)
        self.worlds: dict[Stamp, World] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.asked: set[Outcome] = set()
        """What persons have asked for: CANCELLED, PREEMPTED."""
        self.jobs: dict[int, Job] = {}
        self.owed: dict[str, Verdict] = {}
        """Who must hear which verdict."""
        self.fitness = FitnessRules({})
        """The rules of bad machines."""
        self.is_broken = False
        """Whether the program fails everywhere."""
        self.judged: dict[int, int] = {}
        """The newest round of each life that was judged."""
        self.lied_at: dict[str, float] = {}
        """When each agent that breaks its promises has made one last."""
        self.unread: dict[str, int] = {}
        """How many messages of each agent, that is about to be given up, were not read."""

    # The coordinator

    @property
    def leader(self) -> int:
        """The number of the coordinator that leads."""
        return self.coordinator

    @property
    def leadership(self) -> int:
        """The number of the newest time at which a coordinator came to lead: a process that leads
        again remembers nothing of the last time."""
        return self.leader

    @property
    def leading_life(self) -> str:
        """The incarnation of the agent that leads, or did last; empty: none has."""
        return ""

    def held(self, coordinator: int) -> None:
        """This one knows that it leads."""

    def lied(self, incarnation: str) -> None:
        """The agent makes a promise that it does not keep, or one of another node."""
        self.lied_at[incarnation] = self.now_s

    def contradicted(self, coordinator: int) -> None:
        """The register has answered to this leader, and holds no record of it or an older one."""

    def told(self, incarnation: str, message: m.ToAgent) -> None:
        """An agent is told this."""
        if isinstance(message, m.Refused):
            self.lives[incarnation].was_refused = True
            if DUPLICATE in message.text:
                self._check_duplicate(self.lives[incarnation])

    def _check_duplicate(self, refused: Life) -> None:
        came_at = refused.came_at
        same = [life for life in self.lives.values() if life.ref.node_id == refused.ref.node_id]
        others = [life.heard_at or 0.0 for life in same if life is not refused]
        if came_at is None or max(others, default=0.0) < came_at:
            raise Violation("duplicate", f"{refused.ref} was refused, and no other was heard since")

    def closed(self, incarnation: str, coordinator: int, *, is_reset: bool) -> None:
        """The newest connection of this agent has ended. `is_reset`: not by the agent."""
        self.lives[incarnation].closed[coordinator] = self.now_s, is_reset

    def follows(self, incarnation: str, epoch: int) -> None:
        """An agent takes the word of this coordinator."""

    def stored(self, record: bytes) -> None:
        """This is in the register."""

    @property
    def has_verdict(self) -> bool:
        """The register holds the verdict of the job."""
        return False

    def put_back(self, record: bytes | None) -> None:
        """Somebody else has put this earlier record back; None: has removed the newest one."""

    def read(
        self, incarnation: str, coordinator: int, message: m.ToCoordinator, *, is_late: bool
    ) -> None:
        """A coordinator is about to handle a message of this agent. `is_late`: it may lead no more,
        by what its register has answered."""
        self._heard(incarnation, coordinator)

    def _heard(self, incarnation: str, coordinator: int) -> None:
        life = self.lives[incarnation]
        self._check_fence(life)
        if life.came_at is None:
            life.came_at = self.now_s
        life.heard_at = life.heard_by[coordinator] = self.now_s

    def steps(self, state: JobState, coordinator: int) -> None:
        """The job's machine is about to be given an event."""
        if id(state) in self.jobs:
            return
        verdict, newest = state.verdict, state.round.round
        newest -= state.round.phase is not RoundPhase.ACTIVE
        job = Job(state, coordinator, state.ledger.total, newest, verdict)
        self.jobs[id(state)] = job
        self._rounds.begin(state, newest)
        if verdict is not None:
            self._check_old(state, verdict)

    def _check_old(self, state: JobState, verdict: Verdict) -> None:
        if self.verdicts.get(state.incarnation) != verdict:
            raise Violation("verdict", f"life {state.incarnation} never had this: {verdict}")

    def stepped(self, state: JobState, event: JobEvent, effects: list[JobEffect]) -> None:
        """The job's machine was given an event."""
        job = self.jobs[id(state)]
        self._rounds.stepped(state, event, effects, job.round, self.now_s)
        if isinstance(event, SessionLost):
            self._rounds.lost(event, job.coordinator, self.now_s)
            self._lost(event, job.coordinator)
        for effect in effects:
            if isinstance(effect, m.ToNode):
                self._told(effect)
        self._check_charge(job, effects)
        self._check_fitness(job, event, effects)
        assigned = [
            (effect.ref, effect.message)
            for effect in effects
            if isinstance(effect, m.ToNode) and isinstance(effect.message, m.Assigned)
        ]
        if state.round.round != job.round and assigned:
            self._formed(job, assigned)
        if state.verdict != job.verdict:
            self._judged(job, state.verdict)

    def _check_fitness(self, job: Job, event: JobEvent, effects: list[JobEffect]) -> None:
        state = job.state
        self.fitness.stepped(state, event, effects, self.now_s)
        cause = state.last_cause
        if state.judged_round <= self.judged.get(state.incarnation, 0):
            return
        self.judged[state.incarnation] = state.judged_round
        if cause is not None:
            self.fitness.judged(state, cause, self.now_s, is_broken=self.is_broken)

    def _told(self, effect: m.ToNode) -> None:
        life = self.lives[effect.ref.incarnation]
        match effect.message:
            case m.Expelled(stamp, why, final):
                if why.startswith("would not stop"):
                    self._check_told(life)
                if why.startswith(REPLACED) and life.lost_at is None:
                    raise Violation("duplicate", f"{life.ref} lost its place, and was not lost")
                life.lost_at, life.lost_by = self.now_s, self.leadership
                life.banned_in = stamp.incarnation if final else life.banned_in
            case m.LeaveNow():
                life.lost_at, life.is_leaving = self.now_s, True

    def _check_told(self, life: Life) -> None:
        """A node that is given up since it would not stop has been told to, unless that was lost:
        nobody waits until it notices that its connection has broken. It is fenced as any other."""
        if self._is_cut(life):
            return
        worlds = (world.running.values() for world in self.worlds.values())
        own = [w for each in worlds for w in each if w.owner.place.life == life.ref.incarnation]
        undisturbed_s = self.now_s - self.disturbed_at
        if own and undisturbed_s > TOLD_S and not any(worker.was_asked for worker in own):
            raise Violation("stop", f"{life.ref} would not stop, and was not told to")

    def _is_cut(self, life: Life) -> bool:
        """Its connection broke silently, and it may not have noticed that yet."""
        return self.now_s < life.cut_at + self._lease_s / life.rate + TOLD_S

    def _lost(self, event: SessionLost, coordinator: int) -> None:
        life = self.lives[event.ref.incarnation]
        life.lost_at, life.lost_by = self.now_s, self.leadership
        self.owed.pop(event.ref.incarnation, None)
        silent_s = self.now_s - life.heard_by.get(coordinator, 0.0)
        if event.why in DEATHS and not (life.died and not life.runs):
            raise Violation("death", f"{event.ref} is called dead, and is not")
        if event.why.startswith("its connection broke") and silent_s < 0.9 * self._grace_s:
            raise Violation("silence", f"{event.ref} was lost {silent_s:.1f} s after its word")
        if event.why.startswith("it sent no heartbeat") and silent_s < 0.9 * self._lease_s:
            raise Violation("silence", f"{event.ref} was lost after {silent_s:.1f} s of silence")

    def _check_charge(self, job: Job, effects: list[JobEffect]) -> None:
        total, before = job.state.ledger.total, job.charges
        job.charges = total
        if total == before:
            return
        # The job may have another number since that round was formed.
        rounds = [Stamp(number, job.state.judged_round - 1) for number in job.state.numbers]
        ended = next((stamp for stamp in rounds if stamp in self.worlds), rounds[0])
        world = self.worlds.get(ended)
        # Two: an earlier failure was taken for its machine's, and is the program's.
        most = before + (2 if any(x.is_programs for x in job.state.round.fitness.failures) else 1)
        charged = world is not None and any(state is job.state for state in world.charged_by)
        if world is None or not before < total <= most or charged:
            raise Violation("budget", f"round {ended.round} was charged {total - before} times")
        world.charged_by.append(job.state)
        settings = job.state.round.settings
        if total > settings.max_restarts + (total - before - 1) and not settings.restart_window_s:
            raise Violation("budget", f"{total} of {settings.max_restarts} restarts were used")
        self._check_stopped(ended, world)
        failed = self._failures(world)
        if not failed and not self._is_failed_start(job.state, world):
            raise Violation("budget", f"round {ended.round} was charged, and no worker had failed")
        named = {e.node_id for e in effects if isinstance(e, Record) and e.kind.name == "restart"}
        for node_id in named if failed else ():
            self._check_blame(world, failed, node_id)

    def _full(self, world: World) -> list[str]:
        """The machines of this world that can't start workers."""
        return self.fitness.full([self.lives[life].ref.node_id for life in world.lives])

    def _is_failed_start(self, state: JobState, world: World) -> bool:
        return self.fitness.is_charged_for_a_start(state, self._full(world))

    def _check_stopped(self, stamp: Stamp, world: World) -> None:
        """Nobody is blamed before all have stopped, or are lost."""
        for worker in world.running.values():
            if self._life_of(worker).lost_at is None:
                raise Violation("blame", f"{stamp} is judged while {name_of(worker)} runs")

    def _check_blame(self, world: World, failed: list[Worker], node_id: str) -> None:
        """Where nothing disturbs the reports, who failed first is blamed."""
        first = failed[0].ended
        assert first is not None
        if self.disturbed_at >= first.at_s - 3.0 or self._is_cut(self._life_of(failed[0])):
            return
        for worker in failed:
            assert worker.ended is not None
            if worker.ended.signal in SCHEDULER_SIGNALS:
                return
            if worker.ended.at_s > first.at_s + BLAME_S:
                break
            if worker.tells_of_lost_peer and not failed[0].tells_of_lost_peer:
                continue
            if self._life_of(worker).ref.node_id == node_id:
                return
        if not self._was_killed_then(world, node_id, first.at_s):
            raise Violation("blame", f"{node_id} is blamed, and {name_of(failed[0])} failed first")

    def _was_killed_then(self, world: World, node_id: str, at_s: float) -> bool:
        """Whether somebody killed a worker of this node while it was told to stop: its agent can't
        tell that from a failure at the same time."""
        for worker in world.workers.values():
            end = worker.ended
            if end is None or self._life_of(worker).ref.node_id != node_id:
                continue
            if end.signal == signal.SIGKILL and end.was_asked and end.at_s <= at_s + BLAME_S:
                return True
        return False

    def _life_of(self, worker: Worker) -> Life:
        return self.lives[worker.owner.place.life]

    def _formed(self, job: Job, assigned: list[tuple[NodeRef, m.Assigned]]) -> None:
        state, stamp = job.state, assigned[0][1].stamp
        if self._is_known(stamp) or stamp.round <= job.round:
            raise Violation("round", f"{stamp} was formed twice")
        self._check_success(Stamp(stamp.incarnation, job.round), None)
        job.round = stamp.round
        places = sorted((each.assignment for _, each in assigned), key=lambda a: a.group_rank)
        self._check_ranks(stamp, places, [ref for ref, _ in assigned])
        if any(place.restart_count != state.ledger.total for place in places):
            raise Violation("budget", f"{stamp} tells another number of restarts than there were")
        for ref, _ in assigned:
            if self.lives[ref.incarnation].banned_in == stamp.incarnation:
                raise Violation("expelled", f"{ref} was expelled for good, and is in {stamp}")
            self.lives[ref.incarnation].lost_at = None
        if (size := places[0].world_size) % state.round.settings.world_multiple_of:
            raise Violation("multiple", f"{stamp} has {size} workers")
        own = {ref.incarnation: message.assignment for ref, message in assigned}
        self.fitness.formed(state, self.now_s)
        self._keep(stamp, World(job.coordinator, self.now_s, tuple(own), size, places=own))

    def _is_known(self, stamp: Stamp) -> bool:
        return stamp in self.worlds

    def _keep(self, stamp: Stamp, world: World) -> None:
        self.worlds[stamp] = world

    def _check_ranks(self, stamp: Stamp, places: list[Assignment], refs: list[NodeRef]) -> None:
        base = 0
        for number, place in enumerate(places):
            workers = len({ref.node_id for ref in refs}) == len(refs) == len(places)
            if place.group_rank != number or place.base_rank != base or not workers:
                raise Violation("ranks", f"the ranks of {stamp} are not total and unique")
            after = places[number + 1].base_rank if number + 1 < len(places) else place.world_size
            base = after
            if place.group_world_size != len(places) or after <= place.base_rank:
                raise Violation("ranks", f"the sizes of {stamp} do not fit its ranks")

    def _judged(self, job: Job, verdict: Verdict | None) -> None:
        if verdict is None or job.verdict is not None:
            raise Violation("verdict", f"it changed from {job.verdict} to {verdict}")
        job.verdict = verdict
        stamp = Stamp(job.state.incarnation, verdict.round)
        self._check_success(stamp, verdict)
        if verdict.outcome in (Outcome.CANCELLED, Outcome.PREEMPTED):
            if verdict.outcome not in self.asked:
                raise Violation("verdict", f"nobody asked for this: {verdict.text}")
        elif verdict.outcome is Outcome.FAILED:
            world = self.worlds[stamp]
            failed = self._failures(world)
            if not failed and not self._is_failed_start(job.state, world):
                raise Violation("verdict", f"no worker has failed in {stamp}: {verdict.text}")
            self._check_stopped(stamp, world)
            if failed and verdict.cause is not None:
                self._check_blame(world, failed, verdict.cause.node_id)
        members = job.state.round.members.values()
        self._gave(stamp.incarnation, verdict, [member.ref.incarnation for member in members])

    def _gave(self, number: int, verdict: Verdict, members: list[str]) -> None:
        if number in self.verdicts:
            raise Violation("verdict", f"life {number} has two: {self.verdicts[number]}, {verdict}")
        self.verdicts[number] = verdict
        self.owed |= dict.fromkeys(members, verdict)

    def _check_success(self, stamp: Stamp, verdict: Verdict | None) -> None:
        """`verdict`: None where the round is followed by another."""
        world = self.worlds.get(stamp)
        succeeded = verdict is not None and verdict.outcome is Outcome.SUCCEEDED
        if world is None:
            if succeeded:
                raise Violation("success", f"there was no {stamp}")
            return
        ends = [worker.ended for worker in world.workers.values()]
        well = [end for end in ends if end and end.code == 0 and not end.was_asked]
        if succeeded and len(well) != world.size:
            raise Violation("success", f"{len(well)} of {world.size} ranks of {stamp} ended well")
        is_quiet = self.disturbed_at < world.formed_at and not self.asked
        if not succeeded and is_quiet and len(well) == world.size:
            raise Violation("success", f"all ranks of {stamp} ended well, and it did not count")

    @staticmethod
    def _failures(world: World) -> list[Worker]:
        """Workers that failed of themselves, the first of them first."""
        ended = [(w.ended, w) for w in world.workers.values() if w.ended is not None]
        failed = [(end.at_s, w.rank, w) for end, w in ended if end.code != 0 and not end.was_asked]
        return [worker for *_, worker in sorted(failed, key=lambda each: each[:2])]

    # The machines

    def worker_started(self, worker: Worker) -> None:
        """On a machine."""
        stamp, life = worker.owner.stamp, self.lives[worker.owner.place.life]
        world = self.worlds.get(stamp)
        if world is None or life.ref.incarnation not in world.lives:
            raise Violation("world", f"{name_of(worker)} of {stamp}, which was not formed so")
        if worker.rank in world.workers or not 0 <= worker.rank < world.size:
            raise Violation("ranks", f"rank {worker.rank} of {stamp} started twice")
        self._check_fence(life, starts=True)
        self._check_alone(worker, stamp, world)
        world.workers[worker.rank] = worker
        world.running[worker.owner.place.name, worker.pid] = worker
        life.runs.add(worker.pid)

    def _check_alone(self, worker: Worker, stamp: Stamp, world: World) -> None:
        is_lost = self.lives[worker.owner.place.life].lost_at is not None
        for other, older in self.worlds.items():
            for each in older.running.values() if other != stamp else ():
                if each.owner.place.name == worker.owner.place.name:
                    raise Violation("world", f"{other} runs on a machine where {stamp} starts")
                if is_lost and stamp.incarnation == other.incarnation and stamp.round < other.round:
                    continue
                life = self.lives[each.owner.place.life]
                is_member = life.lost_at is None or other.incarnation < stamp.incarnation
                is_excused = self._is_orphaned(older) or self._is_led_astray(life)
                is_excused |= self._is_unknown_to(world, other)
                if life.has_fence and is_member and not is_excused:
                    raise Violation("world", f"{stamp} starts while {name_of(each)} is in {other}")

    def _is_orphaned(self, world: World) -> bool:
        """Nobody knows of it any more."""
        return world.coordinator != self.coordinator

    def _is_unknown_to(self, world: World, other: Stamp) -> bool:
        """Whether no node of the world can know of this other round."""
        return False

    def _is_led_astray(self, life: Life) -> bool:
        """Whether the workers of this node run on because another node has lied."""
        return False

    def worker_ended(self, worker: Worker) -> None:
        """In whatever way."""
        life = self.lives[worker.owner.place.life]
        self._check_fence(life)
        life.runs.discard(worker.pid)
        self.worlds[worker.owner.stamp].running.pop((worker.owner.place.name, worker.pid), None)

    def _check_fence(self, life: Life, *, starts: bool = False) -> None:
        """No worker runs on after its node's lease, counted from when it was heard; nor for much
        longer than that after its node was given up, or after the time that a leaving one has."""
        if not life.has_fence or life.heard_at is None or not (life.runs or starts):
            return
        lease_s = (self._lease_s + AGENT_FIRST_NS / 1e9) / life.rate
        if self.now_s > life.heard_at + lease_s + KILL_S + SLACK_S:
            silent_s = self.now_s - life.heard_at
            raise Violation("fence", f"workers of {life.ref} run {silent_s:.2f} s after its word")
        if life.lost_at is None:
            return
        leaving_s = LEAVING_S if life.is_leaving else 0.0
        if self.now_s > life.lost_at + lease_s + leaving_s + MARGIN_S:
            lost_s = self.now_s - life.lost_at
            raise Violation("fence", f"workers of {life.ref} run {lost_s:.2f} s after its loss")

    def check_fences(self) -> None:
        """Of all nodes, now."""
        for life in self.lives.values():
            self._check_fence(life)

    def finished(self, incarnation: str, finish: Finish | None) -> None:
        """An agent has said how it ended."""
        life = self.lives[incarnation]
        if life.runs:
            raise Violation("leftover", f"{life.ref} ended, and workers of it run")
        owed = self.owed.pop(incarnation, None)
        if finish is not None and finish.verdict is not None:
            heard = replace(finish.verdict, ended_s_ago=None)
            if heard not in self.verdicts.values():
                raise Violation("verdict", f"{life.ref} heard one that was not given: {heard}")
            if owed is not None and heard != owed:
                raise Violation("verdict", f"{life.ref} heard {heard}, not {owed}")
        elif owed is not None and not (life.was_refused or self._may_miss_it(finish)):
            raise Violation("verdict", f"{life.ref} did not hear it: {owed.text}")

    def _may_miss_it(self, finish: Finish | None) -> bool:
        """It left by itself, or could not reach the coordinator for as long as it may try."""
        if finish is None or finish.kind is FinishKind.SIGNAL:
            return finish is not None
        is_lost = finish.kind is FinishKind.COORDINATOR_LOST
        return is_lost and self.now_s - self.disturbed_at < NO_ANSWER_S

    def coordinator_started(self, number: int) -> None:
        """Note that this coordinator lives now."""
        self.coordinator = number

    def coordinator_died(self) -> None:
        """Whom it owed a verdict may never hear it."""
        self.coordinator = 0
        self.owed.clear()

    def agent_died(self, incarnation: str) -> None:
        """It was killed."""
        life = self.lives[incarnation]
        life.died, life.died_at = True, self.now_s
        self.owed.pop(incarnation, None)

    @property
    def any_runs(self) -> bool:
        """Some worker."""
        return any(world.running for world in self.worlds.values())
