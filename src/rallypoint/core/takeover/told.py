"""The position of a job's record, as a leader sends it to the nodes (section L9). Pure.

A register's seal covers the job and the value, but no time: anyone who may write the register's key
can restore an older record. So each node remembers the newest position that a leader has sent it,
and reports it when it attaches, or when it would lead itself. A leader only sends the positions of
records that its register has confirmed.

A position has a digest under the job's key. It shows that a leader of this job has made the
position, not that the node is honest: a holder of the job's token can make one, too.
"""

from __future__ import annotations

from struct import pack

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core.model import epoch_number
from rallypoint.hashes import blake2s, compare_digest

DIGEST_BYTES = 16
_PERSON = b"rp-told"

PositionOrder = tuple[int, int, int]
"""The place of a record in time: the number of the epoch, the incarnation, and the beat, compared
in this order. A later record of a job has a larger one, whatever versions its register counts."""
NEVER: PositionOrder = (0, 0, -1)
"""The order where there is no record."""


class Position(Struct, frozen=True, array_like=True):
    """The place of one confirmed record in time, and the parts of it that must not be forgotten."""

    epoch: int
    """The epoch of the leader that wrote the record, as one number, as in the message
    `Attached`."""
    beat: int
    told_life: int
    """The incarnation of the job; 0: it had none yet."""
    last_round: int = -1
    """The newest round that was formed; -1: none was."""
    nodes: int = 0
    """The number of nodes in that round's world."""
    judged_round: int = 0
    """The forming round for which the end of the round before it has been judged, as in
    `JobRecord`."""
    is_active: bool = False
    """Whether the newest round had not ended when the record was written."""
    is_started: bool = False
    """Whether workers of that round may have been started."""
    restarts: int = 0
    """The number of charged restarts of the job."""
    counted: int = 0
    """The number of charged restarts that still count against the budget."""
    digest: bytes = b""
    origin: int = 0
    """The first number of this life of the job; 0: the same as `told_life`. The digest does not
    cover it, since older versions do not know it."""

    @property
    def first_number(self) -> int:
        """The number that all positions and records of one life have in common."""
        return self.origin or self.told_life

    @property
    def order(self) -> PositionOrder:
        """The place of the record in time: positions of one job are compared by it."""
        return epoch_number(self.epoch), self.told_life, self.beat


class Seal:
    """The key that makes and checks the digests of one job's positions."""

    def __init__(self, run_id: str = "", secret: bytes | None = None) -> None:
        """`run_id`: the job's. `secret`: its token; None: the job has none."""
        self.run_id = run_id
        self._run_id = run_id.encode()
        self._key = blake2s(secret).digest() if secret else b""

    def sealed(self, told: Position) -> Position:
        """Return the position with its digest."""
        return replace(told, digest=self._digest(told))

    def is_genuine(self, told: Position) -> bool:
        """Return whether this position's digest was made of it with this job's run id and token."""
        return compare_digest(told.digest, self._digest(told))

    def _digest(self, told: Position) -> bytes:
        made = blake2s(key=self._key, digest_size=DIGEST_BYTES, person=_PERSON)
        made.update(self._run_id + b"\0")
        numbers = (told.epoch, told.beat, told.told_life, told.last_round, told.nodes)
        charges = told.judged_round, told.restarts, told.counted
        made.update(pack(">5q3q2?", *numbers, *charges, told.is_active, told.is_started))
        return made.digest()
