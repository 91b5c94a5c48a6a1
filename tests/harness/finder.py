"""What a script finds in `rallypoint status` that knows nothing but its output."""

from __future__ import annotations

import re
from collections.abc import Sequence

NAMED = (
    r"  behind .*\(node (\S+)\)",
    r"  silent +node (\S+):",
    r"  waits for .*missing(?: since the last round)?: (\S+)$",
    r"  waits for +a checkpoint of node (\S+)(?: for .* at most)?$",
    r"  waits for +(?:the workers of )?node (\S+)(?::| to )",
    r"rank \d+ \(node (\S+), local rank \d+\)",
    r"node (\S+) was lost",
    r"  log files +node (\S+):",
    r"not reached by .* \((\S+)\)",
)
"""Where a person looks, in this order."""


def text_of(lines: Sequence[str]) -> str:
    """A sentence that was wrapped is one line again."""
    return re.sub(r"\n {14}(?!\|)", " ", "\n".join(lines))


def culprit_of(lines: Sequence[str]) -> str | None:
    """The node that these lines name first, known to nobody who has not read them."""
    text = text_of(lines)
    for pattern in NAMED:
        if (found := re.search(pattern, text, re.MULTILINE)) is not None:
            return found[1]
    return None
