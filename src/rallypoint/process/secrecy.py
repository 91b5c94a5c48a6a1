"""What a process of the command line that knows a token keeps from others of the same user.

Where Linux's prctl(2) is missing, or libc is another, less is hidden, and everything works.
"""

from __future__ import annotations

import os

from rallypoint.process.syscalls import load_prctl

_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_was_dumpable = False
"""Whether this process could be looked into before `hide`."""


def hide() -> None:
    """From now on only root may trace this process, read its memory, or see what /proc says of its
    environment and descriptors, and it leaves no core dump. Forks inherit that; an exec ends it."""
    global _was_dumpable
    prctl = load_prctl()
    _was_dumpable = prctl(_PR_GET_DUMPABLE, 0) == 1
    prctl(_PR_SET_DUMPABLE, 0)


def show_again() -> None:
    """In a worker that is forked from a hidden process: it is its user's, to debug or to dump."""
    if _was_dumpable:
        load_prctl()(_PR_SET_DUMPABLE, 1)


def erase_variable(name: str) -> None:
    """Overwrite an environment variable where /proc/PID/environ shows it: in the memory that this
    process was started with, which stays as it is when a variable is deleted. Before that."""
    import ctypes

    libc, variable = ctypes.CDLL(None), os.fsencode(name)
    libc.getenv.restype = ctypes.c_void_p
    libc.getenv.argtypes = [ctypes.c_char_p]
    while value_at := libc.getenv(variable):  # It may be there twice.
        start = value_at - len(variable) - 1
        ctypes.memset(start, 0, len(variable) + 1 + len(ctypes.string_at(value_at)))
