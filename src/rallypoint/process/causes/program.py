"""The program of a worker, for those who choose the cause of its failure. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

SourceOf: TypeAlias = Callable[[str], str | None]
"""The source at a path; None: there is none that can be read."""


class Program(Struct, frozen=True):
    """The worker's own program, as far as its command line shows it."""

    source_of: SourceOf = lambda _: None
    files: frozenset[str] = frozenset()
    """Names that the file of its outermost code may have; empty: not known."""
