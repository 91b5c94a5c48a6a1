"""The coordinator's end of all sessions of one job, around the job's machine.

Pure; the agent's end is in `session.py`.

A session belongs to one incarnation of an agent, and outlives its connections: a connection of a
higher generation takes it over, and gets what holds then (`job.resync`). Frames of a connection
that was replaced have no effect. Each report is applied once, in the order of their numbers. A
session without a connection is lost after a grace, one that sends nothing after the lease
(`liveness.py`). An agent that joins with an id or a rank that another one has waits until that one
was heard, or is gone (`claims.py`).

A coordinator that another one can take over from acknowledges a report when that one would not need
it any more. One that has taken over decides nothing until it knows what runs
(`takeover/handover.py`).

Connections are numbers that the host chooses, times are seconds on its monotonic clock. Every
method returns what the host must do, in order. A method that applies a report may raise what the
job's machine raises: then the host calls `failed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from rallypoint.core import claims
from rallypoint.core import event_kinds as kinds
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.claims import Contest, Contests, NodeNames
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import RefuseNode, Timer
from rallypoint.core.host_effects import Empty, Faulted, HangUp, HostEffect, Refuse, SendTo
from rallypoint.core.job_departures import is_leaving
from rallypoint.core.job_lives import Life
from rallypoint.core.job_requests import DrainRequest, Drains, asked_to_leave, no_such_node
from rallypoint.core.job_rounds import is_member
from rallypoint.core.job_state import JobEffect, JobEvent, JobState, SessionLost
from rallypoint.core.job_state import close as close_job
from rallypoint.core.job_state import renumber as renumber_job
from rallypoint.core.liveness import Liveness, Patience, is_outgrown, pace_of
from rallypoint.core.model import NodeRef, Outcome, SharedSettings, Stamp, Verdict
from rallypoint.core.round import was_replaced
from rallypoint.core.session import aged
from rallypoint.core.session_state import Session
from rallypoint.core.text import count, settings_conflict

if TYPE_CHECKING:  # Most jobs have a coordinator that nobody can take over from.
    from rallypoint.core.takeover.handover import Handover, Recovery

LATE_S = 0.5
"""The delay of a timer, in seconds, above which the coordinator's process had not run."""
SILENCE_STEP = 1 / 3
"""A share of the lease: a newcomer is told of another agent's silence in steps of this length."""

JobStep = Callable[[JobState, JobEvent, float], list[JobEffect]]


class Sessions:
    """The sessions and the decisions of one job's coordinator."""

    def __init__(
        self,
        job: JobState,
        epoch: int,
        machine: JobStep = jobs.step,
        wall_time: Callable[[float], float] = lambda at: 0.0,
        handover: Handover | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Make the sessions of one job. `wall_time` converts times of the loop for display.

        `wall_ms` gives the Unix time in milliseconds for a new number of the job. `handover` is
        given if another coordinator can take over, or this one has.
        """
        self.job, self._wall_ms = job, wall_ms
        settings = job.round.settings
        self._machine, self._epoch, self._wall_time = machine, epoch, wall_time
        self._handover = handover
        self._names, self._contests = NodeNames(), Contests()
        self.meant = self._names.meant
        self._sessions: dict[str, Session] = {}
        """The sessions, by the incarnation of the agent."""
        self._by_connection: dict[int, Session] = {}
        self._drains = Drains()
        self.liveness = Liveness(
            settings.lease_s, settings.reconnect_grace_s, settings.reset_grace_s
        )
        self._faulty: set[str] = set()
        """The incarnations of agents that an exception ended a session of; a second one expels."""
        self._ended_at: float | None = None
        self._told_incarnation = job.incarnation
        """The number of the job's life (run) that the agents know."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the job; None: it has not ended."""
        return self.job.verdict

    @property
    def settings(self) -> SharedSettings:
        """The settings that all nodes of the job agree on."""
        return self.job.round.settings

    @property
    def life(self) -> Life:
        """The life (run) of the job: numbers, whether a round was formed, the verdict if any."""
        formed = bool(self.job.round.world or self.job.round.round or self._recovery)
        job = self.job
        return Life(job.incarnation, self.verdict, formed, earlier=job.earlier_numbers)

    @property
    def all(self) -> Collection[Session]:
        """The sessions of agents that are connected, or may still return."""
        return self._sessions.values()

    def of_node(self, node_id: str) -> Session | None:
        """Return the session of the agent that holds this node id; None: none has one."""
        holder = self._names.holder(node_id)
        return None if holder is None else self._sessions.get(holder.incarnation)

    def of_agent(self, incarnation: str) -> Session | None:
        """Return the session of this agent; None: it has none."""
        return self._sessions.get(incarnation)

    def on(self, connection: int) -> Session | None:
        """Return the session whose present connection this is; None: there is none."""
        return self._by_connection.get(connection)

    def renumber(self, incarnation: int) -> list[HostEffect]:
        """Renumber the life (run) of the job, of which no worker runs yet, and tell all agents."""
        renumber_job(self.job, incarnation)
        return self._tell_incarnation()

    def _tell_incarnation(self) -> list[HostEffect]:
        """Tell all agents the number of the job's life (run) if it has changed."""
        found: list[HostEffect] = []
        if self._told_incarnation == self.job.incarnation:
            return found
        self._told_incarnation = self.job.incarnation
        for session in self._sessions.values():
            found += self._send(session.ref, self._attached(session, resumed=True))
        return found

    def attach(self, connection: int, peer: str, hello: m.Attach, now: float) -> list[HostEffect]:
        """Open or resume a session, by the first message of a connection from `peer`.

        An agent with other settings than the job's is refused, or gets an ended job's verdict.
        """
        differences = self.settings.differences(hello.settings)
        if differences and self.verdict is None:
            return [Refuse(connection, str(settings_conflict(differences)))]
        session = self._sessions.get(hello.incarnation)
        effects: list[HostEffect] = []
        if session is None:
            session = self._open(hello)
            resumed = self._is_taken_back(session, hello)
        elif hello.generation <= session.generation:
            return [HangUp(connection)]
        else:
            resumed = session.opened == hello.opened
            if self._recovery is None:
                resumed = resumed and jobs.agrees(self.job, session.ref, hello.claim)
            else:
                self._recovery.lost(session.ref)
                resumed = resumed and self._recovery.takes(session.ref, hello)
            effects += self._hang_up(session)
            session.generation = hello.generation
            if not resumed:
                session.opened = hello.generation
        if self._recovery is not None and not resumed:
            self._recovery.forget(hello.incarnation)
        session.connection, self._by_connection[connection] = connection, session
        session.death_commitment, session.peer = hello.death_commitment, peer
        self._heard(session, now)
        effects.append(SendTo(connection, self._attached(session, resumed)))
        effects += self._acknowledge(session, is_new_connection=True)
        effects += self._performed(jobs.resync(self.job, session.ref, now), now)
        if self._recovery is not None and self._recovery.is_complete:
            effects += self._recover(now)
        if session.drain_why is not None:
            effects.append(SendTo(connection, m.DrainWanted(self._stamp, session.drain_why)))
        return effects + self._drain_kept()

    def received(
        self, connection: int, message: m.Numbered | m.Heartbeat, now: float
    ) -> list[HostEffect]:
        """Handle a message of an attached agent, which is also a sign of life."""
        session = self._by_connection.get(connection)
        if session is None:
            return []
        self._heard(session, now)
        if isinstance(message, m.Heartbeat):
            self.liveness.has_memory(session.ref.incarnation, not message.is_short_of_memory)
            progress = None if self._recovery else message.progress
            jobs.heard(self.job, session.ref.node_id, progress, now)
            status = jobs.status(self.job, session.ref.node_id)
            if (contest := self._contests.of(session.ref)) is not None:
                if self._is_used(contest):
                    return self._refuse(session, contest, now)
                status = replace(status, waits_for=self._waits_for(contest, now))
            if self._recovery is not None:
                status = replace(status, awaits=self._recovery.awaits)
            ack = SendTo(connection, m.HeartbeatAck(message.number, self._stamp, status))
            again = is_outgrown(len(self._sessions), session.told_of)
            return [ack, SendTo(connection, self._attached(session, True))] if again else [ack]
        effects: list[HostEffect] = []
        if message.number > session.inbox.received:
            session.inbox.received = message.number
            if self._recovery is not None:
                self._recovery.reports.append((session.ref.incarnation, message, now))
                return []
            effects += self._apply_numbered(session, message, now)
        effects += self._acknowledge(session)
        if isinstance(message.report, m.Leave):
            effects.append(HangUp(connection))
        return effects

    def connection_closed(self, connection: int, now: float, *, reset: bool) -> None:
        """Note that a connection ended, by its peer or (`reset`) otherwise; the session stays."""
        session = self._by_connection.pop(connection, None)
        if session is not None:
            session.connection, incarnation = None, session.ref.incarnation
            self.liveness.vanished(incarnation, now, reset=reset)
            if self._contests.heard(incarnation, yes=False):
                self.liveness.wanted(incarnation, now)
        self._drains.hung_up(connection)

    def drain(self, wanted: DrainRequest) -> list[HostEffect]:
        """Handle a person's request that a node leaves.

        It is answered at once, and again when the node has left. A node that is not connected is
        asked when it attaches. During a takeover a request for an unknown node is kept.
        """
        session = self.of_node(wanted.node_id)
        gone = "" if self._handover is None else self._handover.gone(wanted.node_id)
        if session is None and self._recovery is not None and not gone:
            self._drains.keep(wanted)
            return []
        if session is None:
            known = (each.ref.node_id for each in self.all)
            answer = no_such_node(wanted.node_id, known, self.verdict, gone)
            return _drain_done(wanted.people, answer)
        session.drain_why = session.drain_why or wanted.why
        self._drains.wait(wanted, session.ref.incarnation)
        leaves, is_here = is_leaving(self.job, session.ref), session.connection is not None
        text = asked_to_leave(session.ref, leaves=leaves, is_here=is_here)
        if ends := self.ends_with(wanted.node_id):
            text += f"; {ends}"
        answer = m.DrainAnswer(text, False)
        order = [] if leaves else self._send(session.ref, m.DrainWanted(self._stamp, wanted.why))
        return [*(SendTo(person, answer) for person in wanted.people), *order]

    def ends_with(self, node_id: str) -> str:
        """Return what ends when this node leaves, in words; empty: nothing does."""
        session = self.of_node(node_id)
        hosts = session is not None and session.ref.incarnation == self.job.own_agent
        if not hosts or self._handover is not None:
            return ""
        return f"it hosts the job, which ends with it ({count(len(self._sessions), 'node')})"

    def _drain_kept(self) -> list[HostEffect]:
        """Carry out the kept requests to drain nodes that are known now, or that will not come."""
        due = self._drains.take(lambda n: self._recovery is None or self.of_node(n) is not None)
        return [effect for wanted in due for effect in self.drain(wanted)]

    def agent_died(
        self, peer: str, notice: m.AgentDied, is_proof: Callable[[bytes, bytes], bool], now: float
    ) -> list[HostEffect]:
        """Handle a guard's report that its agent died. It counts if it has the right proof."""
        session = self._sessions.get(notice.incarnation)
        if session is None:  # It was lost or has left meanwhile.
            return []
        is_newest = notice.generation == session.generation
        if is_newest and is_proof(notice.secret, session.death_commitment):
            session.death_commitment = b""
            self.liveness.died(notice.incarnation, now, out_of_memory=notice.out_of_memory)
            return []
        session.false_notices += 1
        if session.false_notices > 1:
            return []
        text = f"ignored {peer}: it reports without proof that the agent of node {session.ref} died"
        return [kinds.CONNECTION_CLOSED(text)]

    def failed(self, connection: int, text: str, now: float) -> list[HostEffect]:
        """End the session whose message caused an unexpected exception in the coordinator.

        The agent comes back as a newcomer; the second time it is expelled for good.
        """
        session = self._by_connection.get(connection)
        if session is None:
            return []
        incarnation = session.ref.incarnation
        effects: list[HostEffect] = []
        if incarnation in self._faulty:
            effects.append(SendTo(connection, m.Expelled(self._stamp, text, True)))
        effects += self._hang_up(session)
        self._faulty.add(incarnation)
        if self._sessions.get(incarnation) is session:
            effects += self._lose(session, text, now, now)
        return effects

    def turn_away(self, connection: int, text: str, now: float) -> list[HostEffect]:
        """Refuse an agent whose message is not valid, and end its session: it would repeat it."""
        session = self._by_connection.get(connection)
        return [] if session is None else self._turn_away(session, text, now)

    def apply(self, event: JobEvent, now: float) -> list[HostEffect]:
        """Apply an event to the job: a report, a timer, a loss, or a person's request.

        Raises what the job's state machine raises. In a takeover only the recovery hears of it.
        """
        if self._recovery is not None:
            is_over = self._recovery.hears(event)
            return [*self._recover(now), *self._drain_kept()] if is_over else []
        if isinstance(event, SessionLost) and event.ref.incarnation in self._sessions:
            return []  # Tried again, but it is back: its next join says that it has no workers.
        effects = self._follow(self._machine(self.job, event, now), now)
        for incarnation in () if self._handover is None else self._handover.to_settle(self.job):
            effects += self._acknowledge(self._sessions[incarnation])
        return effects

    def apply_own(self, event: JobEvent, now: float) -> list[HostEffect]:
        """Apply an event that no agent has sent, by `apply`; return an exception as `Faulted`.

        There is no session that it could end, and the job may wait for this event.
        """
        try:
            return self.apply(event, now)
        except Exception as error:
            return [Faulted(event, error)]

    def give_up(self, why: str, now: float) -> list[HostEffect]:
        """End the job as an infrastructure fault: an event that it waits for can't be applied."""
        if self.verdict is not None:
            return []
        text = f"the coordinator failed three times at the same event: {why}"
        return self._follow(close_job(self.job, Outcome.INFRASTRUCTURE, text), now)

    def check(self, now: float, late_s: float = 0.0) -> list[HostEffect]:
        """Declare silent agents lost, unless patience is due, and return the effects.

        `late_s` is how many seconds late this call is: after a long delay no silence counts.
        """
        lagged = self.liveness.lagged(now, late_s) if late_s > LATE_S else None
        lost, patience = self.liveness.check(now)
        effects = [self._patient(found) for found in (lagged, patience) if found is not None]
        for item in lost:
            effects += self.lose(item.member, item.why, item.last_heard_at, now)
        return effects

    def lose(
        self, incarnation: str, why: str, last_heard_at: float, now: float
    ) -> list[HostEffect]:
        """Declare this agent lost, last heard at `last_heard_at`, if it has a session."""
        session = self._sessions.get(incarnation)
        return [] if session is None else self._lose(session, why, last_heard_at, now)

    def timers_wanted(self) -> dict[Timer, float]:
        """Return the timers of the job, or of its takeover, in seconds. `apply` gets their ends."""
        if self._recovery is not None:
            return self._recovery.timers_wanted()
        return jobs.timers_wanted(self.job)

    @property
    def _stamp(self) -> Stamp:
        return jobs.stamp(self.job)

    def _open(self, hello: m.Attach) -> Session:
        late = not hello.opened and self.verdict is not None
        ref = self._names.give_id(hello)
        session = Session(ref, hello.generation, None, hello.generation, late)
        self._sessions[hello.incarnation] = session
        return session

    def _attached(self, session: Session, resumed: bool) -> m.Attached:
        node_id, incarnation = session.ref.node_id, self.job.incarnation
        is_replaceable = self._handover is not None
        session.told_of = max(len(self._sessions), self.settings.min_nodes)
        pace = pace_of(self.settings, session.told_of)
        known = len(SharedSettings.__struct_fields__)
        how = node_id, incarnation, self._epoch, resumed, is_replaceable
        return m.Attached(*how, *pace, settings_known=known)

    @property
    def _recovery(self) -> Recovery | None:
        """The recovery after a takeover, while it is not known what runs; None: there is none."""
        return None if self._handover is None else self._handover.recovery

    def _is_taken_back(self, session: Session, hello: m.Attach) -> bool:
        """Resume a session of the last coordinator's round, and return whether that succeeded."""
        handover, place = self._handover, hello.place
        if handover is None:
            return False
        if self._recovery is None and place and self._names.contest(session.ref, place.joined):
            return False  # Another agent has joined with its id or its rank since.
        if not handover.takes(self.job, session.ref, hello):
            return False
        assert place is not None
        session.opened = hello.opened
        self._names.take(session.ref, place.joined.candidate.node_rank)
        return True

    def _recover(self, now: float) -> list[HostEffect]:
        """Continue the job when its nodes have come back, or are no longer waited for."""
        assert self._handover is not None
        assert self._recovery is not None
        found, recovered = self._handover.follow(self.job, now)
        if found.may_be_outdated:
            self.job.next_incarnation = max(self.job.incarnation + 1, self._wall_ms())
        effects = self._follow(recovered, now)
        for session in list(self._sessions.values()):
            effects += self._performed(jobs.resync(self.job, session.ref, now), now)
        for incarnation, numbered, came_at in found.reports:
            if (reporter := self._sessions.get(incarnation)) is None:
                continue
            report = aged(numbered.report, now - came_at)
            try:
                effects += self._apply_numbered(reporter, replace(numbered, report=report), now)
            except Exception as error:  # The others have said other things.
                effects.append(Faulted(m.FromNode(reporter.ref, report), error))
            effects += self._acknowledge(reporter)
        return effects + [one for each in found.wishes for one in self.apply_own(each, now)]

    def _apply_numbered(
        self, session: Session, numbered: m.Numbered, now: float
    ) -> list[HostEffect]:
        session.inbox.applied = numbered.number
        if self._handover is not None:
            self._handover.keep(session.ref, session.inbox.unsettled, numbered)
        return self._reported(session, numbered.report, now)

    def _acknowledge(
        self, session: Session, *, is_new_connection: bool = False
    ) -> list[HostEffect]:
        """Acknowledge the reports before the first one that another coordinator would need."""
        handover, inbox = self._handover, session.inbox
        waiting = inbox.unsettled
        if handover is not None:
            handover.settle(self.job, session.ref, waiting)
        number = waiting[0].number - 1 if waiting else inbox.applied
        is_known = number == inbox.acknowledged and handover is not None
        if session.connection is None or (is_known and not is_new_connection):
            return []
        inbox.acknowledged = number
        return [SendTo(session.connection, m.Ack(number))]

    def _reported(self, session: Session, report: m.Report, now: float) -> list[HostEffect]:
        ref = session.ref
        match report:
            case m.Join(_, candidate):
                if text := claims.join_refused(self.settings, candidate):
                    return self._turn_away(session, text, now)
                return self._join(session, report, now)
            case m.Drain(hosts=hosts):
                self._names.yield_rank(ref)
                report = replace(report, hosts=hosts and ref.incarnation == self.job.own_agent)
        effects = self.apply(m.FromNode(ref, report), now)
        if isinstance(report, m.Leave):
            effects += self._forget(session)
        return effects + self._let_in(now)

    def _join(self, session: Session, join: m.Join, now: float) -> list[HostEffect]:
        ref = session.ref
        if self.verdict is None and not was_replaced(self.job.round, ref):
            if (contest := self._names.contest(ref, join)) is not None:
                if is_member(self.job, ref):  # It had another rank before, and has no workers now.
                    return self._refuse(session, contest, now)
                self._contests.begin(contest)
                self.liveness.wanted(contest.holder.incarnation, now)
                return []
            self._names.take(ref, join.candidate.node_rank)
        return self.apply(m.FromNode(ref, join), now)

    def _heard(self, session: Session, now: float) -> None:
        self.liveness.heard(session.ref.incarnation, now)
        self._contests.heard(session.ref.incarnation, yes=True)

    def _is_used(self, contest: Contest) -> bool:
        """Return whether the agent that has the contested id or rank was heard, and stays."""
        holder = contest.holder
        is_dead = self.liveness.is_dead(holder.incarnation)
        return contest.is_heard and not is_dead and not is_leaving(self.job, holder)

    def _refuse(self, session: Session, contest: Contest, now: float) -> list[HostEffect]:
        holder = self._sessions[contest.holder.incarnation]
        return self._turn_away(session, contest.refusal(holder.peer, session.peer), now)

    def _waits_for(self, contest: Contest, now: float) -> str:
        holder, step_s = contest.holder.incarnation, self.settings.lease_s * SILENCE_STEP
        silent_s = now - self.liveness.last_heard_at(holder, now)
        return contest.waits_for(self._sessions[holder].peer, silent_s // step_s * step_s)

    def _let_in(self, now: float) -> list[HostEffect]:
        """Let agents join whose id or rank is free now; after the end all get the verdict."""
        effects: list[HostEffect] = []
        is_over = self.verdict is not None
        for contest in self._contests.take_free(self._names, all_of_them=is_over):
            if (session := self._sessions.get(contest.newcomer.incarnation)) is None:
                continue
            try:
                effects += self._join(session, contest.join, now)
            except Exception as error:  # It is not a fault of what was received now.
                effects.append(Faulted(m.FromNode(session.ref, contest.join), error))
        return effects

    def _follow(self, effects: list[JobEffect], now: float) -> list[HostEffect]:
        found = self._performed(effects, now)
        if self._ended_at is None and self.verdict is not None:
            self._ended_at = now
            self.liveness.job_ended()
            found += self._let_in(now)
        return found

    def _performed(self, effects: list[JobEffect], now: float) -> list[HostEffect]:
        found, is_any_gone = self._tell_incarnation(), False
        for effect in effects:
            match effect:
                case m.ToNode(ref, m.Ended(stamp, verdict)):
                    found += self._send(ref, m.Ended(stamp, self._dated(ref, verdict, now)))
                case m.ToNode(ref, message):
                    found += self._send(ref, message)
                    session = self._sessions.get(ref.incarnation)
                    if isinstance(message, m.Expelled) and session is not None:
                        found += [*self._forget(session), *self._hang_up(session)]
                        is_any_gone = True
                case RefuseNode(ref, differences):
                    session = self._sessions.get(ref.incarnation)
                    if session is not None and session.connection is not None:
                        text = str(settings_conflict(differences))
                        found.append(Refuse(session.connection, text))
                case Record():
                    found.append(effect)
                case _:
                    assert_never(effect)
        return found + self._let_in(now) if is_any_gone else found

    def _send(self, ref: NodeRef, message: m.ToAgent) -> list[HostEffect]:
        """Send a message to an agent if it is connected; else it is informed when it returns."""
        session = self._sessions.get(ref.incarnation)
        if session is None or session.connection is None:
            return []
        return [SendTo(session.connection, message)]

    def _dated(self, ref: NodeRef, verdict: Verdict, now: float) -> Verdict:
        """Return the verdict, with its age for an agent that came after the end."""
        session = self._sessions.get(ref.incarnation)
        if session is None or not session.came_late or self._ended_at is None:
            return verdict
        return replace(verdict, ended_s_ago=now - self._ended_at)

    def _turn_away(self, session: Session, text: str, now: float) -> list[HostEffect]:
        effects: list[HostEffect] = []
        if session.connection is not None:
            effects.append(Refuse(session.connection, text))
        return effects + self._lose(session, text, now, now)

    def _hang_up(self, session: Session) -> list[HostEffect]:
        """Close an agent's connection, if it has one: it attaches anew, and gets what it missed."""
        connection, session.connection = session.connection, None
        if connection is None:
            return []
        self._by_connection.pop(connection, None)
        return [HangUp(connection)]

    def _forget(self, session: Session, how: str = "") -> list[HostEffect]:
        ref = session.ref
        self._sessions.pop(ref.incarnation, None)
        if session.connection is not None:
            self._by_connection.pop(session.connection, None)
        self._names.forget(ref)
        self._contests.end(ref)
        if self._handover is not None:
            has_left = not how and self.verdict is None
            self._handover.forget(ref, session.inbox.unsettled, has_left=has_left)
        self.liveness.forget(ref.incarnation)
        ended = f", and the job has ended: {self.verdict.text}" if self.verdict else ""
        saved = self.job.farewells.pop(ref.node_id, "")
        left = f"node {ref} has left{f'; {saved}' if saved else ''}{ended}"
        answer = m.DrainAnswer(how or left, done=True)
        effects = _drain_done(self._drains.gone(ref.incarnation), answer)
        return effects if self._sessions else [*effects, Empty()]

    def _lose(
        self, session: Session, why: str, last_heard_at: float, now: float
    ) -> list[HostEffect]:
        hung_up = self._hang_up(session)
        forgotten = self._forget(session, f"node {session.ref} was lost: {why}")
        lost = SessionLost(session.ref, why, last_heard_at, self._wall_time(last_heard_at))
        return [*forgotten, *hung_up, *self.apply_own(lost, now), *self._let_in(now)]

    def _patient(self, patience: Patience) -> HostEffect:
        lease_s = self.settings.lease_s
        return kinds.PATIENCE(f"{patience.why}: no node is given up for another {lease_s:g} s")


def _drain_done(people: list[int], answer: m.DrainAnswer) -> list[HostEffect]:
    return [effect for each in people for effect in (SendTo(each, answer), HangUp(each))]
