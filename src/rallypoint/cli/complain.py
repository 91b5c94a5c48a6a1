"""One line on stderr for a mistake or a machine that won't."""

from __future__ import annotations

import sys


def complain(who: str, text: str) -> None:
    """Write `who: text`, or nothing where there is no stderr."""
    if sys.stderr is not None:  # It is None where descriptor 2 is closed.
        sys.stderr.write(f"{who}: {text}\n")
