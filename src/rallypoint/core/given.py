"""The text of a setting before it is read, and where it came from, which an error shows."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core.text import shown
from rallypoint.errors import UsageError


class Given(Struct, frozen=True):
    """The text of a value, and where it came from, as a person wrote it.

    An option, a variable of the environment, a file, or a parameter of a program's call.
    """

    text: str
    origin: str

    def wrong(self, why: str) -> UsageError:
        """Return the error that names this value as it was written, and the fix."""
        return UsageError(f"{shown(self.origin)}: {why}")
