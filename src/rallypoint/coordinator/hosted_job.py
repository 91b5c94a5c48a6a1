"""One job of a coordinator, on asyncio.

`core/sessions.py` decides; this module keeps the connections, sends, waits, and retries what
failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from msgspec.structs import replace

from rallypoint.clocks import Alarm, Timers, Turns
from rallypoint.coordinator.connection import ServerConnection, refuse_answer, tell_of_drain
from rallypoint.coordinator.watching import JobWatch
from rallypoint.core import event_kinds as kinds
from rallypoint.core import host_effects, job_requests
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import Timer, TimerEnded
from rallypoint.core.host_effects import HostEffect
from rallypoint.core.job_lives import Life
from rallypoint.core.job_requests import DrainRequest
from rallypoint.core.job_state import FormerLifeGone, JobEvent, JobState, PlacesDead, RoundIsOver
from rallypoint.core.model import DeadPlace, EndReason, SharedSettings, Verdict
from rallypoint.core.round_state import RoundState
from rallypoint.core.session_state import Session
from rallypoint.core.sessions import Sessions
from rallypoint.core.text import named, quoted_job
from rallypoint.core.watch.questions import DRAINED, Subject
from rallypoint.observe.faults import Faults, describe_fault
from rallypoint.store.refusal_log import WINDOW_S, RefusalLog
from rallypoint.wire.codec import for_version

SPARE_SESSIONS = 1000
"""The number of sessions that a job may have beyond twice its `max_nodes`: spares, and nodes not
yet found lost."""
TRIES = 3
P = ParamSpec("P")
R = TypeVar("R")
RETRY_S = 1.0


class Gate(Protocol):
    """The gate that keeps the effects of a job's decisions back until these are recorded.

    A coordinator has one for each life of a job that another coordinator can take over.
    """

    def after(self, effects: list[HostEffect]) -> list[HostEffect]:
        """Return those of these effects that may be carried out now; the others are kept back."""

    def answer(
        self, heartbeat: m.Heartbeat, effects: list[HostEffect], connection: int, incarnation: str
    ) -> list[HostEffect]:
        """Return the effects of a heartbeat on this connection that may be carried out now.

        `effects` are those that the heartbeat has caused. `incarnation` is the id of the agent
        whose session uses the connection; empty: none does any more.
        """

    @property
    def is_open(self) -> bool:
        """Whether all decisions of the job are recorded.

        What nodes are to do about them has been sent by now, so that waits for it may begin.
        """

    def close(self) -> None:
        """Close the gate: the job is hosted no more."""


NEWS_S = 0.1
"""The delay in seconds between a change of the job and a status in the history file."""

OpenGate = Callable[[Callable[[list[HostEffect]], None], Callable[[str, float], bool]], Gate]
"""Makes a gate. It gets the function that executes delayed effects, and one that returns whether
the agent with an id was silent for so many seconds (0: is disconnected)."""


class HostedJob:
    """One life of a job at its coordinator: one run of it, from its first round to its verdict.

    For the thread of the loop. Never blocks.
    """

    def __init__(
        self,
        sessions: Sessions,
        on_record: Callable[[Record], None],
        on_empty: Callable[[], None],
        open_gate: OpenGate | None = None,
        refusals: NodeRefusals | None = None,
    ) -> None:
        """`on_empty` is called when no session of an agent is left.

        `open_gate`: None if no other coordinator can take the job over. `refusals`: the log of
        refused nodes that all jobs of the coordinator share; None: this job gets its own.
        """
        self._loop = asyncio.get_running_loop()
        self._sessions = sessions
        self._on_record, self._on_empty = on_record, on_empty
        self._refusals = refusals or NodeRefusals(lambda _run_id, record: on_record(record))
        self._connections: dict[int, ServerConnection] = {}
        """The connections of agents and of people, by their numbers."""
        self._attached: dict[int, ServerConnection] = {}
        """The connections of agents to which `Attached` was sent; before it an agent ignores other
        messages."""
        self._pushes = Turns()
        """The queue of messages to agents."""
        self._timers = Timers(self._loop, self._timer_ended)
        self._check = Alarm(self._loop, self._look)
        self._news = Alarm(self._loop, self._write_news)
        self._faults = Faults(lambda text: on_record(kinds.FAULT(text)))
        self._is_closed = False
        self._gate = None if open_gate is None else open_gate(self._let_pass, self._is_silent)
        self.watch = JobWatch(sessions, self._loop.time, self._attached.get)
        self.watch.carries = open_gate is not None
        self._want_timers()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the job; None: it has not ended."""
        return self._sessions.verdict

    @property
    def life(self) -> Life:
        """The number of this life of the job, its verdict, and whether workers got the number."""
        return self._sessions.life

    @property
    def settings(self) -> SharedSettings:
        """The settings that all nodes of the job agree on."""
        return self._sessions.settings

    @property
    def round(self) -> RoundState:
        """The state of the rendezvous: of the active round, or of the one that is being formed."""
        return self._sessions.job.round

    @property
    def sessions(self) -> Collection[Session]:
        """The sessions of agents that are connected, or may still return."""
        return self._sessions.all

    @property
    def own_agent(self) -> str:
        """The unique id (incarnation) of the agent in whose process this coordinator runs.

        Empty: there is none, or it is not known yet.
        """
        return self._sessions.job.own_agent

    def lives_in(self, incarnation: str) -> None:
        """Note that this coordinator runs in the process of the agent with this unique id."""
        self._sessions.job.own_agent = incarnation

    def knows(self, incarnation: str) -> bool:
        """Return whether the agent with this unique id has a session in this life of the job."""
        return self._sessions.of_agent(incarnation) is not None

    def crowded(self, incarnation: str) -> str:
        """Return why the agent with this id (`incarnation`) is not admitted; empty: it is.

        One with a session is admitted. Others are refused when there are too many sessions.
        """
        nodes = self.settings.max_nodes
        if len(self.sessions) < 2 * nodes + SPARE_SESSIONS or self.knows(incarnation):
            return ""
        return (
            f"{quoted_job(self.settings.run_id)} has {len(self.sessions)} agents already, of which "
            f"at most {nodes} can take part ({named.nnodes}): look for what starts agents again "
            "and again"
        )

    def carries(self, connection: ServerConnection) -> bool:
        """Return whether the session of an agent uses this connection."""
        return self._sessions.on(connection.number) is not None

    def former_life_gone(self) -> None:
        """Note that no agent of the job's earlier life is left: the first round may form."""
        self._run(self._sessions.apply_own(FormerLifeGone(), self._loop.time()))

    def tell_all(self, message: m.ToAgent) -> None:
        """Send a message to every connected agent that has a session."""
        for number, connection in self._connections.items():
            if self._sessions.on(number) is not None:
                connection.send(message)

    def renumber(self, incarnation: int) -> None:
        """Change the incarnation number of this life before the first round, whose workers get it.

        All agents are told a number that differs from the present one.
        """
        if incarnation != self.life.incarnation:
            self._run(self._sessions.renumber(incarnation))

    def close(self) -> None:
        """Close every connection, and end the timers and waits.

        A status that is due is written into the history file first.
        """
        self._is_closed = True
        self._check.cancel()
        self._timers.want({})
        if self._news.cancel():
            self._write_news()
        self.watch.close()
        self._faults.tell_counts()
        if self._gate is not None:
            self._gate.close()
        self._pushes.finish()
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        self._attached.clear()

    def attach(self, connection: ServerConnection, hello: m.Attach) -> None:
        """Handle an agent's first message on a connection.

        Its session is opened or resumed, or the agent is refused.
        """
        self._connections[connection.number] = connection
        now = self._loop.time()
        self._run(self._sessions.attach(connection.number, connection.peer, hello, now))

    def received(self, connection: ServerConnection, message: m.Numbered | m.Heartbeat) -> None:
        """Handle a message of an agent that has attached on this connection."""
        effects = self._sessions.received(connection.number, message, self._loop.time())
        if isinstance(message, m.Heartbeat):
            if said := self.see(self.watch.heard, connection.number, message):
                effects = [*effects, said]
            if self._gate is not None:
                session = self._sessions.on(connection.number)
                life = "" if session is None else session.ref.incarnation
                effects = self._gate.answer(message, effects, connection.number, life)
            self._do(effects)
            # Else it changes no wait, and makes no check due earlier.
            if any(isinstance(effect, host_effects.Refuse) for effect in effects):
                self._run([])
        else:
            if isinstance(message.report, m.Join):
                self.see(self.watch.joined, connection.number)
            self._run(effects)

    def collected(self, connection: ServerConnection, piece: m.Collected) -> None:
        """Pass a piece of an answer from an agent to the person who asked about workers."""
        self.see(self.watch.collected, connection.number, piece)

    def connection_closed(self, connection: ServerConnection) -> None:
        """Note that a connection ended; an agent's session stays for a grace time."""
        self._connections.pop(connection.number, None)
        self._attached.pop(connection.number, None)
        self.see(self.watch.closed, connection.number)
        now, reset = self._loop.time(), not connection.ended_by_peer
        self._sessions.connection_closed(connection.number, now, reset=reset)
        self._watch()

    def agent_died(self, connection: ServerConnection, notice: m.AgentDied) -> None:
        """Handle the report of an agent's death from its guard, a helper process that outlives it.

        The guard sent the report on this connection. Without the right proof it is ignored.
        """
        from rallypoint.wire.death_notice import is_proven

        now = self._loop.time()
        self._run(self._sessions.agent_died(connection.peer, notice, is_proven, now))

    def end_round(self, reason: EndReason) -> None:
        """End the active round for this reason, if there is an active round."""
        self._run(self._sessions.apply_own(RoundIsOver(reason), self._loop.time()))

    def known(self) -> JobState:
        """Return the state of the job, after storing the present sums of its history in it."""
        self.see(self.watch.carry)
        return self._sessions.job

    def told_dead(self, places: Sequence[DeadPlace]) -> None:
        """Note the places in a round's world of which neither agent nor worker lives.

        The agents' guards (helper processes), or later agents on their machines, have reported it.
        """
        if places:
            event = PlacesDead(tuple(places))
            self._run(self._sessions.apply_own(event, self._loop.time()))

    def failed(self, connection: ServerConnection, error: Exception) -> None:
        """Log an unexpected exception over an agent's message, and end its session.

        Its agent may come back as a newcomer; the second time it is refused for good.
        """
        session = self._sessions.on(connection.number)
        if session is not None:
            self._faults.note(f"a message of node {session.ref} can't be handled", error)
            text = f"a message of it can't be handled: {describe_fault(error)}"
            self._run(self._sessions.failed(connection.number, text, self._loop.time()))

    def turn_away(self, connection: ServerConnection, text: str) -> None:
        """Refuse the agent on this connection, whose message is not valid; `text` says why."""
        self._run(self._sessions.turn_away(connection.number, text, self._loop.time()))

    def asked(self, connection: ServerConnection, question: m.Ask) -> None:
        """Handle the request or question of a person, who waits on this connection.

        Raises MessageError as `JobWatch.asked` does.
        """
        self._connections[connection.number] = connection  # It ends with the job.
        question = replace(question, nodes=tuple(map(self._sessions.meant, question.nodes)))
        if other := job_requests.of_other_life(self._sessions.job, question):
            refuse_answer(connection, other)
            return
        ends = self._sessions.ends_with(question.node) if question.asks else ""
        if ends:
            tell_of_drain(connection, m.DrainAnswer(ends, done=True, ends_job=True))
            return
        if (told := self.see(self.watch.tell_of, connection, question)) is not None:
            self._do([told])  # It is no decision of the job, and waits for no record.
        if question.subject is Subject.DRAIN:
            drain = DrainRequest(connection.number, question.node, DRAINED)
            self._run(self._sessions.drain(drain))
        elif (wanted := self.watch.asked(connection, question)) is not None:
            self._run(self._sessions.apply_own(wanted, self._loop.time()))
        else:
            self._answer_requests()  # It may be done already.

    def _is_silent(self, incarnation: str, seconds: float) -> bool:
        liveness = self._sessions.liveness
        is_silent = liveness.is_silent(incarnation, self._loop.time() - seconds)
        return is_silent if seconds else liveness.is_disconnected(incarnation)

    def _timer_ended(self, timer: Timer) -> None:
        self._run(self._sessions.apply_own(TimerEnded(timer), self._loop.time()))

    def _look(self) -> None:
        now = self._loop.time()
        self._run(self._sessions.check(now, now - self._check.at))

    def _run(self, effects: list[HostEffect], tries: int = TRIES) -> None:
        self._perform_all(effects, tries)
        self.see(self.watch.noted)
        if self.watch.has_news and not self._is_closed:
            self._news.set(self._loop.time() + NEWS_S)
        self._answer_requests()
        if not self._is_closed:
            self._want_timers()
            self._watch()

    def _write_news(self) -> None:
        self.see(self.watch.write_news)

    def see(self, see: Callable[P, R], *seen: P.args, **named: P.kwargs) -> R | None:
        """Call a function of the job's history and viewers; an exception must not disturb the job.

        Returns None if it raised, and logs that.
        """
        try:
            return see(*seen, **named)
        except Exception as error:
            self._faults.note("the history of the job can't be kept", error)
            return None

    def _let_pass(self, effects: list[HostEffect]) -> None:
        """Execute the effects that were delayed by the gate."""
        self._do(effects)
        self._answer_requests()
        if not self._is_closed:
            self._want_timers()

    @property
    def is_recorded(self) -> bool:
        """Whether no decision of the job waits for a record."""
        return self._gate is None or self._gate.is_open

    def _answer_requests(self) -> None:
        if self.is_recorded:
            self.see(self.watch.answer_requests)

    def _want_timers(self) -> None:
        self._timers.want(self._sessions.timers_wanted(), may_begin=self.is_recorded)

    def _perform_all(self, effects: list[HostEffect], tries: int = TRIES) -> None:
        if self._gate is not None:
            effects = self._gate.after(effects)
        self._do(effects, tries)

    def _do(self, effects: list[HostEffect], tries: int = TRIES) -> None:
        for effect in effects:
            if isinstance(effect, host_effects.SendTo | host_effects.HangUp | host_effects.Refuse):
                self._pushes.add((partial(self._attempt, effect),))
            else:
                self._attempt(effect, tries)
        self._pushes.go()

    def _attempt(self, effect: HostEffect, tries: int = TRIES) -> None:
        try:
            self._perform(effect, tries)
        except Exception as error:  # the others are for other nodes
            self._faults.note(f"{type(effect).__name__} could not be done", error)

    def _perform(self, effect: HostEffect, tries: int) -> None:
        match effect:
            case host_effects.SendTo(number, message):
                if (connection := self._connections.get(number)) is not None:
                    if isinstance(message, m.Ended):
                        message = self.see(self.watch.whole, message) or message
                    said = for_version(message, connection.version)
                    if isinstance(said, m.DrainAnswer):
                        tell_of_drain(connection, said)
                    elif said is not None:
                        connection.send(said)
                    if isinstance(said, m.Attached):
                        self._attached[number] = connection
            case host_effects.HangUp(number):
                if (connection := self._connections.get(number)) is not None:
                    connection.close()
            case host_effects.Refuse(number, text):
                if (connection := self._connections.get(number)) is not None:
                    self._refusals.refuse(self.settings.run_id, connection, text)
            case Record():
                self.see(self.watch.record, effect)
                self._on_record(effect)
            case host_effects.Empty():
                self._loop.call_soon(self._on_empty)
            case host_effects.Faulted(event, error):
                self._faulted(event, error, tries)

    def _faulted(self, event: JobEvent, error: Exception, tries: int) -> None:
        self._faults.note(f"{type(event).__name__} could not be applied", error)
        if tries > 1:
            self._loop.call_later(RETRY_S, self._try_again, event, tries - 1)
        else:
            self._run(self._sessions.give_up(describe_fault(error), self._loop.time()))

    def _try_again(self, event: JobEvent, tries: int) -> None:
        if not self._is_closed:
            self._run(self._sessions.apply_own(event, self._loop.time()), tries)

    def _watch(self) -> None:
        """Set the one timer that finds lost nodes.

        It rings too early if the node was heard meanwhile.
        """
        now = self._loop.time()
        delay_s = self._sessions.liveness.next_check(now)
        if delay_s is not None and not self._is_closed:
            self._check.set(now + delay_s)


class NodeRefusals:
    """The refusals of agents: the reason is sent to the agent, and logged at the coordinator.

    A node may come again and again, with another mistake each time, and must not fill the log. So
    each address and reason is shown once while it is remembered, and at most 64 lines come in a
    minute, as for strangers (`store/refusal_log.py` decides). The rest is counted. For the thread
    of the loop.
    """

    def __init__(self, on_record: Callable[[str, Record], None]) -> None:
        """Make the log; `on_record` is called with the run id and the event."""
        self._loop = asyncio.get_running_loop()
        self._on_record, self._log = on_record, RefusalLog()
        self._more = 0
        """The number of refusals without a line in the log since `close` was last called."""
        self._last = ("", "", "")
        """The run id, the peer and the reason of the last refusal without a line in the log."""
        self._alarm = Alarm(self._loop, self.close)

    def refuse(self, run_id: str, connection: ServerConnection, why: str) -> None:
        """Send an agent the reason of its refusal, log it, and disconnect."""
        self._note(run_id, connection.peer, why)
        connection.send(m.Refused(why))
        connection.close()

    def close(self) -> None:
        """Log the number of refusals that had no line of their own, if there were any.

        Also called by a timer, a minute after the first of them. Safe to call twice.
        """
        self._alarm.cancel()
        self._log.left_out()
        more, self._more = self._more, 0
        if more:
            run_id, peer, why = self._last
            others = f"{more} more within {WINDOW_S:g} s, the last"
            self._on_record(run_id, kinds.NODE_REFUSED(peer=f"{others} from {peer}", why=why))

    def _note(self, run_id: str, peer: str, why: str) -> None:
        # A node has another port each time.
        subject = peer.rpartition(":")[0], f"{run_id}: {why}"
        if self._log.is_logged(subject, self._loop.time()):
            self._on_record(run_id, kinds.NODE_REFUSED(peer=peer, why=why))
            return
        self._more += 1
        self._last = run_id, peer, why
        self._alarm.set(self._loop.time() + WINDOW_S)
