"""The text of a setting before it is parsed, and its source, for errors."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core.text import shown
from rallypoint.errors import UsageError


class Given(Struct, frozen=True):
    """The text of a value, and its origin as error messages name it.

    The origin is an option with its value, an environment variable, a file, or a parameter of a
    library call.
    """

    text: str
    origin: str

    def wrong(self, why: str) -> UsageError:
        """Return the error `ORIGIN: WHY`, where `why` says what is wrong and what to do."""
        return UsageError(f"{shown(self.origin)}: {why}")
