"""The program of a failed worker, and whether a traceback is the program's own. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from rallypoint.core.worker_exits import WorkerExit

_SIGINT, _SIGABRT = 2, 6

SourceOf: TypeAlias = Callable[[str], str | None]
"""The function that returns the source at a path; None: there is none that can be read."""


class Program(Struct, frozen=True):
    """The worker's program, as far as its command line shows it."""

    source_of: SourceOf = lambda _: None
    files: frozenset[str] = frozenset()
    """The possible names, without folders, of the file with its outermost code; empty: not
    known."""


def may_have_told(exit_: WorkerExit) -> bool:
    """Return whether the worker's output may show the cause of this exit.

    A signal other than SIGINT and SIGABRT kills a worker at once, so that it can't write the cause.
    """
    return exit_.signal in (None, _SIGINT, _SIGABRT)
