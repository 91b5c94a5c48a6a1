"""The jobs of one coordinator, and the assignment of agents to them (`core/job_lives.py` decides).

A coordinator inside an agent serves that agent's job only; alone (`rallypoint serve`) it serves
every job, each under its run id. With registers these are the jobs that it leads
(`leading/leaderships.py`): agents of another job wait until it does.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from rallypoint.clocks import Timers, wall_time
from rallypoint.coordinator.connection import ServerConnection, answer
from rallypoint.coordinator.hosted_job import HostedJob, NodeRefusals
from rallypoint.coordinator.hosting import Hosting, turn_away
from rallypoint.core import claims
from rallypoint.core import event_kinds as kinds
from rallypoint.core import job_lives as lives
from rallypoint.core import messages as m
from rallypoint.core.job_lives import (
    AHEAD_MAX_MS,
    Attachment,
    BeginLife,
    HearVerdict,
    Hosted,
    JobLives,
    Life,
    TakePart,
)
from rallypoint.core.job_state import JobState, ended_job, new_job
from rallypoint.core.model import SharedSettings, Verdict
from rallypoint.core.sessions import Sessions
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.watch.job_view import job_line
from rallypoint.core.watch.questions import ALL_JOBS
from rallypoint.errors import MessageError, RallypointError
from rallypoint.observe.faults import describe_fault

if TYPE_CHECKING:  # Most coordinators have no registers.
    from rallypoint.coordinator.leading.leadership import Leadership
    from rallypoint.coordinator.leading.record_gate import RecordedLife

EARLY_MAX = 16  # heartbeats: after so many an agent has hung up
NOT_GENUINE = (
    "this node reports a newer record of the job, and can't prove that a leader sent it: start "
    "the agent of this node again"
)


class _Waiting(Struct, eq=False):
    """An agent that waits until this coordinator leads its job, and then is attached."""

    connection: ServerConnection
    hello: m.Attach
    heartbeats: list[m.Heartbeat] = field(default_factory=list)
    """The first heartbeats of the agent, which are answered when it has attached."""


class HostedJobs:
    """The jobs of a coordinator. For the thread of the loop. No call blocks; `wait_empty` waits."""

    def __init__(self, hosting: Hosting) -> None:
        self._loop = asyncio.get_running_loop()
        self._hosting = hosting
        self._refusals = NodeRefusals(hosting.on_record)
        self._epoch = hosting.epoch()
        is_alone = hosting.only is not None
        begins_anew = not is_alone or hosting.led is not None
        self._lives = JobLives(self._epoch, is_alone=is_alone, begins_anew=begins_anew)
        self._waits: Timers[lives.Wait] = Timers(self._loop, self._wait_ended)
        self._jobs: dict[str, HostedJob] = {}
        """The life of each job that new agents join, by run id."""
        self._ended: list[HostedJob] = []
        """The ended lives that are still hosted, in the order in which they were added here."""
        self._empty: asyncio.Future[None] | None = None
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        """The agents that wait until this coordinator leads their job, by run id and by the agent's
        id."""
        self._leading: set[asyncio.Task[None]] = set()
        self._own_agent = hosting.own_agent
        self._is_closed = False
        if hosting.only is not None:
            self._host_only(hosting.only)

    @property
    def nodes(self) -> list[str]:
        """The ids of all nodes with a session in a hosted life, without the node of this process.

        A node that has left, or is lost, has no session.
        """
        refs = [(job, session.ref) for job in self.all for session in job.sessions]
        return [ref.node_id for job, ref in refs if ref.incarnation != job.own_agent]

    @property
    def is_over(self) -> bool:
        """Whether every job here has ended; also true if there is none."""
        return all(job.verdict is not None for job in self._jobs.values())

    def lives_in(self, incarnation: str) -> None:
        """Note the unique id (incarnation) of the agent in whose process this coordinator runs.

        The coordinator ends soon after that agent has left.
        """
        self._own_agent = incarnation
        for job in self._jobs.values():
            job.lives_in(incarnation)

    async def wait_empty(self) -> None:
        """Wait until some hosted life of a job has no session of an agent left.

        Returns at once if `nodes` is empty. For a coordinator in an agent, which hosts one job.
        """
        if self.nodes:
            self._empty = self._loop.create_future()
            await self._empty

    def close(self) -> None:
        """Close every job, its connections and its waits. May be called twice."""
        self._is_closed = True
        for job in self.all:
            job.close()
        self._waits.want({})
        self._refusals.close()
        self._jobs.clear()
        self._ended.clear()
        for task in self._leading:
            task.cancel()

    def attach(self, connection: ServerConnection, run_id: str, hello: m.Attach) -> None:
        """Handle an agent's first message: attach it, keep it waiting, refuse it or hang up.

        It waits where this coordinator has to become the leader of its job first. Raises
        MessageError if `hello` names another job than `run_id`, which the handshake has named.
        """
        if hello.settings.run_id != run_id:
            raise MessageError(f"a node of job {run_id!r} attached to {hello.settings.run_id!r}")
        if self._is_closed:  # This process may lead the job again, and then with another one.
            connection.close()
            return
        text = (
            self._hosting.refusal(run_id)
            or claims.settings_refused(hello.settings)
            or self._no_room(hello)
        )
        if not text and self._hosting.led is not None and self._leadership(run_id) is None:
            if self._hosting.only is not None:  # This node no longer leads: it looks again.
                connection.close()
                return
            self._wait_to_lead(connection, run_id, hello)
            return
        if not text and (leadership := self._leadership(run_id)) is not None:
            told = hello.told
            if told is not None and leadership.duties.is_behind(told):
                if leadership.duties.is_genuine(told):
                    connection.close()  # It finds the next leader.
                    leadership.learn(told, hello.settings)
                    return
                text = NOT_GENUINE
        if not text:
            job = self._job_of(hello)
            if job is None:  # The agent comes again.
                connection.close()
                return
            text = job.crowded(hello.incarnation)
            if not text:
                connection.owner = job
                job.attach(connection, hello)
                if job is self._jobs.get(run_id):
                    self._do(self._lives.used(run_id, len(job.sessions)))
                return
        self._refusals.refuse(run_id, connection, text)

    def heartbeat(self, connection: ServerConnection, heartbeat: m.Heartbeat) -> None:
        """Keep the heartbeat of an agent that waits until this coordinator leads its job.

        It is answered when the agent has attached. Heartbeats of other agents, and those after the
        first 16 of one agent, are dropped.
        """
        waiting = connection.owner
        if isinstance(waiting, _Waiting) and len(waiting.heartbeats) < EARLY_MAX:
            waiting.heartbeats.append(heartbeat)

    def asked(self, connection: ServerConnection, run_id: str, question: m.Ask) -> None:
        """Handle the request or question of a person, who waits on this connection.

        A question about all jobs gets one line for each. One about a job that is not hosted here is
        refused, in words. Raises MessageError as `JobWatch.asked` does.
        """
        if (job := self._jobs.get(run_id)) is not None:
            connection.owner = job
            job.asked(connection, question)
        elif run_id == ALL_JOBS and question.wants_all:
            lines = tuple(job_line(job.watch.view) for job in self._jobs.values())
            answer(connection, lines, is_last=True)
        else:
            task = self._loop.create_task(turn_away(self._hosting, connection, run_id))
            self._leading.add(task)
            task.add_done_callback(self._leading.discard)

    def agent_died(self, connection: ServerConnection, run_id: str, notice: m.AgentDied) -> None:
        """Handle the report of an agent's death from its guard, a helper process that outlives it.

        The agent may have attached only to another coordinator, from which this one has taken over
        or is about to.
        """
        lives = [job for job in self.all if job.settings.run_id == run_id]
        known_by = [job for job in lives if job.knows(notice.incarnation)]
        for job in known_by:
            job.agent_died(connection, notice)
        if not known_by and notice.place is not None:
            for job in lives:
                job.told_dead([notice.place])
            if self._hosting.led is not None and self._leadership(run_id) is None:
                self._lives.died_early(run_id, notice.place)
        connection.close()

    @property
    def all(self) -> list[HostedJob]:
        """The ended lives that agents have not left yet, and the lives that new agents join."""
        return [*self._ended, *self._jobs.values()]

    def _no_room(self, hello: m.Attach) -> str:
        """Return why no further life of a job can be hosted for the agent that attaches.

        Empty: one can, or the present life of its job runs here or has a session of this agent.
        Where too many lives are hosted, a job that all agents have left is forgotten.
        """
        run_id = hello.settings.run_id
        job = self._jobs.get(run_id)
        if job is not None and (job.verdict is None or job.knows(hello.incarnation)):
            return ""
        found = self._do(self._lives.room(run_id, len(self.all)))
        return found.text if isinstance(found, lives.NoRoom) else ""

    def _job_of(self, hello: m.Attach) -> HostedJob | None:
        """Return the life that this agent belongs to, which is begun or made where it is missing.

        None: the agent has to come again, since the verdict of its life is not recorded yet.
        """
        settings, run_id = hello.settings, hello.settings.run_id
        job = self._jobs.get(run_id)
        known_by = (each for each in self.all if each.settings.run_id == run_id)
        if (own := next((e for e in known_by if e.knows(hello.incarnation)), None)) is not None:
            return own
        known = None
        if hello.last_incarnation or hello.last_epoch:
            last = min(hello.last_incarnation, self._hosting.wall_ms() + AHEAD_MAX_MS)
            is_own = hello.last_epoch == self._epoch_of(run_id)
            if job is not None and last in job.life.earlier:
                last = job.life.incarnation
            known = Attachment(last, self._epoch if is_own else hello.last_epoch)
        hosted, now, wall_ms = self._hosted(run_id), self._loop.time(), self._hosting.wall_ms()
        differs = job is not None and bool(job.settings.differences(settings))
        placed = self._lives.came(run_id, known, hosted, now, wall_ms, differs=differs)
        match self._do(placed):
            case TakePart(incarnation):
                self._jobs[run_id].renumber(incarnation)
                return self._jobs[run_id]
            case BeginLife(incarnation, unheard):
                return self._begin(settings, incarnation, unheard, hosted.life)
            case HearVerdict(incarnation, verdict):
                return self._ended_life(settings, incarnation, verdict)
        return None

    def _hosted(self, run_id: str) -> Hosted:
        """Return the life of this job that new agents join, and the number of its ended lives."""
        held = len(self._ended_of(run_id))
        if (job := self._jobs.get(run_id)) is None:
            return Hosted(held=held)
        return Hosted(job.life, len(job.sessions), job.is_recorded, held)

    def _do(self, effects: list[lives.LivesEffect]) -> lives.LivesEffect | None:
        """Execute the effects, and return the decision for the caller.

        The decision is where an agent belongs, that it has to come again, or that there is no room.
        None: there is no decision among the effects.
        """
        found = None
        for effect in effects:
            match effect:
                case lives.End(run_id, True):
                    self._ended.append(self._jobs.pop(run_id))
                case lives.End(run_id):
                    self._jobs.pop(run_id).close()
                case lives.DropOldest(run_id):
                    oldest = self._ended_of(run_id)[0]
                    self._ended.remove(oldest)
                    oldest.close()
                case lives.FormerGone(run_id):
                    if (job := self._jobs.get(run_id)) is not None:
                        job.former_life_gone()
                case lives.HearDeaths(run_id, places):
                    self._jobs[run_id].told_dead(places)
                case lives.Forget(run_id):
                    self._do(self._lives.forgotten(run_id, self._hosted(run_id), self._loop.time()))
                    if self._hosting.led is not None:
                        self._hosting.led.remove(run_id)
                case _:
                    found = effect
        self._waits.want(self._lives.waits)
        return found

    def _wait_ended(self, wait: lives.Wait) -> None:
        self._do(self._lives.wait_ended(wait, len(self._ended_of(wait.run_id))))

    def _host_only(self, settings: SharedSettings) -> None:
        run_id, former = settings.run_id, None
        if (state := self._hosting.former) is not None:
            job = self._jobs[run_id] = self._host(state)
            job.see(job.watch.go_on)
            job.see(self._hosting.keep_history, job.watch, took_over=True)
            return
        if (leadership := self._leadership(run_id)) is not None:
            on_record = partial(self._hosting.on_record, run_id)
            leadership.keep(partial(self._deposed, run_id), on_record)
            if self._take_over(run_id, leadership):
                return
            former = leadership.duties.over
        now, wall_ms = self._loop.time(), self._hosting.wall_ms()
        first = self._lives.place(run_id, None, None, now, wall_ms)
        self._begin(settings, first.incarnation, 0, former)

    def _begin(
        self, settings: SharedSettings, incarnation: int, unheard: int, former: Life | None
    ) -> HostedJob:
        still_here = sum(len(each.sessions) for each in self._ended_of(settings.run_id))
        state = new_job(settings, incarnation, max(still_here, unheard))
        leadership = self._leadership(settings.run_id)
        led = None if leadership is None else leadership.begin(state, former)
        job = self._jobs[settings.run_id] = self._host(state, led)
        job.see(self._hosting.keep_history, job.watch)
        return job

    def _ended_life(
        self, settings: SharedSettings, incarnation: int, verdict: Verdict
    ) -> HostedJob:
        """Return the ended life of this number and these settings, to tell an agent its verdict.

        It is made from `verdict` if it is not hosted.
        """
        for job in self._ended:
            if job.settings == settings and job.life.incarnation == incarnation:
                return job
        job = self._host(ended_job(settings, verdict, incarnation))
        self._ended.append(job)
        self._do(self._lives.held(settings.run_id, len(self._ended_of(settings.run_id))))
        return job

    def _host(self, state: JobState, led: RecordedLife | None = None) -> HostedJob:
        def wall(at: float) -> float:
            return wall_time(self._loop.time() - at)

        run_id = state.round.settings.run_id
        epoch = self._epoch_of(run_id)
        handover, open_gate = (None, None) if led is None else (led.handover, led.open_gate)
        wall_ms = self._hosting.wall_ms
        sessions = Sessions(state, epoch, self._hosting.machine, wall, handover, wall_ms)
        on_record = partial(self._hosting.on_record, run_id)
        job = HostedJob(sessions, on_record, lambda: self._emptied(job), open_gate, self._refusals)
        job.lives_in(self._own_agent)
        return job

    # Jobs that are led by a register

    def _leadership(self, run_id: str) -> Leadership | None:
        """Return the leadership by which this coordinator leads the job.

        None: it does not lead the job, or hosts jobs without registers.
        """
        return None if self._hosting.led is None else self._hosting.led.of(run_id)

    def _epoch_of(self, run_id: str) -> int:
        """Return the epoch of this coordinator for the nodes of this job."""
        leadership = self._leadership(run_id)
        return self._epoch if leadership is None else leadership.lead.epoch.as_int()

    def _wait_to_lead(self, connection: ServerConnection, run_id: str, hello: m.Attach) -> None:
        """Keep the agent waiting while this coordinator tries to become the leader of its job.

        Then the agent is attached, or refused if that failed.
        """
        is_first = run_id not in self._waiting
        connection.owner = waiting = _Waiting(connection, hello)
        self._waiting.setdefault(run_id, {})[hello.incarnation] = waiting
        if is_first:
            task = self._loop.create_task(self._lead(run_id))
            self._leading.add(task)
            task.add_done_callback(self._leading.discard)

    async def _lead(self, run_id: str) -> None:
        assert self._hosting.led is not None
        error = ""
        try:
            self.lead(run_id, await self._hosting.led.lead(run_id))
        except RallypointError as unusable:
            error = str(unusable)
        except Exception as fault:
            error = f"this coordinator can't lead the job: {describe_fault(fault)}"
        for waiting in self._waiting.pop(run_id).values():
            connection = waiting.connection
            if error:
                self._refusals.refuse(run_id, connection, error)
            elif not connection.is_closed:
                self.attach(connection, run_id, waiting.hello)
                if isinstance(owner := connection.owner, HostedJob):
                    for heartbeat in waiting.heartbeats:
                        owner.received(connection, heartbeat)
        if (job := self._jobs.get(run_id)) is not None:
            self._emptied(job)

    def lead(self, run_id: str, leadership: Leadership) -> None:
        """Lead the job from now on by the leadership that was just won. Safe to call twice.

        The job of a former leader in the register is continued; else the job begins when an agent
        attaches.
        """
        if leadership.is_kept:
            return
        self._take_over(run_id, leadership)
        leadership.keep(partial(self._deposed, run_id), partial(self._hosting.on_record, run_id))
        if (job := self._jobs.get(run_id)) is not None:
            self._emptied(job)

    def _take_over(self, run_id: str, leadership: Leadership) -> bool:
        """Continue the job of the former leader, and return True.

        False: the register has no job, or one whose nodes have all heard its verdict.
        """
        for life in (leadership.duties.before, leadership.duties.over):
            if life is not None:
                self._lives.over(run_id, life, self._loop.time())
        if (taken_over := leadership.take_over()) is None:
            return False
        job = self._jobs[run_id] = self._host(taken_over.state, taken_over.led)
        # The leases of nodes that have not heard count from before this leader's claim.
        wait_s = with_margin(job.settings.lease_s)
        if job.verdict is None and not job.life.has_formed:
            # The record may be an old one, and rounds of that number may have run.
            job.renumber(max(job.life.incarnation + 1, self._hosting.wall_ms()))
        job.see(job.watch.take_over, taken_over.led.handover)
        job.see(self._hosting.keep_history, job.watch, took_over=True)
        if text := taken_over.text:
            job.see(job.watch.record, kinds.TAKEN_OVER(text))
            self._hosting.on_record(run_id, kinds.TAKEN_OVER(text))
        self._do(self._lives.taken_over(run_id, leadership.duties.unheard, wait_s))
        return True

    def _deposed(self, run_id: str, why: str) -> None:
        """Close all lives of this job, since another process may lead it.

        Agents look for that leader. If this leader has named a successor, agents are told its
        addresses first.
        """
        assert self._hosting.led is not None
        self._hosting.on_record(run_id, kinds.DEPOSED(why=why))
        leadership = self._leadership(run_id)
        for job in [each for each in self.all if each.settings.run_id == run_id]:
            if leadership is not None and leadership.lead.successor:
                job.tell_all(m.HandsOver(leadership.lead.successor))
            job.close()
            if job in self._ended:
                self._ended.remove(job)
        self._do(self._lives.deposed(run_id))
        self._jobs.pop(run_id, None)
        self._hosting.led.forget(run_id)

    def _ended_of(self, run_id: str) -> list[HostedJob]:
        return [job for job in self._ended if job.settings.run_id == run_id]

    def _emptied(self, job: HostedJob) -> None:
        """Handle that a life of a job may have no session left.

        If there is none, `wait_empty` returns. A life that new agents do not join is closed. The
        present life is forgotten after a while, or soon if it has ended and other processes may
        lead the job. A coordinator of only one job never forgets it.
        """
        if job.sessions:
            return
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
        run_id = job.settings.run_id
        if job in self._ended:
            self._ended.remove(job)
            job.close()
            self._do(self._lives.gone(run_id, len(self._ended_of(run_id))))
        elif self._jobs.get(run_id) is job:
            leadership = self._leadership(run_id)
            is_elsewhere = leadership is not None and leadership.is_one_of_many
            is_over = job.verdict is not None and is_elsewhere
            self._do(self._lives.used(run_id, 0, is_wanted=not is_over))
