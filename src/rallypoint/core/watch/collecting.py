"""What a coordinator collects from nodes for a person who has asked, a piece at a time. Pure data.

The coordinator sends `Collect` to each node that is meant. A node says with an empty `Collected`
that it has something, and sends one piece of it for each `CollectMore`. So nobody holds more than a
few pieces that somebody else is too slow for. None of it is numbered: what a broken connection
loses is missing in the answer, and named there.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from rallypoint.core.watch.questions import RankRange, Subject

PIECE_CHARACTERS = 24_000
"""Of one text in a piece."""
PIECE_TEXTS = 64
"""So many texts a node puts into one piece."""
PIECES_IN_FLIGHT = 16
"""So many pieces may be under way between the nodes and a person."""
ANSWER_S = 5.0
"""A node that takes longer is named."""


class Collect(Struct, frozen=True, array_like=True, tag=18):
    """Somebody wants to know this of the workers here."""

    number: int
    subject: Subject
    ranks: tuple[RankRange, ...] = ()
    """Only of these; empty: of all."""
    newest: int = 0
    """So many lines that were written before."""
    follow: bool = False
    """And what is written from now on, until nobody wants it any more."""


class CollectMore(Struct, frozen=True, array_like=True, tag=19):
    """Send a piece of it."""

    number: int
    is_wanted: bool = True
    """False: nothing more of it is wanted."""


class Told(Struct, frozen=True, array_like=True):
    """Of one worker."""

    local_rank: int
    detail: str = ""
    """Its stacks, or whole lines that it wrote."""
    stream: int = 0
    """Of lines: 1 stdout, 2 stderr."""
    wall_time: float = 0.0
    """Of lines: when they came."""
    left_out: int = 0
    """So many bytes before these lines are not kept any more."""
    is_kept: bool = True
    """False: what it writes to this stream is not kept on its node."""


class Collected(Struct, frozen=True, array_like=True, tag=25):
    """A piece; nothing but the number: there is something to send."""

    number: int
    round: int = 0
    told: tuple[Told, ...] = ()
    is_last: bool = False
    """Nothing follows."""


class RankTold(Struct, frozen=True):
    """As `Told`, as people get it."""

    rank: int
    text: str
    stream: int = 0
    wall_time: float = 0.0
    left_out: int = 0
    is_kept: bool = True


class Gathered(Struct, frozen=True):
    """A part of what a person has asked for: of one node, or what is missing."""

    node: str = ""
    round: int = 0
    told: Sequence[RankTold] = ()
    missing: dict[str, str] = field(default_factory=dict)
    """Why there is nothing of these nodes."""
