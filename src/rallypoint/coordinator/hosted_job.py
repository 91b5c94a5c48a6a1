"""One job as the coordinator hosts it: the pure machine, its sessions, their liveness, its waits.

A session belongs to one incarnation of an agent and outlives its connections: a connection that
breaks leaves it in the reconnect grace, a new one with a higher generation takes it over, and the
agent is then told the truth as it is. Effects for an agent without a connection are dropped for
the same reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.coordinator.connection import Connection
from rallypoint.coordinator.deadlines import Deadlines
from rallypoint.coordinator.drain_desk import DrainDesk
from rallypoint.coordinator.translation import event_of, message_of
from rallypoint.core import job as jobs
from rallypoint.core import wording
from rallypoint.core.events import (
    ExpelNode,
    NodeJoined,
    NodeLeft,
    RefuseNode,
    Timer,
    TimerEnded,
)
from rallypoint.core.job_events import (
    GiveVerdict,
    JobCancelled,
    JobEffect,
    JobEvent,
    NodeDrains,
    Record,
    SessionLost,
)
from rallypoint.core.liveness import Liveness, Patience
from rallypoint.core.model import NodeRef, SharedSettings, Stamp, Verdict
from rallypoint.core.ranks import id_of_rank
from rallypoint.errors import SettingsConflictError
from rallypoint.wire import messages as m

LATE_S = 0.5
"""A timer of our own that fires so late says that this process did not run."""


class Session(Struct, eq=False):
    """What is known of one incarnation of an agent."""

    job: HostedJob
    ref: NodeRef
    settings: SharedSettings
    generation: int
    connection: Connection | None
    opened: int
    """The generation at which it was opened. An agent that names another does not know of it."""
    applied: int = 0
    """The last report that was applied."""
    is_first: bool = True
    """The agent's first session, as far as it knows: it has never been told of a round."""
    came_late: bool = False
    """The agent's first session, opened after the job's end."""
    host: str = ""
    """Where it was dialled from, for people."""
    node_rank: int = -1
    """The fixed rank that it has joined with; -1: none."""


class HostedJob:
    """For the thread of the loop. Nothing here blocks."""

    def __init__(
        self,
        settings: SharedSettings,
        incarnation: int,
        epoch: int,
        on_record: Callable[[Record], None],
        on_empty: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._job = jobs.new_job(settings)
        self._incarnation, self._epoch = incarnation, epoch
        self._on_record, self._on_empty = on_record, on_empty
        self._sessions: dict[str, Session] = {}
        self._node_ids: dict[str, str] = {}
        """Node id -> the incarnation that holds it."""
        self._by_rank: dict[int, Session] = {}
        """Fixed rank -> who holds it."""
        self._ended_at: float | None = None
        self._liveness = Liveness(settings.lease_s, settings.reconnect_grace_s)
        self._check: asyncio.TimerHandle | None = None
        self._desk = DrainDesk()
        self._deadlines = Deadlines(self._loop, self._timer_ended)

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, once it has."""
        return self._job.verdict

    @property
    def settings(self) -> SharedSettings:
        """What all nodes of the job agree on."""
        return self._job.round.settings

    @property
    def session_count(self) -> int:
        """Agents that are here, or may still come back."""
        return len(self._sessions)

    def knows(self, incarnation: str) -> bool:
        """This very agent takes part."""
        return incarnation in self._sessions

    def close(self) -> None:
        """Drop every connection and every wait."""
        if self._check is not None:
            self._check.cancel()
        self._deadlines.cancel()
        self._desk.close()
        for session in self._sessions.values():
            self._hang_up(session)
        self._sessions.clear()

    def attach(self, connection: Connection, hello: m.Attach) -> None:
        """An agent's first message on a connection: open its session, or resume it."""
        difference = self.settings.first_difference(hello.settings)
        if difference is not None:
            name, ours, theirs = difference
            conflict = SettingsConflictError(name, theirs, ours)
            self._refuse(connection, str(conflict))
            return
        session = self._sessions.get(hello.incarnation)
        resumed = session is not None and session.opened == hello.opened
        if session is None:
            ref = NodeRef(self._node_id(hello), hello.incarnation)
            generation = hello.generation
            session = Session(self, ref, hello.settings, generation, connection, generation)
            session.is_first = not hello.opened
            session.came_late = session.is_first and self.verdict is not None
            self._sessions[hello.incarnation] = session
            self._node_ids.setdefault(ref.node_id, hello.incarnation)
        elif hello.generation <= session.generation:
            connection.close()
            return
        else:
            self._replace(session, connection, hello.generation)
            if not resumed:
                session.opened = hello.generation
        connection.session = session
        session.host = connection.peer.rpartition(":")[0]
        self._heard(session)
        connection.send(m.Attached(session.ref.node_id, self._incarnation, self._epoch, resumed))
        connection.send(m.Ack(session.applied))
        for effect in jobs.truth(self._job, session.ref, self._loop.time()):
            self._perform(effect)
        if (why := self._desk.why(session.ref)) is not None:
            connection.send(m.DrainWanted(self._stamp(), why))

    def drain(self, connection: Connection, node_id: str, why: str) -> None:
        """A person wants a node to leave, and waits on this connection."""
        found = (s for s in self._sessions.values() if s.ref.node_id == node_id)
        session = next(found, None)
        if session is None:
            known = {s.ref.node_id for s in self._sessions.values()}
            self._desk.refuse(connection, node_id, known)
            return
        ref, is_here = session.ref, session.connection is not None
        is_leaving = jobs.is_leaving(self._job, ref)
        self._desk.want(connection, ref, why, is_leaving=is_leaving, is_here=is_here)
        if not is_leaving:
            self._send(ref, m.DrainWanted(self._stamp(), why))

    def received(
        self, connection: Connection, session: Session, message: m.Numbered | m.Heartbeat
    ) -> None:
        """A message of an attached agent."""
        self._heard(session)
        if isinstance(message, m.Heartbeat):
            connection.send(m.HeartbeatAck(message.number, self._stamp(), jobs.status(self._job)))
            return
        if message.number > session.applied:
            session.applied = message.number
            self._apply(session, message.report)
        connection.send(m.Ack(session.applied))
        if isinstance(message.report, m.Leave):
            connection.session = None
            connection.close()

    def connection_closed(self, session: Session, connection: Connection) -> None:
        """A connection ended; the session lives on for the reconnect grace."""
        if session.connection is connection:
            session.connection = None
            self._liveness.vanished(session.ref.incarnation, self._loop.time())
            self._watch()

    def _apply(self, session: Session, report: m.Report) -> None:
        ref = session.ref
        match report:
            case m.Join(seq, candidate):
                if self._claims_rank(session, candidate.node_rank):
                    self._node_ids[ref.node_id] = ref.incarnation
                    self._step(NodeJoined(ref, seq, candidate, session.settings))
            case m.Drain(why, signal, hosts, notice_s):
                self._yield_rank(session)
                self._step(NodeDrains(ref, why, signal, notice_s, hosts))
            case m.Cancel(why, signal):
                self._step(JobCancelled(ref, why, signal))
            case m.Leave():
                self._step(NodeLeft(ref))
                self._forget(session)
            case _ if self._is_ours(report.stamp):
                self._step(event_of(ref, report))
            case _:
                # About another coordinator's or incarnation's round: answer with the truth.
                for effect in jobs.truth(self._job, ref, self._loop.time()):
                    self._perform(effect)

    def _claims_rank(self, session: Session, node_rank: int) -> bool:
        """Whether it may join with this fixed rank; else it has been refused.

        A mistyped rank must not evict a healthy node. An id that a person gave is meant, though:
        the later one has it (behaviour R4), as whoever takes the place of a node that is gone.
        """
        holder = self._by_rank.get(node_rank)
        if node_rank < 0 or holder is session or self.verdict is not None:
            return True
        if holder is not None:
            ours, now = session.ref, self._loop.time()
            same_id = ours.node_id == holder.ref.node_id
            id_was_given = ours.node_id != id_of_rank(node_rank)
            if self._liveness.is_here(holder.ref.incarnation, now):
                if same_id and not session.is_first:
                    return True  # the round machine knows which of the two was superseded
                if not (same_id and id_was_given):
                    self._turn_away(session, wording.rank_taken(node_rank, holder.ref, holder.host))
                    return False
            self._yield_rank(holder)
            if not same_id:
                self._lose(holder, f"node {ours} has taken its rank {node_rank}", now)
        session.node_rank = node_rank
        self._by_rank[node_rank] = session
        return True

    def _yield_rank(self, session: Session) -> None:
        if self._by_rank.get(session.node_rank) is session:
            del self._by_rank[session.node_rank]
        session.node_rank = -1

    def _turn_away(self, session: Session, text: str) -> None:
        connection = session.connection
        self._forget(session)
        self._hang_up(session, m.Refused(text))
        if connection is not None:
            self._on_record(Record("node_refused", f"refused {connection.peer}, told it: {text}"))

    def _step(self, event: JobEvent) -> None:
        now = self._loop.time()
        for effect in jobs.step(self._job, event, now):
            self._perform(effect)
        if self._ended_at is None and self.verdict is not None:
            self._ended_at = now
        self._deadlines.want(jobs.timers_wanted(self._job))

    def _perform(self, effect: JobEffect) -> None:
        match effect:
            case GiveVerdict(ref, verdict):
                self._send(ref, m.Ended(self._stamp(verdict.round), self._dated(ref, verdict)))
            case ExpelNode(ref, why, final):
                self._send(ref, m.Expelled(self._stamp(), why, final))
                session = self._sessions.get(ref.incarnation)
                if session is not None:
                    self._forget(session)
                    self._hang_up(session)
            case RefuseNode(ref, setting, job_value, node_value):
                session = self._sessions.get(ref.incarnation)
                if session is not None and session.connection is not None:
                    conflict = SettingsConflictError(setting, node_value, job_value)
                    self._refuse(session.connection, str(conflict))
            case Record():
                self._on_record(effect)
            case _:
                self._send(effect.ref, message_of(effect, self._stamp))

    def _send(self, ref: NodeRef, message: m.ToAgent) -> None:
        session = self._sessions.get(ref.incarnation)
        if session is not None and session.connection is not None:
            session.connection.send(message)

    def _refuse(self, connection: Connection, text: str) -> None:
        self._on_record(Record("node_refused", f"refused {connection.peer}, told it: {text}"))
        connection.send(m.Refused(text))
        connection.close()

    def _dated(self, ref: NodeRef, verdict: Verdict) -> Verdict:
        """Who came after the end is told how long ago that was."""
        session = self._sessions.get(ref.incarnation)
        if session is None or not session.came_late or self._ended_at is None:
            return verdict
        return replace(verdict, ended_s_ago=self._loop.time() - self._ended_at)

    def _hang_up(self, session: Session, last_word: m.Refused | None = None) -> None:
        """An agent that is still there attaches anew, and learns what it missed."""
        if session.connection is not None:
            if last_word is not None:
                session.connection.send(last_word)
            session.connection.session = None
            session.connection.close()
            session.connection = None

    def _replace(self, session: Session, connection: Connection, generation: int) -> None:
        self._hang_up(session)
        session.connection, session.generation = connection, generation

    def _node_id(self, hello: m.Attach) -> str:
        """The given id, or the former one, or the host name with the smallest free ordinal."""
        if hello.node_id:
            return hello.node_id
        if hello.former_id and hello.former_id not in self._node_ids:
            return hello.former_id
        ordinal = 0
        while f"{hello.host_name}-{ordinal}" in self._node_ids:
            ordinal += 1
        return f"{hello.host_name}-{ordinal}"

    def _forget(self, session: Session, how: str = "") -> None:
        ref = session.ref
        self._sessions.pop(ref.incarnation, None)
        ended = f", and the job has ended: {self.verdict.text}" if self.verdict else ""
        self._desk.gone(ref, how or f"node {ref} has left{ended}")
        self._yield_rank(session)
        if self._node_ids.get(ref.node_id) == ref.incarnation:
            del self._node_ids[ref.node_id]
        self._liveness.forget(ref.incarnation)
        if not self._sessions:
            self._loop.call_soon(self._on_empty)

    def _heard(self, session: Session) -> None:
        self._liveness.heard(session.ref.incarnation, self._loop.time())
        if self._check is None:
            self._watch()

    def _watch(self) -> None:
        """Look again when somebody may be lost: one timer for all sessions."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        delay_s = self._liveness.next_check(self._loop.time())
        if delay_s is not None:
            due_at = self._loop.time() + delay_s
            self._check = self._loop.call_at(due_at, self._check_liveness, due_at)

    def _check_liveness(self, due_at: float) -> None:
        self._check = None
        now = self._loop.time()
        late_s = now - due_at
        patience = self._liveness.lagged(now, late_s) if late_s > LATE_S else None
        if patience is not None:
            self._be_patient(patience)
        lost, patience = self._liveness.check(now)
        if patience is not None:
            self._be_patient(patience)
        for item in lost:
            self._lose(self._sessions[item.member], item.why, item.last_heard_at)
        self._watch()

    def _lose(self, session: Session, why: str, last_heard_at: float) -> None:
        self._forget(session, f"node {session.ref} was lost: {why}")
        self._hang_up(session)
        wall_time = time.time() - (self._loop.time() - last_heard_at)
        self._step(SessionLost(session.ref, why, last_heard_at, wall_time))

    def _be_patient(self, patience: Patience) -> None:
        text = f"{patience.why}: waiting one more lease ({self.settings.lease_s:g} s)"
        self._on_record(Record("patience", text))

    def _timer_ended(self, timer: Timer) -> None:
        self._step(TimerEnded(timer))

    def _is_ours(self, stamp: Stamp) -> bool:
        return (stamp.incarnation, stamp.epoch) == (self._incarnation, self._epoch)

    def _stamp(self, round_: int | None = None) -> Stamp:
        current = self._job.round.round if round_ is None else round_
        return Stamp(self._incarnation, self._epoch, current)
