"""The questions of people about the output or stacks of a job's workers, on asyncio.

`core/watch/collection.py` decides; this module keeps the connections, sends, and tells it the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import repeat

from msgspec import Struct

from rallypoint.clocks import Alarm, Turns
from rallypoint.coordinator.connection import ServerConnection, answer, refuse_answer
from rallypoint.core import messages as m
from rallypoint.core.host_effects import SendTo
from rallypoint.core.sessions import Sessions
from rallypoint.core.watch import collection as machine
from rallypoint.core.watch.questions import Ask
from rallypoint.errors import MessageError

TICK_S = 1.0


class _Gathering(Struct, eq=False):
    """One person's question about workers: the person's connection, and the state of the answer."""

    asker: ServerConnection
    collection: machine.Collection


class Gatherings:
    """The questions of people about the output or stacks of one job's workers, until answered.

    For the thread of the loop.
    """

    def __init__(
        self,
        sessions: Sessions,
        connection_of: Callable[[int], ServerConnection | None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sessions, self._connection_of = sessions, connection_of
        self._all: dict[int, _Gathering] = {}
        self._numbers = 0
        self._alarm = Alarm(self._loop, self._tick)
        self._turns = Turns()
        """The queue of messages to nodes and of looks at nodes; each turn of the loop does some of
        them."""

    def begin(self, asker: ServerConnection, question: Ask, *, is_end_known: bool = False) -> None:
        """Begin to answer a person's question on the connection `asker`, or refuse it in words.

        `is_end_known`: the end of the job is published. Raises MessageError if an earlier question
        on this connection is not answered yet.
        """
        if self._of(asker.number):
            raise MessageError("this was asked before the last answer had ended")
        job, formed = self._sessions.job, self._sessions.life.has_formed
        others, known = len(self._all), is_end_known
        if text := machine.refusal(job, question, others, has_formed=formed, is_known=known):
            refuse_answer(asker, text)
            return
        self._numbers = number = self._numbers + 1
        collection = machine.begin(number, job, question, self._loop.time())
        self._all[number] = _Gathering(asker, collection)
        self._step(number, machine.Asked())
        self._tick_later()

    def _of(self, asker: int) -> int:
        """Return the number of the question on this connection; 0: there is none."""
        return next((n for n, each in self._all.items() if each.asker.number == asker), 0)

    def taken(self, asker: int) -> None:
        """Handle that the person on this connection has acknowledged a value of the answer.

        A limited number of values is sent before that; so more may be sent now.
        """
        self._step(self._of(asker), machine.Taken())

    def collected(self, connection: int, piece: m.Collected) -> None:
        """Handle a piece of an answer from the agent on this connection."""
        session, job = self._sessions.on(connection), self._sessions.job
        node = None if session is None else machine.workers_of(job, session.ref.node_id)
        self._step(piece.number, machine.Piece(connection, piece, node, job.incarnation))

    def closed(self, connection: int) -> None:
        """Handle that the connection of a person or of an agent has ended.

        A person's question is dropped. An agent's node is missing in the answers; but where the
        person follows the output, it is asked again when it is back.
        """
        self._step(self._of(connection), machine.HungUp())
        self._step_all(machine.Lost(connection))

    def close(self) -> None:
        """Drop all open questions, without answering them: the job is no longer hosted."""
        self._alarm.cancel()
        self._all.clear()

    def job_ended(self) -> None:
        """Have the answers end soon, after the workers' last output: the job's end is published."""
        self._step_all(machine.JobEnded())

    def check_deadlines(self) -> None:
        """Let each answer do what is due by now, and end those whose person has hung up.

        Called each second while there are questions.
        """
        for gathering in [each for each in self._all.values() if each.asker.is_closed]:
            self._step(gathering.collection.number, machine.HungUp())
        self._step_all(machine.TimePassed())

    def _tick_later(self) -> None:
        if self._all:
            self._alarm.set(self._loop.time() + TICK_S)

    def _tick(self) -> None:
        self.check_deadlines()
        self._tick_later()

    def _connection(self, node_id: str) -> ServerConnection | None:
        """Return the connection of this node's agent; None: the agent is not connected."""
        session = self._sessions.of_node(node_id)
        number = None if session is None else session.connection
        return None if number is None else self._connection_of(number)

    def _step_all(self, event: machine.CollectionEvent) -> None:
        for number in list(self._all):
            self._step(number, event)

    def _step(self, number: int, event: machine.CollectionEvent) -> None:
        if (gathering := self._all.get(number)) is not None:
            for effect in machine.step(gathering.collection, event, self._loop.time()):
                self._do(number, gathering.asker, effect)
            self._turns.go()

    def _do(self, number: int, asker: ServerConnection, effect: machine.CollectionEffect) -> None:
        match effect:
            case machine.LookAround():
                nodes = self._sessions.job.assigned
                self._turns.add(map(partial, repeat(self._look_at), repeat(number), nodes))
                self._turns.add((partial(self._step, number, machine.AllSeen()),))
            case SendTo(connection, message):
                self._turns.add((partial(self._send, connection, message),))
            case machine.Pass(part):
                answer(asker, part, is_last=False)
            case machine.Finish(part):
                answer(asker, part, is_last=True)
                self._all.pop(number, None)
            case machine.CutOff():
                asker.abort()
                self._all.pop(number, None)

    def _look_at(self, number: int, node_id: str) -> None:
        if (node := machine.workers_of(self._sessions.job, node_id)) is not None:
            connection = self._connection(node_id)
            where = (None, 0) if connection is None else (connection.number, connection.version)
            self._step(number, machine.NodeSeen(node, *where))

    def _send(self, connection: int, message: m.ToAgent) -> None:
        if (found := self._connection_of(connection)) is not None:
            found.send(message)
