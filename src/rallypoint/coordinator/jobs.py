"""The jobs of one coordinator, and which of them an agent belongs to (`core/job_lives.py` decides).

A coordinator inside an agent serves that agent's job only; alone (`rallypoint serve`) it serves
every job, each under its run id. With registers these are the jobs that it leads (`led_jobs.py`):
agents of another job wait until it does. Of one job it may hold several lives: the one that new
agents join, and a few that are over, until all their agents have heard how they ended. A job that
is begun and left again and again must not crowd out the others: its oldest lives are dropped, and
an agent of one of them hears how it ended when it attaches again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rallypoint.clocks import wall_time
from rallypoint.coordinator.connection import ServerConnection, answer
from rallypoint.coordinator.hosted_job import HostedJob, NodeRefusals
from rallypoint.coordinator.hosting import Hosting, turn_away
from rallypoint.core import claims
from rallypoint.core import event_kinds as kinds
from rallypoint.core import messages as m
from rallypoint.core.job_lives import (
    AHEAD_MAX_MS,
    Attachment,
    BeginLife,
    HearVerdict,
    JobLives,
    Life,
    LifeDecision,
    TakePart,
)
from rallypoint.core.job_state import JobState, ended_job, new_job
from rallypoint.core.model import DeadPlace, SharedSettings, Verdict
from rallypoint.core.sessions import Sessions
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.watch.job_view import job_line
from rallypoint.core.watch.questions import ALL_JOBS
from rallypoint.errors import MessageError, RallypointError
from rallypoint.observe.faults import describe_fault

if TYPE_CHECKING:  # Most coordinators have no registers.
    from rallypoint.coordinator.leadership import Leadership
    from rallypoint.coordinator.led_job import RecordedLife

JOBS_MAX = 4096
"""So many jobs a stand-alone coordinator holds. Those that all agents have left make room."""
ENDED_MAX = 4
"""So many lives of one job that are over."""
EARLY_DEATHS_MAX = 10_000
"""The most deaths that are remembered for jobs which this coordinator does not lead yet."""
EARLY_MAX = 16  # heartbeats: after so many an agent has hung up
VERDICT_RETENTION_S = 600.0
"""How long a stand-alone coordinator remembers how a job ended, or one that all agents left."""

NOT_GENUINE = (
    "this node says that a newer record of the job was there, and can't show that a leader of the "
    "job has told it so: start the agent of this node again"
)


class HostedJobs:
    """For the thread of the loop. Nothing here blocks, but `wait_empty`."""

    def __init__(self, hosting: Hosting) -> None:
        self._loop = asyncio.get_running_loop()
        self._hosting = hosting
        self._refusals = NodeRefusals(hosting.on_record)
        self._epoch = hosting.epoch()
        self._lives = JobLives(self._epoch)
        self._jobs: dict[str, HostedJob] = {}
        """The life of each job that new agents join, by run id."""
        self._ended: list[HostedJob] = []
        """Lives that are over, the oldest first."""
        self._unrecorded: dict[str, set[int]] = {}
        """Numbers of lives that were over before their verdict was recorded, by run id. The first
        record of the next life has it."""
        self._unheard: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        """How many nodes of a life that another leader has ended may run workers yet, since they
        have not heard of its end, by run id; and the timer of when they don't any more."""
        self._forgetting: dict[str, asyncio.TimerHandle] = {}
        """The jobs that all agents have left, by run id, the longest ago first."""
        self._empty: asyncio.Future[None] | None = None
        self._early: dict[int, list[m.Heartbeat]] = {}
        """Those of agents that wait to attach, by their connections."""
        self._waiting: dict[str, dict[str, tuple[ServerConnection, m.Attach]]] = {}
        """Agents of jobs that this coordinator does not lead yet, by run id and incarnation."""
        self._early_deaths: dict[tuple[str, DeadPlace], None] = {}
        """Deaths that were told for jobs which it does not lead yet, each with its run id."""
        self._leading: set[asyncio.Task[None]] = set()
        self._own_agent = hosting.own_agent
        self._is_closed = False
        if hosting.only is not None:
            self._host_only(hosting.only)

    @property
    def nodes(self) -> list[str]:
        """The ids of the others that have neither left nor are lost."""
        refs = [(job, session.ref) for job in self.all for session in job.sessions]
        return [ref.node_id for job, ref in refs if ref.incarnation != job.own_agent]

    @property
    def is_over(self) -> bool:
        """Every job here has ended."""
        return all(job.verdict is not None for job in self._jobs.values())

    def lives_in(self, incarnation: str) -> None:
        """Of which agent this process is: it alone takes the coordinator with it when it leaves."""
        self._own_agent = incarnation
        for job in self._jobs.values():
            job.lives_in(incarnation)

    async def wait_empty(self) -> None:
        """Until every other agent has left or is lost."""
        if self.nodes:
            self._empty = self._loop.create_future()
            await self._empty

    def close(self) -> None:
        """Drop every job. Safe to call twice."""
        self._is_closed = True
        for job in self.all:
            job.close()
        for run_id in list(self._forgetting):
            self._keep(run_id)
        for _, timer in self._unheard.values():
            timer.cancel()
        self._refusals.close()
        self._jobs.clear()
        self._ended.clear()
        for task in self._leading:
            task.cancel()

    def attach(self, connection: ServerConnection, run_id: str, hello: m.Attach) -> None:
        """An agent's first message. Raises MessageError for one of another job."""
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
            if self._hosting.only is not None:  # This node leads no more: it looks again.
                connection.close()
                return
            self._wait_to_lead(connection, run_id, hello)
            return
        if not text and (leadership := self._leadership(run_id)) is not None:
            told = hello.told
            if told is not None and leadership.is_behind(told):
                if leadership.is_genuine(told):
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
                return
        self._refusals.refuse(run_id, connection, text)

    def heartbeat(self, connection: ServerConnection, heartbeat: m.Heartbeat) -> None:
        """Of an agent that has no session yet. It is answered when there is one."""
        early = self._early.get(connection.number)
        if early is not None and len(early) < EARLY_MAX:
            early.append(heartbeat)

    def asked(self, connection: ServerConnection, run_id: str, question: m.Ask) -> None:
        """A person wants a node to leave, or to know something, and waits on this connection."""
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
        """The guard of an agent reports that it died. It may have attached to another coordinator
        alone, from which this one has taken over or is about to."""
        lives = [job for job in self.all if job.settings.run_id == run_id]
        known_by = [job for job in lives if job.knows(notice.incarnation)]
        for job in known_by:
            job.agent_died(connection, notice)
        if not known_by and notice.place is not None:
            for job in lives:
                job.told_dead([notice.place])
            if self._hosting.led is not None and self._leadership(run_id) is None:
                self._early_deaths[run_id, notice.place] = None
                if len(self._early_deaths) > EARLY_DEATHS_MAX:
                    del self._early_deaths[next(iter(self._early_deaths))]
        connection.close()

    @property
    def all(self) -> list[HostedJob]:
        """Lives of jobs that are over and that agents still leave, and the present ones."""
        return [*self._ended, *self._jobs.values()]

    def _no_room(self, hello: m.Attach) -> str:
        """Why no other life of a job can be hosted, should this agent need one."""
        run_id = hello.settings.run_id
        job = self._jobs.get(run_id)
        if job is not None and (job.verdict is None or job.knows(hello.incarnation)):
            return ""
        if len(self._jobs) + len(self._ended) < JOBS_MAX:
            return ""
        deserted = (one for one in self._forgetting if not self._jobs[one].sessions)
        if (oldest := next(deserted, None)) is not None:
            self._forget(oldest)
            return ""
        return f"this coordinator hosts {JOBS_MAX} jobs already: start another one for {run_id!r}"

    def _job_of(self, hello: m.Attach) -> HostedJob | None:
        """The life of its job that this agent belongs to; None: its verdict is not recorded yet."""
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
        now, life = self._loop.time(), job.life if job is not None else None
        if job is not None and not job.sessions and job.verdict is None:
            life = replace(job.life, is_abandoned=bool(job.settings.differences(settings)))
        if self._hosting.only is not None and self._hosting.led is None and life is not None:
            decision: LifeDecision = self._lives.renumber(run_id, known, life, now)
        else:
            decision = self._lives.place(run_id, known, life, now, self._hosting.wall_ms())
        match decision:
            case TakePart(incarnation):
                assert job is not None
                job.renumber(incarnation)
                return job
            case BeginLife(incarnation):
                former = None if job is None else job.life
                if job is not None:
                    self._end(job)
                return self._begin(settings, incarnation, former)
            case HearVerdict(incarnation, verdict):
                if self._is_unrecorded(run_id, incarnation):
                    return None
                return self._ended_life(settings, incarnation, verdict)

    def _is_unrecorded(self, run_id: str, incarnation: int) -> bool:
        """Whether the verdict of this life, which is over, is in no record yet."""
        next_life = self._jobs.get(run_id)
        if next_life is None or next_life.is_recorded:
            self._unrecorded.pop(run_id, None)
        return incarnation in self._unrecorded.get(run_id, ())

    def _host_only(self, settings: SharedSettings) -> None:
        run_id, former = settings.run_id, None
        if (leadership := self._leadership(run_id)) is not None:
            on_record = partial(self._hosting.on_record, run_id)
            leadership.keep(partial(self._deposed, run_id), on_record)
            if self._take_over(run_id, leadership):
                return
            former = leadership.over
        decision = self._lives.place(run_id, None, None, self._loop.time(), self._hosting.wall_ms())
        self._begin(settings, decision.incarnation, former)

    def _begin(
        self, settings: SharedSettings, incarnation: int, former: Life | None = None
    ) -> HostedJob:
        still_here = sum(len(each.sessions) for each in self._ended_of(settings.run_id))
        unheard = self._unheard.get(settings.run_id)
        state = new_job(settings, incarnation, max(still_here, unheard[0] if unheard else 0))
        leadership = self._leadership(settings.run_id)
        led = None if leadership is None else leadership.begin(state, former)
        job = self._jobs[settings.run_id] = self._host(state, led)
        job.see(self._hosting.keep_history, job.watch)
        return job

    def _ended_life(
        self, settings: SharedSettings, incarnation: int, verdict: Verdict
    ) -> HostedJob:
        """For an agent that has yet to hear this verdict."""
        for job in self._ended:
            if job.settings == settings and job.life.incarnation == incarnation:
                return job
        job = self._host(ended_job(settings, verdict, incarnation))
        self._hold(job)
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
        """By which this coordinator leads the job."""
        return None if self._hosting.led is None else self._hosting.led.of(run_id)

    def _epoch_of(self, run_id: str) -> int:
        """Under which this coordinator speaks to the nodes of this job."""
        leadership = self._leadership(run_id)
        return self._epoch if leadership is None else leadership.lead.epoch.as_int()

    def _wait_to_lead(self, connection: ServerConnection, run_id: str, hello: m.Attach) -> None:
        """The agent attaches when this coordinator leads its job."""
        is_first = run_id not in self._waiting
        waiting = self._waiting.setdefault(run_id, {})
        if (former := waiting.get(hello.incarnation)) is not None:
            self._early.pop(former[0].number, None)
        waiting[hello.incarnation] = (connection, hello)
        self._early[connection.number] = []
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
        for connection, hello in self._waiting.pop(run_id).values():
            heartbeats = self._early.pop(connection.number, [])
            if error:
                self._refusals.refuse(run_id, connection, error)
            elif not connection.is_closed:
                self.attach(connection, run_id, hello)
                if isinstance(owner := connection.owner, HostedJob):
                    for heartbeat in heartbeats:
                        owner.received(connection, heartbeat)
        if (job := self._jobs.get(run_id)) is not None:
            self._emptied(job)

    def lead(self, run_id: str, leadership: Leadership) -> None:
        """This coordinator leads the job from now on. Safe to call twice."""
        if leadership.is_kept:
            return
        self._take_over(run_id, leadership)
        leadership.keep(partial(self._deposed, run_id), partial(self._hosting.on_record, run_id))
        if (job := self._jobs.get(run_id)) is not None:
            self._emptied(job)

    def _take_over(self, run_id: str, leadership: Leadership) -> bool:
        """Go on with the job of the leader before, if there is one."""
        for life in (leadership.before, leadership.over):
            if life is not None:
                self._lives.over(run_id, life, self._loop.time())
        if (taken_over := leadership.take_over()) is None:
            return False
        job = self._jobs[run_id] = self._host(taken_over.state, taken_over.led)
        if unheard := leadership.unheard:
            # Their leases count from before this leader's claim.
            lease_s = with_margin(job.settings.lease_s)
            timer = self._loop.call_later(lease_s, self._all_have_heard, run_id)
            self._unheard[run_id] = unheard, timer
        if job.verdict is None and not job.life.has_formed:
            # The record may be an old one, and rounds of that number may have run.
            job.renumber(max(job.life.incarnation + 1, self._hosting.wall_ms()))
        job.see(job.watch.take_over, taken_over.led.handover)
        job.see(self._hosting.keep_history, job.watch, took_over=True)
        if text := taken_over.text:
            job.see(job.watch.record, kinds.TAKEN_OVER(text))
            self._hosting.on_record(run_id, kinds.TAKEN_OVER(text))
        told = [(run, place) for run, place in self._early_deaths if run == run_id]
        for each in told:
            del self._early_deaths[each]
        job.told_dead([place for _, place in told])
        return True

    def _deposed(self, run_id: str, why: str) -> None:
        """Another coordinator leads this job: its agents are to look for that one."""
        assert self._hosting.led is not None
        self._hosting.on_record(run_id, kinds.DEPOSED(why=why))
        leadership = self._leadership(run_id)
        for job in [each for each in self.all if each.settings.run_id == run_id]:
            if leadership is not None and leadership.lead.successor:
                job.tell_all(m.HandsOver(leadership.lead.successor))
            job.close()
            if job in self._ended:
                self._ended.remove(job)
        self._keep(run_id)
        self._jobs.pop(run_id, None)
        self._hosting.led.forget(run_id)

    def _end(self, job: HostedJob) -> None:
        """New agents do not join this life any more."""
        run_id = job.settings.run_id
        self._lives.over(run_id, job.life, self._loop.time())
        if not job.is_recorded:
            self._unrecorded.setdefault(run_id, set()).add(job.life.incarnation)
        self._keep(run_id)
        del self._jobs[run_id]
        if job.sessions:
            self._hold(job)
        else:
            job.close()

    def _hold(self, ended: HostedJob) -> None:
        """Until it is empty, or newer lives of the same job are too many."""
        self._ended.append(ended)
        for oldest in self._ended_of(ended.settings.run_id)[:-ENDED_MAX]:
            self._ended.remove(oldest)
            oldest.close()

    def _ended_of(self, run_id: str) -> list[HostedJob]:
        return [job for job in self._ended if job.settings.run_id == run_id]

    def _all_have_heard(self, run_id: str) -> None:
        """No worker of the last life lives any more, whether its agents have come or not."""
        self._unheard.pop(run_id, None)
        self._former_life_left(run_id)

    def _former_life_left(self, run_id: str) -> None:
        if run_id in self._jobs and not self._ended_of(run_id) and run_id not in self._unheard:
            self._jobs[run_id].former_life_gone()

    def _emptied(self, job: HostedJob) -> None:
        """The last session of a job is gone: end the wait for that, and forget the job later."""
        if job.sessions:
            return
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
        run_id = job.settings.run_id
        if job in self._ended:
            self._ended.remove(job)
            job.close()
            self._former_life_left(run_id)
        elif self._hosting.only is None and self._jobs.get(run_id) is job:
            self._keep(run_id)
            leadership = self._leadership(run_id)
            is_over = job.verdict is not None and leadership and leadership.is_one_of_many
            wait_s = 0.0 if is_over else VERDICT_RETENTION_S
            timer = self._loop.call_later(wait_s, self._forget, run_id)
            self._forgetting[run_id] = timer

    def _forget(self, run_id: str) -> None:
        if not self._jobs[run_id].sessions:
            self._end(self._jobs[run_id])
            if self._hosting.led is not None:
                self._hosting.led.remove(run_id)

    def _keep(self, run_id: str) -> None:
        """It is not about to be forgotten."""
        if (timer := self._forgetting.pop(run_id, None)) is not None:
            timer.cancel()
