"""The answer that a coordinator collects from nodes for one person who asks for a job's workers.

Pure: the host (`coordinator/gathering.py`) keeps the connections, which are numbers here, and one
timer. Times are seconds on its monotonic clock.

The nodes of the newest world are looked at one after the other, since there may be thousands. One
that is meant is asked, and says when it has something. It is told to send a piece when the person
has room for one: at most `PIECES_IN_FLIGHT` are between the nodes and the person. A node that can't
be asked, or does not answer, is named in the answer, with the reason. An answer that follows what
workers write ends with the job, any other one when each node has told all.
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.core.host_effects import SendTo
from rallypoint.core.job_state import JobState
from rallypoint.core.text import names
from rallypoint.core.watch.collection_messages import (
    ALL_LINES,
    ANSWER_S,
    PIECES_IN_FLIGHT,
    SINCE,
    Collect,
    Collected,
    CollectMore,
    Gathered,
    HowFar,
    RankTold,
    of_rank,
)
from rallypoint.core.watch.questions import Ask

ASKERS_MAX = 64
"""The most people who ask for the output or stacks of one job's workers at once; more are
refused."""
STALLED_S = 60.0
"""The seconds after which a person who reads nothing is cut off, though nodes have more to send.
Not with `follow`: the reader may be a pager."""
LAST_S = 2.0
"""How long a coordinator waits for the workers' last output after a job's end, in seconds."""
_TO_BE_ASKED = -1  # in place of a round


class Part(Struct, eq=False):
    """A node that was asked, and may still send its part of the answer."""

    node_id: str
    bases: dict[int, int]
    """The global rank of the node's first worker, by the numbers of rounds."""
    workers: int
    since: float
    has_answered: bool = False


class Collection(Struct, eq=False):
    """The answer to one person's question, while it is collected from nodes."""

    number: int
    question: Ask
    round: int
    """The newest round with workers at the time of the question; 0 also if there was none."""
    taken_at: float
    """The time of the question, or of the person's last acknowledgement."""
    read: HowFar
    """The positions up to which each worker's output was passed on, or was read before the
    question. They are only updated with `follow`."""
    parts: dict[int, Part] = field(default_factory=dict)
    """The parts of nodes that may still send something, by their connections."""
    asked: dict[str, int] = field(default_factory=dict)
    """The nodes that were asked, or can't be for their version, each with the round that it was
    asked about; -1: its connection broke. With `follow` such a node is asked again."""
    newest_round: int = 0
    """The newest round in which the nodes were looked up."""
    is_looking: bool = False
    """Whether the nodes of the newest round are being looked up."""
    ready: dict[int, None] = field(default_factory=dict)
    """The connections of nodes that have something to send, the longest waiting first."""
    sending: set[int] = field(default_factory=set)
    """The connections of nodes that were told to send a piece, and have not sent it yet."""
    untaken: int = 0
    """The number of values that were passed on and not acknowledged by the person yet."""
    missing: dict[str, str] = field(default_factory=dict)
    """The nodes whose part is missing, each with the reason. The person has not been told of these
    yet."""
    ends_at: float | None = None
    """The time after which no node is waited for any longer, soon after the job's end. None: the
    end is not published."""
    is_over: bool = False
    """Whether the answer is complete, or was given up because the person reads nothing or hung
    up."""


class NodeWorkers(Struct, frozen=True):
    """The workers that one node has in the newest round."""

    node_id: str
    round: int
    first: int
    """The global rank of the node's first worker."""
    workers: int


class Asked(Struct, frozen=True):
    """The question has come. This is the first event of an answer."""


class NodeSeen(Struct, frozen=True):
    """A node of the newest round was looked up; see `LookAround`."""

    node: NodeWorkers
    connection: int | None
    """The number of the node's connection; None: it is not connected."""
    version: int = SINCE
    """The version of the session protocol on that connection."""


class AllSeen(Struct, frozen=True):
    """All nodes of the newest round were looked up; see `LookAround`."""


class Piece(Struct, frozen=True):
    """A node has sent a message about its part of the answer, on this connection."""

    connection: int
    piece: Collected
    node: NodeWorkers | None
    """The sender's workers in the newest round; None: it has no place in it."""
    life: int
    """The number of the job's present life."""


class Taken(Struct, frozen=True):
    """The person has acknowledged a value that was passed on."""


class Lost(Struct, frozen=True):
    """The connection of a node, which may have a part in this answer, has ended."""

    connection: int


class HungUp(Struct, frozen=True):
    """The person's connection has ended."""


class TimePassed(Struct, frozen=True):
    """The event that about a second has passed."""


class JobEnded(Struct, frozen=True):
    """The end of the job is published: its nodes send their last output, and leave."""


class LookAround(Struct, frozen=True):
    """The effect to look up each node of the newest round, and report each one (`NodeSeen`).

    It takes as many turns of the event loop as it needs. At the end report that all were seen
    (`AllSeen`).
    """


class Pass(Struct, frozen=True):
    """The effect to pass this part of the answer on to the person."""

    part: Gathered


class Finish(Struct, frozen=True):
    """The effect to pass the last part on to the person: the answer is complete."""

    part: Gathered


class CutOff(Struct, frozen=True):
    """The effect to close the person's connection at once: nothing more is collected."""


CollectionEvent = Asked | NodeSeen | AllSeen | Piece | Taken | Lost | HungUp | TimePassed | JobEnded
CollectionEffect = LookAround | SendTo | Pass | Finish | CutOff


def refusal(job: JobState, question: Ask, others: int, *, has_formed: bool, is_known: bool) -> str:
    """Return why nothing can be collected from workers for this question; empty: it can.

    `others` is the number of people whose answers are collected already. `has_formed`: the job has
    had a round. `is_known`: the end of the job is published.
    """
    if others >= ASKERS_MAX:
        return f"{ASKERS_MAX} others ask for the workers of this job just now"
    if job.verdict is not None:
        return f"the job has ended: {job.verdict.text}" if is_known else "the job is ending"
    if not job.assigned and question.follow:
        return ""  # Who follows waits for them: another coordinator may have led the job.
    if not job.assigned:
        which = "next" if has_formed else "first"
        return f"no workers run yet: the job's {which} round has not begun"
    newest, last = newest_round(job), job.world_workers - 1
    if unknown := [node for node in question.nodes if node not in job.assigned]:
        known = names(tuple(job.assigned))
        return f"there is no node {unknown[0]!r} in round {newest}; there are {known}"
    for wanted in question.ranks:
        if wanted.last > last or wanted.first > wanted.last:
            is_one = wanted.last == wanted.first
            text = f"{wanted.first}" if is_one else f"{wanted.first}-{wanted.last}"
            return f"there is no rank {text} in round {newest}; the last is {last}"
    return ""


def newest_round(job: JobState) -> int:
    """Return the newest round that had workers; 0 also if there was none."""
    return next((place.round for place in job.assigned.values()), 0)


def workers_of(job: JobState, node_id: str) -> NodeWorkers | None:
    """Return which workers this node has in the newest round; None: none. O(1)."""
    place, world = job.assigned.get(node_id), job.round.world
    if place is None or place.group_rank >= len(world):
        return None
    entry = world[place.group_rank]
    if entry.node_id != node_id:
        return None
    return NodeWorkers(node_id, place.round, place.base_rank, entry.workers)


def begin(number: int, job: JobState, question: Ask, at: float) -> Collection:
    """Return the empty answer to a question that has come at `at`.

    `number` tells the answers of a coordinator apart. The read positions of the question are
    ignored if they are of another life of the job.
    """
    read = question.read if question.incarnation in job.numbers else ()
    return Collection(number, question, newest_round(job), at, HowFar(read))


def step(state: Collection, event: CollectionEvent, at: float) -> list[CollectionEffect]:
    """Apply one event, and return the effects that the host is to carry out.

    O(1), but for `TimePassed` and `HungUp`: O(number of nodes that were asked).
    """
    if state.is_over:
        return []
    effects: list[CollectionEffect] = []
    match event:
        case Asked():
            effects += _look_around(state)
        case NodeSeen():
            effects += _seen(state, event, at)
        case AllSeen():
            state.is_looking = False
            if _follows(state) and state.missing:
                missing, state.missing = state.missing, {}
                effects.append(_pass(state, Gathered(round=state.newest_round, missing=missing)))
        case Piece():
            effects += _said(state, event, at)
        case Taken() if state.untaken:
            state.untaken -= 1
            state.taken_at = at
        case Lost(connection) if (part := _drop(state, connection)) is not None:
            state.asked[part.node_id] = _TO_BE_ASKED
            if state.ends_at is None and not state.question.follow:
                state.missing[part.node_id] = "its connection broke"
        case HungUp():
            return _cut_off(state)
        case TimePassed():
            if _is_stalled(state, at):
                return _cut_off(state)
            effects += _give_up_waiting(state, at)
            effects += _look_around(state) if _follows(state) else []
        case JobEnded():
            state.ends_at = at + LAST_S
        case _:
            pass
    return [*effects, *_send_on(state, at), *_finished(state)]


def _follows(state: Collection) -> bool:
    return state.question.follow and state.ends_at is None


def _look_around(state: Collection) -> list[CollectionEffect]:
    if state.is_looking:
        return []
    state.is_looking = True
    return [LookAround()]


def _seen(state: Collection, event: NodeSeen, at: float) -> list[CollectionEffect]:
    """Ask this node, if the question is about it and it was not asked in this round.

    A node that still answers an earlier question, with `follow`, is not asked again. If it can't be
    asked, note the reason among the missing nodes. With `follow` a node without a connection is not
    noted: it is asked when it is back.
    """
    node, question, connection = event.node, state.question, event.connection
    node_id, state.newest_round = node.node_id, node.round
    asked_for = state.asked.get(node_id)
    if asked_for == node.round or not question.means(node_id, node.first, node.workers):
        return []
    if connection is None:
        if not question.follow:  # Else it is asked when it is back.
            state.missing[node_id] = "it is not connected"
        return []
    state.asked[node_id] = node.round
    if event.version < SINCE:
        state.missing[node_id] = "it runs an older version of Rallypoint"
        return []
    if connection in state.parts:
        return []
    state.parts[connection] = Part(node_id, {node.round: node.first}, node.workers, at)
    read = state.read.of(range(node.first, node.first + node.workers))
    if asked_for is not None and any(one.round < node.round for one in read):
        ended = f"round {node.round - 1} has ended since its connection broke"
        state.missing[node_id] = f"{ended}: the last lines of it may be missing"
    # Nothing was read of a round that began later.
    newest = question.newest if node.round == state.round else ALL_LINES
    ranks = () if node_id in question.nodes else question.ranks
    wanted = Collect(state.number, question.subject, ranks, newest)
    return [SendTo(connection, replace(wanted, follow=question.follow, read=read))]


def _said(state: Collection, event: Piece, at: float) -> list[CollectionEffect]:
    piece, part = event.piece, state.parts.get(event.connection)
    if part is None:
        return []
    was_sending, part.has_answered = event.connection in state.sending, True
    if not piece.told and not piece.is_last and not was_sending:
        state.ready[event.connection] = None
        return []
    state.sending.discard(event.connection)
    part.since = at
    told = _told(part, piece, event.node) if was_sending else []
    if piece.is_last:
        _drop(state, event.connection)
    if not told:
        return []
    if state.question.follow:
        state.read.note(piece.round, told)
    gathered = Gathered(part.node_id, piece.round, told, incarnation=event.life)
    return [_pass(state, gathered)]


def _told(part: Part, piece: Collected, node: NodeWorkers | None) -> list[RankTold]:
    """Return the answers in the piece, by global rank.

    Those of unknown rounds or workers are left out.
    """
    if node is not None and node.round == piece.round and piece.round not in part.bases:
        # The round before may still be told of.
        part.bases = dict(list(part.bases.items())[-1:])
        part.bases[piece.round], part.workers = node.first, node.workers
    base = part.bases.get(piece.round)
    if base is None:
        return []
    told = (one for one in piece.told if one.local_rank < part.workers)
    return [of_rank(base + one.local_rank, one) for one in told]


def _pass(state: Collection, part: Gathered) -> Pass:
    state.untaken += 1
    return Pass(part)


def _drop(state: Collection, connection: int) -> Part | None:
    """Stop waiting for the node on this connection, and return its part; None: it has none."""
    state.ready.pop(connection, None)
    state.sending.discard(connection)
    return state.parts.pop(connection, None)


def _is_stalled(state: Collection, at: float) -> bool:
    """Return whether nodes wait for a person who has read nothing for too long."""
    return bool(state.ready) and not state.question.follow and at > state.taken_at + STALLED_S


def _give_up_waiting(state: Collection, at: float) -> list[CollectionEffect]:
    """Stop waiting for overdue nodes, and after `ends_at` for all; tell them so.

    The overdue ones are noted as missing, but none after `ends_at`.
    """
    is_late = state.ends_at is not None and at > state.ends_at
    found = [n for n in state.parts if is_late or _is_overdue(state, n, at)]
    for connection in found:
        part = _drop(state, connection)
        if part is not None and not is_late:
            state.missing[part.node_id] = f"no answer within {ANSWER_S:g} s"
    return [_not_wanted(state, connection) for connection in found]


def _is_overdue(state: Collection, connection: int, at: float) -> bool:
    part = state.parts[connection]
    may_be_quiet = state.question.follow and part.has_answered
    owes = connection in state.sending or not (may_be_quiet or connection in state.ready)
    return owes and at > part.since + ANSWER_S


def _send_on(state: Collection, at: float) -> list[CollectionEffect]:
    """Have nodes send as many pieces as the person has room for."""
    effects: list[CollectionEffect] = []
    while state.ready and len(state.sending) + state.untaken < PIECES_IN_FLIGHT:
        connection = next(iter(state.ready))
        del state.ready[connection]
        state.sending.add(connection)
        state.parts[connection].since = at
        effects.append(SendTo(connection, CollectMore(state.number)))
    return effects


def _finished(state: Collection) -> list[CollectionEffect]:
    if state.parts or state.is_looking or _follows(state):
        return []
    state.is_over = True
    return [Finish(Gathered(round=state.round, missing=state.missing))]


def _cut_off(state: Collection) -> list[CollectionEffect]:
    state.is_over = True
    return [*(_not_wanted(state, connection) for connection in state.parts), CutOff()]


def _not_wanted(state: Collection, connection: int) -> SendTo:
    return SendTo(connection, CollectMore(state.number, is_wanted=False))
