"""The messages by which a coordinator collects an answer from nodes.

Pure data.

An answer comes in pieces. The coordinator sends `Collect` to each node that the question is about.
A node announces by an empty `Collected` that it has something, and sends one piece of it for each
`CollectMore`. So no process holds more than a few pieces for a slow reader. The messages are not
numbered: what a broken connection loses is missing in the answer, and named there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from rallypoint.core.watch.questions import RankRange, ReadTo, Subject

SINCE = 3
"""The first version of the session protocol that has `Collect`."""
PIECE_CHARACTERS = 24_000
"""The most characters of one worker's stacks; of longer ones the end is sent."""
PIECE_TEXTS = 64
"""The most texts that a node puts into one piece."""
PIECES_IN_FLIGHT = 16
"""The most pieces of one answer that are under way between the nodes and a person."""
ALL_LINES = 1_000_000
"""The number of lines in a question that stands for all; a node keeps fewer."""
ANSWER_S = 5.0
"""The time in seconds after which a node that has not answered is named as missing."""


class Collect(Struct, frozen=True, array_like=True, tag=18):
    """The coordinator's question to a node about the output or stacks of its workers."""

    number: int
    subject: Subject
    ranks: tuple[RankRange, ...] = ()
    """The global ranks that the question is about; empty: all of the node."""
    newest: int = 0
    """The number of earlier lines of each stream to begin with."""
    follow: bool = False
    """Whether to send new output as well, until it is no longer wanted."""
    read: tuple[ReadTo, ...] = ()
    """Positions up to which some streams were read. Of these streams what follows is sent in place
    of the newest lines. Positions of another round than the node's newest are ignored."""


class CollectMore(Struct, frozen=True, array_like=True, tag=19):
    """The coordinator's order to a node: send one more piece of the answer, or no more."""

    number: int
    is_wanted: bool = True
    """Whether more is wanted; False: the answer is no longer wanted."""


class WorkerAnswer(Struct, frozen=True, array_like=True):
    """A part of a node's answer, from one worker."""

    local_rank: int
    detail: str = ""
    """The worker's stacks, or why there are none; or lines of its output."""
    stream: int = 0
    """The stream of the lines: 1 stdout, 2 stderr; 0: the answer is no output."""
    wall_time: float = 0.0
    """The time at which the lines arrived, in Unix seconds."""
    left_out: int = 0
    """The number of bytes before these lines that are not kept any more."""
    is_kept: bool = True
    """Whether its node keeps what the worker writes to this stream."""
    next: int = -1
    """The position of the following output, in bytes of the stream; -1: not known."""


class Collected(Struct, frozen=True, array_like=True, tag=25):
    """A piece of a node's answer to the coordinator.

    An empty one, which is not the last, announces that the node has something to send.
    """

    number: int
    round: int = 0
    told: tuple[WorkerAnswer, ...] = ()
    is_last: bool = False
    """Whether the node sends nothing more for this question."""


class RankTold(Struct, frozen=True):
    """A part of a worker's answer, by its global rank, in the form that people get."""

    rank: int
    text: str
    stream: int = 0
    wall_time: float = 0.0
    left_out: int = 0
    is_kept: bool = True
    next: int = -1


def of_rank(rank: int, told: WorkerAnswer) -> RankTold:
    """Return the worker's answer in the form that people get, with this global rank."""
    detail, stream, at = told.detail, told.stream, told.wall_time
    return RankTold(rank, detail, stream, at, told.left_out, told.is_kept, told.next)


class HowFar:
    """The positions up to which each worker's streams were read."""

    def __init__(self, places: Iterable[ReadTo] = ()) -> None:
        self._places = {(place.rank, place.stream): place for place in places}

    def note(self, round_: int, told: Sequence[RankTold]) -> None:
        """Note the positions after these answers, of workers of this round.

        Answers of an earlier round than the noted one, or without a position, are ignored.
        """
        for one in told:
            key = one.rank, one.stream
            before = self._places.get(key)
            if one.next >= 0 and (before is None or before.round <= round_):
                self._places[key] = ReadTo(*key, round_, one.next)

    def of(self, ranks: range) -> tuple[ReadTo, ...]:
        """Return the noted positions of the streams of workers with these ranks."""
        found = (self._places.get((rank, stream)) for rank in ranks for stream in (1, 2))
        return tuple(place for place in found if place is not None)

    @property
    def all(self) -> tuple[ReadTo, ...]:
        """The noted positions of all workers' streams."""
        return tuple(self._places.values())


class Gathered(Struct, frozen=True):
    """A part of the answer to a person: from one node, or about missing parts."""

    node: str = ""
    round: int = 0
    told: Sequence[RankTold] = ()
    missing: dict[str, str] = field(default_factory=dict)
    """The nodes whose answer is missing, as a whole or in part, each with the reason."""
    incarnation: int = 0
    """The number of the job's life."""
