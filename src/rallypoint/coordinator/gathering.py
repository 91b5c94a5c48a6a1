"""What people ask of a job's workers: the coordinator collects it from the nodes, and passes each
piece on as it comes. At most `PIECES_IN_FLIGHT` of them are under way for one person, who says of
each that it was taken; nodes wait with what they have (`core/watch/collecting.py`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import repeat

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.clocks import Turns
from rallypoint.coordinator.connection import ServerConnection, answer, refuse_answer
from rallypoint.core import messages as m
from rallypoint.core.model import Assignment
from rallypoint.core.sessions import Sessions
from rallypoint.core.text import names
from rallypoint.core.watch.collecting import (
    ALL_LINES,
    ANSWER_S,
    PIECES_IN_FLIGHT,
    Gathered,
    HowFar,
    RankTold,
    of_rank,
)
from rallypoint.core.watch.questions import Ask
from rallypoint.errors import MessageError

SINCE = 3
"""The version of the session protocol that has `Collect`."""
ASKERS_MAX = 64
"""So many people may ask at once."""
TICK_S = 1.0
STALLED_S = 60.0
"""Who takes nothing for so long is cut off, but for who follows: that may be a pager."""
LAST_S = 2.0
"""So long after a job's end its nodes may tell what their workers wrote last."""


class _State(Enum):
    QUIET = "it has said nothing yet, or has nothing more now"
    READY = "it has something"
    SENDING = "it was told to send a piece"


class _Part(Struct, eq=False):
    """One node's."""

    node_id: str
    connection: ServerConnection
    bases: dict[int, int]
    """The rank of its first worker, by the numbers of rounds."""
    workers: int
    since: float
    state: _State = _State.QUIET
    has_answered: bool = False


class _Asked(Struct):
    """Which nodes were asked."""

    rounds: dict[str, int] = field(default_factory=dict)
    """For which round each of them was."""
    left: int = 0
    """So many nodes are to be looked at in the next turns of the loop."""


class _Gathering(Struct, eq=False):
    """What one person has asked for."""

    number: int
    asker: ServerConnection
    question: Ask
    round: int
    taken_at: float
    parts: dict[int, _Part] = field(default_factory=dict)
    """Of those that may still say something, by their connections."""
    asked: _Asked = field(default_factory=_Asked)
    read: HowFar = field(default_factory=HowFar)
    """Of who follows."""
    ready: deque[_Part] = field(default_factory=deque)
    credit: int = PIECES_IN_FLIGHT
    """So many more pieces may be under way."""
    untaken: int = 0
    """Values that were sent on, and of which the person has not said that they were taken."""
    missing: dict[str, str] = field(default_factory=dict)


class Gatherings:
    """Of one job. For the thread of the loop."""

    def __init__(
        self,
        sessions: Sessions,
        connection_of: Callable[[int], ServerConnection | None],
        ended_at: float | None = None,
    ) -> None:
        """`ended_at`: when people were told that the job has ended; None: they were not."""
        self._loop = asyncio.get_running_loop()
        self._sessions, self._connection_of = sessions, connection_of
        self._all: dict[int, _Gathering] = {}
        self._by_asker: dict[int, _Gathering] = {}
        self._numbers = 0
        self._ends_at = None if ended_at is None else ended_at + LAST_S
        """Then nobody is waited for any longer. None: people don't know that the job has ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._turns = Turns()
        self._sized: tuple[dict[str, Assignment], dict[str, int]] = ({}, {})
        """The places of a world, and what `_sizes` has found of them."""

    def begin(self, asker: ServerConnection, question: Ask) -> None:
        """A person asks this on a connection of their own."""
        if asker.number in self._by_asker:
            raise MessageError("this was asked before the last answer had ended")
        if refusal := self._refusal(question):
            refuse_answer(asker, refusal)
            return
        self._numbers += 1
        gathering = _Gathering(self._numbers, asker, question, self._round, self._loop.time())
        if question.incarnation == self._sessions.job.incarnation:
            gathering.read = HowFar(question.read)
        self._all[gathering.number] = self._by_asker[asker.number] = gathering
        self._collect(gathering)
        self._tick_later()
        self._end_if_done(gathering)

    def taken(self, asker: int) -> None:
        """Who asks on this connection has taken a value."""
        if (gathering := self._by_asker.get(asker)) is not None and gathering.untaken:
            gathering.untaken -= 1
            gathering.credit += 1
            gathering.taken_at = self._loop.time()
            self._send_on(gathering)

    def collected(self, connection: int, piece: m.Collected) -> None:
        """The agent on this connection says this."""
        gathering = self._all.get(piece.number)
        part = None if gathering is None else gathering.parts.get(connection)
        if gathering is None or part is None:
            return
        was_sending, part.has_answered = part.state is _State.SENDING, True
        if not piece.told and not piece.is_last and not was_sending:
            if part.state is _State.QUIET:
                part.state = _State.READY
                gathering.ready.append(part)
        else:
            told = self._told(part, piece) if was_sending else []
            gathering.credit += was_sending
            if part.state is not _State.READY:
                part.state, part.since = _State.QUIET, self._loop.time()
            if told:
                if gathering.question.follow:
                    gathering.read.note(piece.round, told)
                life = self._sessions.job.incarnation
                _tell(gathering, Gathered(part.node_id, piece.round, told, incarnation=life))
            if piece.is_last:
                self._drop(gathering, connection)
        self._send_on(gathering)
        self._end_if_done(gathering)

    def closed(self, connection: int) -> None:
        """This connection has ended: of a person, or of an agent."""
        if (ended := self._by_asker.pop(connection, None)) is not None:
            self._forget(ended)
        for gathering in list(self._all.values()):
            part = gathering.parts.get(connection)
            if part is not None:
                self._drop(gathering, connection)
                if self._ends_at is None and not gathering.question.follow:
                    gathering.missing[part.node_id] = "its connection broke"
                gathering.asked.rounds[part.node_id] = -1  # To be asked again.
                self._end_if_done(gathering)

    def close(self) -> None:
        """The job is hosted no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._all.clear()
        self._by_asker.clear()

    def job_ended(self) -> None:
        """Nodes leave, and tell before that what is left."""
        self._ends_at = self._loop.time() + LAST_S

    @property
    def older_node(self) -> str:
        """One of the newest world that runs an older version of Rallypoint; empty: none does.
        O(number of nodes)."""
        sessions = self._sessions
        for node_id in sessions.job.assigned:
            session = sessions.of_node(node_id)
            number = None if session is None else session.connection
            found = None if number is None else self._connection_of(number)
            if found is not None and found.version < SINCE:
                return node_id
        return ""

    @property
    def _round(self) -> int:
        """The newest that had a world."""
        return next((place.round for place in self._sessions.job.assigned.values()), 0)

    # --- whom to ask

    def _refusal(self, question: Ask) -> str:
        """Why nothing can be collected; empty: it can."""
        job = self._sessions.job
        if len(self._all) >= ASKERS_MAX:
            return f"{ASKERS_MAX} others ask for the workers of this job just now"
        if job.verdict is not None:
            is_known = self._ends_at is not None
            return f"the job has ended: {job.verdict.text}" if is_known else "the job is ending"
        if not job.assigned and question.follow:
            return ""  # Who follows waits for them: another coordinator may have led the job.
        if not job.assigned:
            which = "next" if self._sessions.life.has_formed else "first"
            return f"no workers run yet: the job's {which} round has not begun"
        if unknown := [node for node in question.nodes if node not in job.assigned]:
            known = names(tuple(job.assigned))
            return f"there is no node {unknown[0]!r} in round {self._round}; there are {known}"
        for wanted in question.ranks:
            if wanted.last >= job.world_workers or wanted.first > wanted.last:
                is_one = wanted.last == wanted.first
                text = f"{wanted.first}" if is_one else f"{wanted.first}-{wanted.last}"
                last = job.world_workers - 1
                return f"there is no rank {text} in round {self._round}; the last is {last}"
        return ""

    def _collect(self, gathering: _Gathering) -> None:
        """Ask the nodes of the newest world that are meant and were not asked yet."""
        if not gathering.asked.left:
            nodes = self._sessions.job.assigned
            gathering.asked.left = len(nodes)
            self._turns.add(map(partial, repeat(self._look_at), repeat(gathering), nodes))
            self._turns.go()

    def _look_at(self, gathering: _Gathering, node_id: str) -> None:
        gathering.asked.left -= 1
        place = self._sessions.job.assigned.get(node_id)
        if place is not None and gathering.number in self._all:
            size = self._sizes()[node_id]
            is_meant = gathering.question.means(node_id, place.base_rank, size)
            if is_meant and gathering.asked.rounds.get(node_id) != place.round:
                self._ask(gathering, node_id, place, size)
        self._end_if_done(gathering)

    def _ask(self, gathering: _Gathering, node_id: str, place: Assignment, size: int) -> None:
        question = gathering.question
        session = self._sessions.of_node(node_id)
        number = None if session is None else session.connection
        connection = None if number is None else self._connection_of(number)
        if connection is None:
            if not question.follow:  # Else it is asked when it is back.
                gathering.missing[node_id] = "it is not connected"
            return
        was_known = node_id in gathering.asked.rounds
        gathering.asked.rounds[node_id] = place.round
        if connection.version < SINCE:
            gathering.missing[node_id] = "it runs an older version of Rallypoint"
        elif connection.number not in gathering.parts:
            bases = {place.round: place.base_rank}
            part = _Part(node_id, connection, bases, size, self._loop.time())
            gathering.parts[connection.number] = part
            read = gathering.read.of(range(place.base_rank, place.base_rank + size))
            if was_known and any(one.round < place.round for one in read):
                ended = f"round {place.round - 1} has ended since its connection broke"
                gathering.missing[node_id] = f"{ended}: the last lines of it may be missing"
            # Nothing was read of a round that began later.
            newest = question.newest if place.round == gathering.round else ALL_LINES
            ranks = () if node_id in question.nodes else question.ranks
            wanted = m.Collect(gathering.number, question.subject, ranks, newest)
            connection.send(replace(wanted, follow=question.follow, read=read))

    def _sizes(self) -> dict[str, int]:
        """How many workers each node of the newest world has. O(number of nodes) once a round."""
        job, (sized, sizes) = self._sessions.job, self._sized
        if sized is job.assigned and len(sizes) == len(sized):  # Nodes may still come back to it.
            return sizes
        places = sorted(job.assigned.items(), key=lambda item: item[1].base_rank)
        ends = [place.base_rank for _, place in places[1:]] + [job.world_workers]
        each = zip(places, ends, strict=False)
        sizes = {node_id: end - place.base_rank for (node_id, place), end in each}
        self._sized = job.assigned, sizes
        return sizes

    # --- what comes

    def _told(self, part: _Part, piece: m.Collected) -> list[RankTold]:
        """Of ranks that this node has, or had in that round."""
        place = self._sessions.job.assigned.get(part.node_id)
        if place is not None and place.round == piece.round and piece.round not in part.bases:
            # The round before may still be told of.
            part.bases = dict(list(part.bases.items())[-1:])
            part.bases[piece.round] = place.base_rank
            part.workers = self._sizes()[part.node_id]
        base = part.bases.get(piece.round)
        if base is None:
            return []
        return [
            of_rank(base + told.local_rank, told)
            for told in piece.told
            if told.local_rank < part.workers
        ]

    def _send_on(self, gathering: _Gathering) -> None:
        while gathering.credit > 0 and gathering.ready:
            part = gathering.ready.popleft()
            if part.state is _State.READY and part.connection.number in gathering.parts:
                part.state, part.since = _State.SENDING, self._loop.time()
                gathering.credit -= 1
                part.connection.send(m.CollectMore(gathering.number))

    def _drop(self, gathering: _Gathering, connection: int) -> None:
        part = gathering.parts.pop(connection, None)
        if part is not None and part.state is _State.SENDING:
            gathering.credit += 1

    def _end_if_done(self, gathering: _Gathering) -> None:
        follows = gathering.question.follow and self._ends_at is None
        is_asking = gathering.parts or gathering.asked.left
        if not is_asking and not follows and gathering.number in self._all:
            missing = Gathered(round=gathering.round, missing=gathering.missing)
            answer(gathering.asker, missing, is_last=True)
            self._forget(gathering)

    def _forget(self, gathering: _Gathering) -> None:
        self._all.pop(gathering.number, None)
        self._by_asker.pop(gathering.asker.number, None)
        parts = gathering.parts.values()
        self._turns.add(map(partial, repeat(_not_wanted), repeat(gathering.number), parts))
        self._turns.go()

    # --- time

    def _tick_later(self) -> None:
        if self._timer is None and self._all:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.look()
        self._tick_later()

    def look(self) -> None:
        """What is due by now; called each second."""
        for gathering in list(self._all.values()):
            self._look(gathering, self._loop.time())

    def _look(self, gathering: _Gathering, now: float) -> None:
        waits = gathering.ready and not gathering.question.follow
        if (waits and now > gathering.taken_at + STALLED_S) or gathering.asker.is_closed:
            self._forget(gathering)
            gathering.asker.abort()
            return
        is_over = self._ends_at is not None and now > self._ends_at
        for number, part in list(gathering.parts.items()):
            owes = part.state is _State.SENDING or not part.has_answered
            owes = owes or (part.state is _State.QUIET and not gathering.question.follow)
            if is_over or (owes and now > part.since + ANSWER_S):
                self._drop(gathering, number)
                _not_wanted(gathering.number, part)
                if not is_over:
                    gathering.missing[part.node_id] = f"no answer within {ANSWER_S:g} s"
        if gathering.question.follow and self._ends_at is None:
            self._collect(gathering)
            if gathering.missing:
                _tell(gathering, Gathered(round=self._round, missing=gathering.missing))
                gathering.missing = {}
        self._send_on(gathering)
        self._end_if_done(gathering)


def _tell(gathering: _Gathering, part: Gathered) -> None:
    gathering.untaken += 1
    gathering.credit -= 1
    answer(gathering.asker, part, is_last=False)


def _not_wanted(number: int, part: _Part) -> None:
    part.connection.send(m.CollectMore(number, is_wanted=False))
