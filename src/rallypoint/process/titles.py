"""The title in `ps` and `top` of a process that was forked and executes nothing.

It consists of its command line, which `ps -f` and `pgrep -f` read, and its name, of at most 15
bytes.

A helper gets another command line, in memory of its own. A worker's is overwritten in place, so
that a program which sets its own title (setproctitle) still can; an overlong title is cut off.
Linux only: nothing changes elsewhere, nor where the kernel refuses. The prepared process loads this
by its path, so it needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

_PR_SET_NAME, _PR_GET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 16, 35, 14
_MAP = struct.Struct("=11QQIi")
"""The kernel's `struct prctl_mm_map`: eleven addresses, no auxiliary vector, no other program."""
_CODE_START, _CODE_END, _STACK_START = 26, 27, 28
_DATA_START, _DATA_END, _HEAP_START = 45, 46, 47
_ARGUMENTS, _ARGUMENTS_END, _ENVIRON, _ENVIRON_END = 48, 49, 50, 51
"""The positions of these addresses in /proc/PID/stat; see proc(5)."""


class _Calls(NamedTuple):
    """Functions of the C library.

    Texts are passed as they are: to make an array of `ctypes` writes to many pages, which a forked
    process would not share any more.
    """

    name: Any
    """The C function prctl, to be called with an option and a text."""
    map: Any
    """The C function prctl, to be called with PR_SET_MM, PR_SET_MM_MAP, the map and its size."""
    end_of_heap: Any


@cache
def load() -> _Calls | None:
    """Return the functions of the C library that set titles; None where it lacks one.

    To be called before a fork: a child must not look up symbols.
    """
    try:
        libc = ctypes.CDLL(None)
        name, map_, sbrk = libc["prctl"], libc["prctl"], libc["sbrk"]
    except AttributeError:
        return None
    number = ctypes.c_ulong
    name.argtypes = [ctypes.c_int, ctypes.c_char_p, number, number, number]
    map_.argtypes = [ctypes.c_int, number, ctypes.c_char_p, number, number]
    sbrk.argtypes, sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    return _Calls(name, map_, sbrk)


_shown: list[Any] = []
"""The title of this process, which the kernel reads from this memory, so that it must not be
freed."""


def set_title(text: str) -> None:
    """Show this text as the title of a forked helper; `load` was called before the fork."""
    title, calls, stat = os.fsencode(text), load(), _stat()
    if calls is None or stat is None:
        return
    kept = ctypes.c_char_p(title)
    _shown.append(kept)
    start = ctypes.c_size_t.from_buffer(kept).value
    places = (_CODE_START, _CODE_END, _DATA_START, _DATA_END, _HEAP_START)
    record = _MAP.pack(
        *(stat[place] for place in places),
        calls.end_of_heap(0),
        stat[_STACK_START],
        start,
        start + len(title) + 1,
        stat[_ENVIRON],
        stat[_ENVIRON_END],
        0,
        0,
        -1,
    )
    calls.map(_PR_SET_MM, _PR_SET_MM_MAP, record, len(record), 0)


def overwrite(words: Sequence[str]) -> None:
    """Show this command line as the title of this process, a worker, as far as there is space."""
    stat = _stat()
    if stat is None:
        return
    start, room = stat[_ARGUMENTS], stat[_ARGUMENTS_END] - stat[_ARGUMENTS]
    text = b"\0".join(map(os.fsencode, words))[: max(room - 1, 0)]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)


def of_worker(environ: Mapping[str, str]) -> str:
    """Return the title of a worker that runs a function; the rank is first in case of a cut."""
    return f"rank {environ['RANK']} of job {environ['TORCHELASTIC_RUN_ID']} (rallypoint)"


def set_name(name: str) -> None:
    """Set the name in `ps -o comm` and `top`, of which 15 bytes count.

    In a forked child `load` must have been called before the fork. By a system call:
    /proc/self/comm may belong to root.
    """
    if (calls := load()) is not None:
        calls.name(_PR_SET_NAME, os.fsencode(name)[:15], 0, 0, 0)


def name() -> str:
    """Return the present name of this process; empty where it is not known."""
    if (calls := load()) is None:
        return ""
    found = ctypes.create_string_buffer(16)
    calls.name(_PR_GET_NAME, found, 0, 0, 0)
    return os.fsdecode(found.value)


def _stat() -> dict[int, int] | None:
    """Return the addresses of this process's memory by the numbers of their fields in proc(5).

    None: they are not known.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        known = {number: int(fields[number - 3]) for number in range(_CODE_START, _ENVIRON_END + 1)}
    except (OSError, IndexError, ValueError):
        return None
    return known if known[_ARGUMENTS] else None
