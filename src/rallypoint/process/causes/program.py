"""The program of a failed worker, and whether a traceback is the program's own. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from rallypoint.core.worker_exits import WorkerExit

_SIGINT, _SIGABRT = 2, 6

SourceOf: TypeAlias = Callable[[str], str | None]
"""The source at a path; None: there is none that can be read."""


class Program(Struct, frozen=True):
    """The worker's program, as far as its command line shows it."""

    source_of: SourceOf = lambda _: None
    files: frozenset[str] = frozenset()
    """The possible file names of its outermost code; empty: not known."""


def may_have_told(exit_: WorkerExit) -> bool:
    """Return whether the output may have the cause: any other signal kills a worker at once."""
    return exit_.signal in (None, _SIGINT, _SIGABRT)
