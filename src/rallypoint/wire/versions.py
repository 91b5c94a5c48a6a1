"""Which versions of the session protocol a side speaks, and which one two sides use (behaviour R7).
Pure.

The hello names the oldest version that a client speaks, and in bits which version 2 leaves free how
many newer ones it speaks as well: a server that speaks version 2 alone takes it for a client of
that version. A server answers with the newest version that both speak, and both derive their
proofs and keys from it. So a cluster is upgraded node by node, as long as the ranges of the old and
the new version of Rallypoint overlap.

Who can change what two sides send can have them use an older version of both ranges. So a version
that is less safe than a newer one is not to be kept in a range.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.errors import VersionMismatchError

NEWER_MAX = 127
_NEWER_SHIFT = 1


class Versions(Struct, frozen=True):
    """All from `oldest` to `newest`."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        """As in a sentence."""
        if self.oldest == self.newest:
            return f"version {self.oldest}"
        return f"versions {self.oldest} to {self.newest}"

    def common(self, other: Versions) -> int:
        """The newest that both speak. Raises VersionMismatchError for none."""
        found = min(self.newest, other.newest)
        if found < max(self.oldest, other.oldest):
            raise VersionMismatchError(str(self), str(other))
        return found

    def in_flags(self, flags: int) -> int:
        """The flags of a hello, with how many newer versions the client speaks."""
        return flags | min(self.newest - self.oldest, NEWER_MAX) << _NEWER_SHIFT

    @classmethod
    def of_hello(cls, oldest: int, flags: int) -> Versions:
        """What the client speaks that has sent this version and these flags."""
        return cls(oldest, oldest + (flags >> _NEWER_SHIFT))


SPOKEN = Versions(2, 3)
"""By this version of Rallypoint. 2 is spoken since version 0.1.0; 3 has questions of people about a
job (`core/watch/questions.py`)."""
