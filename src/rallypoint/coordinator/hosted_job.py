"""One job as the coordinator hosts it: the pure machine, its sessions, their liveness, its waits.

A session outlives a connection that breaks: one with a higher generation takes it over, and the
agent is told the truth as it is then. So effects for an agent without a connection are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from msgspec.structs import replace

from rallypoint.coordinator.connection import Connection
from rallypoint.coordinator.deadlines import Deadlines
from rallypoint.coordinator.drain_desk import DrainDesk
from rallypoint.coordinator.lease_watch import LeaseWatch
from rallypoint.coordinator.own_events import OwnEvents
from rallypoint.coordinator.session import Session, node_id_of
from rallypoint.core import claims, wording
from rallypoint.core import event_kinds as kinds
from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import RefuseNode, Timer, TimerEnded
from rallypoint.core.job_events import JobEffect, JobEvent, SessionLost
from rallypoint.core.job_lives import Life
from rallypoint.core.job_state import close as close_job
from rallypoint.core.liveness import Liveness, Lost, Patience
from rallypoint.core.model import NodeRef, Outcome, SharedSettings, Verdict
from rallypoint.core.ranks import id_of_rank
from rallypoint.core.settings import settings_conflict
from rallypoint.observe.faults import Faults, describe_fault

Machine = Callable[[jobs.JobState, JobEvent, float], list[JobEffect]]


class HostedJob:
    """For the thread of the loop. Nothing here blocks."""

    def __init__(
        self,
        settings: SharedSettings,
        incarnation: int,
        epoch: int,
        on_record: Callable[[Record], None],
        on_empty: Callable[[], None],
        verdict: Verdict | None = None,
        machine: Machine = jobs.step,
    ) -> None:
        """With `verdict` the job has ended, and is hosted for those who have yet to hear how."""
        self._loop = asyncio.get_running_loop()
        if verdict is None:
            self._job = jobs.new_job(settings, incarnation)
        else:
            self._job = jobs.ended_job(settings, verdict, incarnation)
        self._machine, self._epoch = machine, epoch
        self._on_record, self._on_empty = on_record, on_empty
        self._sessions: dict[str, Session] = {}
        self._node_ids: dict[str, str] = {}
        """Node id -> the incarnation that holds it."""
        self._by_rank: dict[int, Session] = {}
        """Fixed rank -> who holds it."""
        self._ended_at: float | None = None
        self.own_agent = ""  # the incarnation of the agent that this coordinator lives in, if any
        liveness = Liveness(settings.lease_s, settings.reconnect_grace_s, settings.reset_grace_s)
        self._leases = LeaseWatch(self._loop, liveness, self._lease_ended, self._be_patient)
        self._desk = DrainDesk()
        self._deadlines = Deadlines(self._loop, self._timer_ended)
        self._faults = Faults(lambda text: on_record(kinds.FAULT(text)))
        self._faulty: set[str] = set()
        """Incarnations of agents whose session has ended by a fault of ours."""
        self._own = OwnEvents(self._loop, self._step, self._faults, self._give_up)

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, once it has."""
        return self._job.verdict

    @property
    def life(self) -> Life:
        """Its number, and how far it is."""
        return Life(self._job.incarnation, self.verdict, has_formed=bool(self._job.round.places))

    def renumber(self, incarnation: int) -> None:
        """Before the first round: workers are told of the number with their round."""
        if incarnation != self._job.incarnation:
            self._job.incarnation = incarnation
            for session in self._sessions.values():
                self._send(session.ref, self._attached(session, resumed=True))

    @property
    def settings(self) -> SharedSettings:
        """What all nodes of the job agree on."""
        return self._job.round.settings

    @property
    def sessions(self) -> Collection[Session]:
        """Of agents that are here, or may still come back."""
        return self._sessions.values()

    def knows(self, incarnation: str) -> bool:
        """This very agent takes part."""
        return incarnation in self._sessions

    def close(self) -> None:
        """Drop every connection and every wait."""
        self._leases.close()
        self._deadlines.cancel()
        self._own.close()
        self._faults.tell_counts()
        self._desk.close()
        for session in self._sessions.values():
            self._hang_up(session)
        self._sessions.clear()

    def attach(self, connection: Connection, hello: m.Attach) -> None:
        """An agent's first message on a connection: open its session, or resume it. Who comes after
        the end is told of that, whatever its settings."""
        differences = self.settings.differences(hello.settings)
        if differences and self.verdict is None:
            self._refuse(connection, str(settings_conflict(differences)))
            return
        session = self._sessions.get(hello.incarnation)
        resumed = (
            session is not None
            and session.opened == hello.opened
            and jobs.agrees(self._job, session.ref, hello.claim)
        )
        if session is None:
            ref = NodeRef(node_id_of(hello, self._node_ids), hello.incarnation)
            generation = hello.generation
            session = Session(self, ref, generation, connection, generation)
            session.is_first = not hello.opened
            session.came_late = session.is_first and self.verdict is not None
            self._sessions[hello.incarnation] = session
            self._node_ids.setdefault(ref.node_id, hello.incarnation)
        elif hello.generation <= session.generation:
            connection.close()
            return
        else:
            self._hang_up(session)
            session.connection, session.generation = connection, hello.generation
            if not resumed:
                session.opened = hello.generation
        connection.session = session
        session.death_commitment = hello.death_commitment
        session.host = connection.peer.rpartition(":")[0]
        now = self._loop.time()
        self._leases.heard(session.ref.incarnation, now)
        connection.send(self._attached(session, resumed))
        connection.send(m.Ack(session.applied))
        for effect in jobs.resync(self._job, session.ref, now):
            self._perform(effect)
        if (why := self._desk.why(session.ref)) is not None:
            connection.send(m.DrainWanted(jobs.stamp(self._job), why))

    def drain(self, connection: Connection, node_id: str, why: str) -> None:
        """A person wants a node to leave, and waits on this connection."""
        session = self._sessions.get(self._node_ids.get(node_id, ""))
        if session is None:
            known = {s.ref.node_id for s in self._sessions.values()}
            self._desk.refuse(connection, node_id, known)
            return
        ref, is_here = session.ref, session.connection is not None
        is_leaving = jobs.is_leaving(self._job, ref)
        self._desk.want(connection, ref, why, is_leaving=is_leaving, is_here=is_here)
        if not is_leaving:
            self._send(ref, m.DrainWanted(jobs.stamp(self._job), why))

    def received(
        self, connection: Connection, session: Session, message: m.Numbered | m.Heartbeat
    ) -> None:
        """A message of an attached agent: a sign of its life and a report at one reading of the
        clock, as what happened first is decided by their order."""
        now = self._loop.time()
        self._leases.heard(session.ref.incarnation, now)
        if isinstance(message, m.Heartbeat):
            status = jobs.status(self._job, session.ref.node_id)
            connection.send(m.HeartbeatAck(message.number, jobs.stamp(self._job), status))
            return
        if message.number > session.applied:
            session.applied = message.number
            self._apply(session, message.report, now)
        connection.send(m.Ack(session.applied))
        if isinstance(message.report, m.Leave):
            connection.session = None
            connection.close()

    def connection_closed(self, session: Session, connection: Connection) -> None:
        """A connection ended; the session lives on for its grace."""
        if session.connection is connection:
            session.connection = None
            now, reset = self._loop.time(), not connection.ended_by_peer
            self._leases.vanished(session.ref.incarnation, now, reset=reset)

    def agent_died(self, connection: Connection, notice: m.AgentDied) -> None:
        """Who was lost or has left meanwhile is not known any more."""
        session = self._sessions.get(notice.incarnation)
        if session is not None and session.is_proof(notice):
            self._leases.died(notice.incarnation, self._loop.time())
        elif session is not None and (text := session.disbelieve(connection.peer)):
            self._on_record(kinds.CONNECTION_CLOSED(text))

    def failed(self, session: Session, error: Exception) -> None:
        """What it said met a fault of ours: its session ends, and what it said is not heard again.
        It comes back as a newcomer; the second time it is expelled for good."""
        ref, text = session.ref, f"what it said can't be handled: {describe_fault(error)}"
        self._faults.note(f"node {ref} said what can't be handled", error)
        again = ref.incarnation in self._faulty
        self._hang_up(session, m.Expelled(jobs.stamp(self._job), text, True) if again else None)
        self._faulty.add(ref.incarnation)
        if self._sessions.get(ref.incarnation) is session:
            now = self._loop.time()
            self._lose(session, text, now, now)

    def turn_away(self, session: Session, text: str) -> None:
        """What it says can't be, and it would say it again: it is refused, and lost to the job."""
        if session.connection is not None:
            self._refuse(session.connection, text)
        now = self._loop.time()
        self._lose(session, text, now, now)

    def _apply(self, session: Session, report: m.Report, now: float) -> None:
        ref = session.ref
        match report:
            case m.Join(_, candidate):
                if text := claims.join_refused(self.settings, candidate):
                    self.turn_away(session, text)
                elif self._claims_rank(session, candidate.node_rank, now):
                    self._give_away_name(session, now)
                    self._node_ids[ref.node_id] = ref.incarnation
                    self._step(m.FromNode(ref, report), now)
            case m.Drain(hosts=hosts):
                self._yield_rank(session)
                hosts = hosts and ref.incarnation == self.own_agent
                self._step(m.FromNode(ref, replace(report, hosts=hosts)), now)
            case m.Leave():
                self._step(m.FromNode(ref, report), now)
                self._forget(session)
            case _:
                self._step(m.FromNode(ref, report), now)

    def _claims_rank(self, session: Session, node_rank: int, now: float) -> bool:
        """Whether it may join with this fixed rank; else it has been refused.

        A mistyped rank must not evict a healthy node. An id that a person gave is meant, though:
        the later one has it (behaviour R4), as whoever takes the place of a node that is gone.
        """
        holder = self._by_rank.get(node_rank)
        if node_rank < 0 or holder is session or self.verdict is not None:
            return True
        if holder is not None:
            ours = session.ref
            same_id = ours.node_id == holder.ref.node_id
            id_was_given = ours.node_id != id_of_rank(node_rank)
            if self._leases.is_here(holder.ref.incarnation, now):
                if same_id and not session.is_first:
                    return True  # the round machine knows which of the two was superseded
                if not (same_id and id_was_given):
                    self.turn_away(session, wording.rank_taken(node_rank, holder.ref, holder.host))
                    return False
            self._yield_rank(holder)
            if not same_id:
                self._give_away(holder, f"node {ours} has taken its rank {node_rank}", now)
        session.node_rank = node_rank
        self._by_rank[node_rank] = session
        return True

    def _yield_rank(self, session: Session) -> None:
        if self._by_rank.get(session.node_rank) is session:
            del self._by_rank[session.node_rank]
        session.node_rank = -1

    def _attached(self, session: Session, resumed: bool) -> m.Attached:
        return m.Attached(session.ref.node_id, self._job.incarnation, self._epoch, resumed)

    def _step(self, event: JobEvent, now: float) -> None:
        if isinstance(event, SessionLost) and event.ref.incarnation in self._sessions:
            return  # Tried again, but it is back: its next join tells that it has lost its workers.
        self._follow(self._machine(self._job, event, now), now)

    def _follow(self, effects: list[JobEffect], now: float) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception as error:  # the others are for other nodes
                self._faults.note(f"{type(effect).__name__} could not be done", error)
        if self._ended_at is None and self.verdict is not None:
            self._ended_at = now
            self._leases.job_ended()
        self._deadlines.want(jobs.timers_wanted(self._job))

    def _give_up(self, why: str) -> None:
        if self.verdict is None:
            text = f"the coordinator failed three times at the same event: {why}"
            self._follow(close_job(self._job, Outcome.INFRASTRUCTURE, text), self._loop.time())

    def _perform(self, effect: JobEffect) -> None:
        match effect:
            case m.ToNode(ref, m.Ended(stamp, verdict)):
                self._send(ref, m.Ended(stamp, self._dated(ref, verdict)))
            case m.ToNode(ref, m.Expelled() as expelled):
                self._send(ref, expelled)
                session = self._sessions.get(ref.incarnation)
                if session is not None:
                    self._forget(session)
                    self._hang_up(session)
            case RefuseNode(ref, differences):
                session = self._sessions.get(ref.incarnation)
                if session is not None and session.connection is not None:
                    self._refuse(session.connection, str(settings_conflict(differences)))
            case Record():
                self._on_record(effect)
            case m.ToNode(ref, message):
                self._send(ref, message)

    def _send(self, ref: NodeRef, message: m.ToAgent) -> None:
        session = self._sessions.get(ref.incarnation)
        if session is not None and session.connection is not None:
            session.connection.send(message)

    def _refuse(self, connection: Connection, text: str) -> None:
        self._on_record(kinds.NODE_REFUSED(peer=connection.peer, why=text))
        connection.send(m.Refused(text))
        connection.close()

    def _dated(self, ref: NodeRef, verdict: Verdict) -> Verdict:
        """Who came after the end is told how long ago that was."""
        session = self._sessions.get(ref.incarnation)
        if session is None or not session.came_late or self._ended_at is None:
            return verdict
        return replace(verdict, ended_s_ago=self._loop.time() - self._ended_at)

    def _hang_up(self, session: Session, last_word: m.Expelled | None = None) -> None:
        """An agent that is still there attaches anew, and learns what it missed."""
        if session.connection is not None:
            if last_word is not None:
                session.connection.send(last_word)
            session.connection.session = None
            session.connection.close()
            session.connection = None

    def _forget(self, session: Session, how: str = "") -> None:
        ref = session.ref
        self._sessions.pop(ref.incarnation, None)
        ended = f", and the job has ended: {self.verdict.text}" if self.verdict else ""
        self._desk.gone(ref, how or f"node {ref} has left{ended}")
        self._yield_rank(session)
        if self._node_ids.get(ref.node_id) == ref.incarnation:
            del self._node_ids[ref.node_id]
        self._leases.forget(ref.incarnation)
        if not self._sessions:
            self._loop.call_soon(self._on_empty)

    def _lease_ended(self, lost: Lost, now: float) -> None:
        if (session := self._sessions.get(lost.member)) is not None:
            self._lose(session, lost.why, lost.last_heard_at, now)

    def _lose(self, session: Session, why: str, last_heard_at: float, now: float) -> None:
        self._forget(session, f"node {session.ref} was lost: {why}")
        self._hang_up(session)
        wall_time = time.time() - (now - last_heard_at)
        self._own.apply(SessionLost(session.ref, why, last_heard_at, wall_time), now)

    def _give_away_name(self, session: Session, now: float) -> None:
        node_id = session.ref.node_id
        holder = self._sessions.get(self._node_ids.get(node_id, ""))
        if holder is not None and holder is not session and self.verdict is None:
            self._give_away(holder, f"another agent has joined as node {node_id}", now)

    def _give_away(self, holder: Session, why: str, now: float) -> None:
        """Another has its place. One that is here is superseded; one that is not was lost when it
        was last heard: what its peers have told since, they told because of that."""
        incarnation = holder.ref.incarnation
        if not self._leases.is_here(incarnation, now):
            self._lose(holder, why, self._leases.last_heard_at(incarnation, now), now)

    def _be_patient(self, patience: Patience) -> None:
        text = f"{patience.why}: no node is given up for another {self.settings.lease_s:g} s"
        self._on_record(kinds.PATIENCE(text))

    def _timer_ended(self, timer: Timer) -> None:
        self._own.apply(TimerEnded(timer), self._loop.time())
