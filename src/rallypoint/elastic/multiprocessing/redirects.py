"""Send a stream of this process to a file, whatever in it writes: Python, C, children."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TextIO

from rallypoint.errors import ParameterError
from rallypoint.files import open_named

IS_WINDOWS, IS_MACOS = sys.platform == "win32", sys.platform == "darwin"


def get_libc() -> ctypes.CDLL:
    """Return the C library of this process."""
    return ctypes.CDLL(None)


libc = get_libc()


def redirect(std: str, to_file: str) -> AbstractContextManager[None]:
    """`redirect_stdout` or `redirect_stderr`, by the stream's name.

    Raises ParameterError for what is neither `stdout` nor `stderr`.
    """
    streams = {"stdout": redirect_stdout, "stderr": redirect_stderr}
    if std not in streams:
        raise ParameterError(f"std={std!r}: needs 'stdout' or 'stderr'")
    return streams[std](to_file)


@contextmanager
def redirect_stdout(to_file: str) -> Iterator[None]:
    """Have all that is written to stdout in this block written to the file, which is emptied first.

    For the whole process, all of its threads, and what it starts; also where a program has put
    another stream in the place of `sys.stdout`, as pytest and the kernel of a notebook do. May be
    nested. Raises OSError.
    """
    with _redirected(1, "stdout", to_file):
        yield


@contextmanager
def redirect_stderr(to_file: str) -> Iterator[None]:
    """Yield the same for stderr."""
    with _redirected(2, "stderr", to_file):
        yield


@contextmanager
def _redirected(fd: int, name: str, path: str) -> Iterator[None]:
    with ExitStack() as undo:
        target = open_named(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        undo.callback(os.close, target)
        stream: TextIO | None = getattr(sys, name)
        _flush(stream)
        own = _descriptor(stream)
        for place in {fd, fd if own is None else own}:
            before = os.dup(place)
            undo.callback(os.close, before)
            undo.callback(os.dup2, before, place, os.get_inheritable(place))
            os.dup2(target, place, os.get_inheritable(place))
        undo.callback(_flush, stream)
        if own != fd and stream is not None:
            undo.enter_context(_replaced(name, stream, os.dup(target)))
        yield


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the descriptor of this stream; None: it writes to none."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


@contextmanager
def _replaced(name: str, before: TextIO, fd: int) -> Iterator[None]:
    """Have Python's own stream of this name write there. The descriptor is closed in the end."""
    with os.fdopen(fd, "w", 1, "utf-8", "backslashreplace") as here:
        setattr(sys, name, here)
        try:
            yield
        finally:
            if getattr(sys, name) is here:
                setattr(sys, name, before)


def _flush(stream: TextIO | None) -> None:
    """Write out what Python and C hold back, which belongs to where the stream goes now."""
    if stream is not None:
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # Closed, or nobody reads it: there is nothing to be lost.
    libc.fflush(None)
