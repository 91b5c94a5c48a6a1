"""The messages by which a coordinator collects an answer from nodes. Pure data.

What a person has asked for comes a piece at a time.

The coordinator sends `Collect` to each node that is meant. A node says with an empty `Collected`
that it has something, and sends one piece of it for each `CollectMore`. So nobody holds more than a
few pieces that somebody else is too slow for. None of it is numbered: what a broken connection
loses is missing in the answer, and named there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from rallypoint.core.watch.questions import RankRange, ReadTo, Subject

SINCE = 3
"""The version of the session protocol that has `Collect`."""
PIECE_CHARACTERS = 24_000
"""The most characters of one text in a piece."""
PIECE_TEXTS = 64
"""The most texts that a node puts into one piece."""
PIECES_IN_FLIGHT = 16
"""The most pieces under way between the nodes and a person."""
ALL_LINES = 1_000_000
"""More than a node keeps."""
ANSWER_S = 5.0
"""A node that takes longer is named."""


class Collect(Struct, frozen=True, array_like=True, tag=18):
    """Somebody wants to know this of the workers here."""

    number: int
    subject: Subject
    ranks: tuple[RankRange, ...] = ()
    """Only of these; empty: of all."""
    newest: int = 0
    """The number of lines to begin with that were written before."""
    follow: bool = False
    """And what is written from now on, until nobody wants it any more."""
    read: tuple[ReadTo, ...] = ()
    """In place of the newest lines of these streams: what comes after this. They may be of another
    round, and then nothing of the present one was read."""


class CollectMore(Struct, frozen=True, array_like=True, tag=19):
    """Send a piece of it."""

    number: int
    is_wanted: bool = True
    """False: nothing more of it is wanted."""


class WorkerAnswer(Struct, frozen=True, array_like=True):
    """The answer of one worker."""

    local_rank: int
    detail: str = ""
    """The worker's stacks, or whole lines that it wrote."""
    stream: int = 0
    """The stream of the lines: 1 stdout, 2 stderr."""
    wall_time: float = 0.0
    """The time at which the lines came."""
    left_out: int = 0
    """The number of bytes before these lines that are not kept any more."""
    is_kept: bool = True
    """False: what it writes to this stream is not kept on its node."""
    next: int = -1
    """Where what comes then begins, in bytes of the stream; -1: it is not known."""


class Collected(Struct, frozen=True, array_like=True, tag=25):
    """A piece; nothing but the number: there is something to send."""

    number: int
    round: int = 0
    told: tuple[WorkerAnswer, ...] = ()
    is_last: bool = False
    """Whether nothing follows."""


class RankTold(Struct, frozen=True):
    """A `WorkerAnswer` as people get it."""

    rank: int
    text: str
    stream: int = 0
    wall_time: float = 0.0
    left_out: int = 0
    is_kept: bool = True
    next: int = -1


def of_rank(rank: int, told: WorkerAnswer) -> RankTold:
    """Return the same, of this worker."""
    detail, stream, at = told.detail, told.stream, told.wall_time
    return RankTold(rank, detail, stream, at, told.left_out, told.is_kept, told.next)


class HowFar:
    """The newest place in each stream of the workers that a reader has read."""

    def __init__(self, places: Iterable[ReadTo] = ()) -> None:
        self._places = {(place.rank, place.stream): place for place in places}

    def note(self, round_: int, told: Sequence[RankTold]) -> None:
        """Note that this was read of workers of this round."""
        for one in told:
            key = one.rank, one.stream
            before = self._places.get(key)
            if one.next >= 0 and (before is None or before.round <= round_):
                self._places[key] = ReadTo(*key, round_, one.next)

    def of(self, ranks: range) -> tuple[ReadTo, ...]:
        """Return the places of these workers."""
        found = (self._places.get((rank, stream)) for rank in ranks for stream in (1, 2))
        return tuple(place for place in found if place is not None)

    @property
    def all(self) -> tuple[ReadTo, ...]:
        """Return the places of all workers."""
        return tuple(self._places.values())


class Gathered(Struct, frozen=True):
    """A part of what a person has asked for: of one node, or what is missing."""

    node: str = ""
    round: int = 0
    told: Sequence[RankTold] = ()
    missing: dict[str, str] = field(default_factory=dict)
    """Why there is nothing of these nodes."""
    incarnation: int = 0
    """The life of the job."""
