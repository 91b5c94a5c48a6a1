"""Send a stream of this process to a file, whatever in it writes: Python, C, children."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

from rallypoint.errors import ParameterError
from rallypoint.files import open_named

IS_WINDOWS, IS_MACOS = sys.platform == "win32", sys.platform == "darwin"


def get_libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None)


libc = get_libc()


def redirect(std: str, to_file: str) -> AbstractContextManager[None]:
    """`redirect_stdout` or `redirect_stderr`, by the stream's name. Raises ParameterError for what
    is neither `stdout` nor `stderr`."""
    streams = {"stdout": redirect_stdout, "stderr": redirect_stderr}
    if std not in streams:
        raise ParameterError(f"std={std!r}: needs 'stdout' or 'stderr'")
    return streams[std](to_file)


@contextmanager
def redirect_stdout(to_file: str) -> Iterator[None]:
    """Have all that is written to stdout in this block written to the file, which is emptied first.

    For the whole process, all of its threads, and what it starts. May be nested. Raises OSError.
    """
    with _redirected(1, sys.stdout, to_file):
        yield


@contextmanager
def redirect_stderr(to_file: str) -> Iterator[None]:
    """The same for stderr."""
    with _redirected(2, sys.stderr, to_file):
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
    if stream is not None:
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # Closed, or nobody reads it: there is nothing to be lost.
    libc.fflush(None)
