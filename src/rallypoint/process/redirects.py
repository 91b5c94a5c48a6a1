"""A stream of this very process into a file, whoever in it writes: Python, C, children."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rallypoint.files import open_named


@contextmanager
def redirect_stdout(path: str) -> Iterator[None]:
    """Have all that is written to stdout in this block written to the file, which is emptied first.

    For the whole process, all of its threads, and what it starts. May be nested. Raises OSError.
    """
    with _redirected(1, sys.stdout, path):
        yield


@contextmanager
def redirect_stderr(path: str) -> Iterator[None]:
    """The same for stderr."""
    with _redirected(2, sys.stderr, path):
        yield


@contextmanager
def _redirected(fd: int, stream: TextIO | None, path: str) -> Iterator[None]:
    target = open_named(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        _flush(stream)
        before = os.dup(fd)
        try:
            os.dup2(target, fd)
            try:
                yield
            finally:
                _flush(stream)
                os.dup2(before, fd)
        finally:
            os.close(before)
    finally:
        os.close(target)


def _flush(stream: TextIO | None) -> None:
    """What Python and C hold back belongs to where the stream goes now."""
    import ctypes

    if stream is not None:
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # Closed, or nobody reads it: there is nothing to be lost.
    ctypes.CDLL(None).fflush(None)
