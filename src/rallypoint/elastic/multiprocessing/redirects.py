"""Redirect stdout or stderr of this process to a file, for Python, C code and child processes."""

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
    """Return `redirect_stdout(to_file)` or `redirect_stderr(to_file)`, by the stream's name.

    Raises ParameterError for what is neither `stdout` nor `stderr`.
    """
    streams = {"stdout": redirect_stdout, "stderr": redirect_stderr}
    if std not in streams:
        raise ParameterError(f"std={std!r}: needs 'stdout' or 'stderr'")
    return streams[std](to_file)


@contextmanager
def redirect_stdout(to_file: str) -> Iterator[None]:
    """Redirect stdout to a file, which is emptied first, within the block. Raises OSError.

    Applies to the whole process, to all of its threads and to the processes that it starts. Applies
    also where a program has replaced `sys.stdout`, as pytest and a notebook's kernel do. May be
    nested.
    """
    with _redirected(1, "stdout", to_file):
        yield


@contextmanager
def redirect_stderr(to_file: str) -> Iterator[None]:
    """Redirect stderr to a file within the block, as `redirect_stdout` does for stdout."""
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
    """Return the file descriptor of this stream; None if it has none."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


@contextmanager
def _replaced(name: str, before: TextIO, fd: int) -> Iterator[None]:
    """Have Python's stream of this name write to the descriptor, which is closed at the end."""
    with os.fdopen(fd, "w", 1, "utf-8", "backslashreplace") as here:
        setattr(sys, name, here)
        try:
            yield
        finally:
            if getattr(sys, name) is here:
                setattr(sys, name, before)


def _flush(stream: TextIO | None) -> None:
    """Flush the buffers of Python and C to the present destination, before it changes."""
    if stream is not None:
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # Closed, or nobody reads it: there is nothing to be lost.
    libc.fflush(None)
