"""The versions of the session protocol that a side speaks. Pure.

And the one that two sides use (behaviour R7).

The hello names the oldest version that a client speaks, and in bits which version 2 leaves free how
many newer ones it speaks as well: a server that speaks version 2 alone takes it for a client of
that version. A server answers with the newest version that both speak, and both derive their
proofs and keys from it. So a cluster is upgraded node by node, as long as the ranges of the old and
the new version of Rallypoint overlap.

Two sides that both speak version 4 use no older version, even if somebody between them can change
what they send. Each side names its versions in the last bytes of its nonce. The proofs of all
versions cover the nonces. A side of an older version takes these bytes for random ones. From
version 4 on both ranges are in the proofs and keys themselves. Where one of the two speaks no
version 4, an attacker between them can make them use version 2 instead of 3.
"""

from __future__ import annotations

from struct import Struct as Layout

from msgspec import Struct

from rallypoint.core.text import versions_text
from rallypoint.errors import VersionMismatchError

NEWER_MAX = 127
_NEWER_SHIFT = 1
WITH_RANGES = 4
"""The protocol version since which the proofs and keys cover the versions of both sides."""
_MARK = Layout(">6sBB")
_MARK_MAGIC = b"\0spoke"
_MARKED_MAX = 255


class Versions(Struct, frozen=True):
    """A range of versions of the session protocol, from `oldest` to `newest`."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        """Return the versions in words."""
        return versions_text(self.oldest, self.newest)

    def common(self, other: Versions) -> int:
        """Return the newest version in both ranges.

        Raises VersionMismatchError if there is none.
        """
        found = min(self.newest, other.newest)
        if found < max(self.oldest, other.oldest):
            raise VersionMismatchError(str(self), str(other))
        return found

    def in_flags(self, flags: int) -> int:
        """Return the flags of a hello, with the number of versions above the oldest: 127 at most.

        It stands above the bits of `flags`.
        """
        return flags | min(self.newest - self.oldest, NEWER_MAX) << _NEWER_SHIFT

    @classmethod
    def of_hello(cls, oldest: int, flags: int) -> Versions:
        """Return the versions that a client's hello names.

        `oldest` is the oldest one, and `flags` has the number of newer ones.
        """
        return cls(oldest, oldest + (flags >> _NEWER_SHIFT))

    def marked(self, nonce: bytes) -> bytes:
        """Return the nonce with these versions in its last bytes.

        It is unchanged if the newest version is below 4 or above 255.
        """
        if self.newest < WITH_RANGES or self.newest > _MARKED_MAX:
            return nonce
        mark = _MARK.pack(_MARK_MAGIC, self.oldest, min(self.newest, self.oldest + NEWER_MAX))
        return nonce[: -_MARK.size] + mark

    @classmethod
    def of_nonce(cls, nonce: bytes) -> Versions | None:
        """Return the versions that a side's nonce names; None: it names none."""
        magic, oldest, newest = _MARK.unpack(nonce[-_MARK.size :])
        return cls(oldest, newest) if magic == _MARK_MAGIC and oldest <= newest else None


SPOKEN = Versions(2, 4)
"""The versions of the session protocol that this Rallypoint speaks. 2 exists since version 0.1.0; 3
has questions of people about a job (`core/watch/questions.py`). In 4 the proofs and keys cover the
versions of both sides, a drain is such a question, and a request can be repeated without being done
twice."""
