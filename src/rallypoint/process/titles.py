"""What `ps` and `top` show of a process that was forked and execs nothing: its command line, which
`ps -f` and `pgrep -f` read, and its name, of at most 15 bytes.

A helper gets another command line, in memory of its own. A worker's is overwritten where it is, so
that a program which sets its own title (setproctitle) still can; what finds no room is cut off.

Linux only: nothing changes elsewhere, nor where the kernel refuses. The prepared process loads this
by its path, so it needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

_PR_SET_NAME, _PR_GET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 16, 35, 14
_MAP = struct.Struct("=11QQIi")
"""The kernel's `struct prctl_mm_map`: eleven addresses, no auxiliary vector, no other program."""
_CODE_START, _CODE_END, _STACK_START = 26, 27, 28
_DATA_START, _DATA_END, _HEAP_START = 45, 46, 47
_ARGUMENTS, _ARGUMENTS_END, _ENVIRON, _ENVIRON_END = 48, 49, 50, 51
"""Where /proc/PID/stat has them; see proc(5)."""


@cache
def load() -> Any:
    """The C library, or None where it has no prctl. To be called before a fork: a child must not
    look up symbols."""
    try:
        libc = ctypes.CDLL(None)
        libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
        libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    except AttributeError:
        return None
    return libc


def set_title(text: str) -> None:
    """In a forked helper, after `load`: be shown as this text."""
    title, libc, stat = os.fsencode(text) + b"\0", load(), _stat()
    if libc is None or stat is None:
        return
    # Two buffers that nobody frees: the kernel reads the first from there.
    buffer = libc.title = ctypes.create_string_buffer(title, len(title))
    start = ctypes.addressof(buffer)
    places = (_CODE_START, _CODE_END, _DATA_START, _DATA_END, _HEAP_START)
    record = _MAP.pack(
        *(stat[place] for place in places),
        libc.sbrk(0),
        stat[_STACK_START],
        start,
        start + len(title),
        stat[_ENVIRON],
        stat[_ENVIRON_END],
        0,
        0,
        -1,
    )
    told = ctypes.create_string_buffer(record, len(record))
    libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.addressof(told), len(record), 0)


def overwrite(words: Sequence[str]) -> None:
    """In a worker: be shown as this command line, as far as there is room for it."""
    stat = _stat()
    if stat is None:
        return
    start, room = stat[_ARGUMENTS], stat[_ARGUMENTS_END] - stat[_ARGUMENTS]
    text = b"\0".join(map(os.fsencode, words))[: max(room - 1, 0)]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)


def of_worker(environ: Mapping[str, str]) -> str:
    """What to show for a worker that runs a function. The rank first: room may be short."""
    return f"rank {environ['RANK']} of job {environ['TORCHELASTIC_RUN_ID']} (rallypoint)"


def set_name(name: str) -> str:
    """After `load`: be called this in `ps -o comm` and `top`; 15 bytes of it count. Returns the
    name before. By a system call: /proc/self/comm may belong to root."""
    if (libc := load()) is None:
        return ""
    before = ctypes.create_string_buffer(16)
    libc.prctl(_PR_GET_NAME, ctypes.addressof(before), 0, 0, 0)
    after = ctypes.create_string_buffer(os.fsencode(name)[:15])
    libc.prctl(_PR_SET_NAME, ctypes.addressof(after), 0, 0, 0)
    return os.fsdecode(before.value)


def _stat() -> dict[int, int] | None:
    """The addresses of this process's memory by their number; None where they are not known."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        known = {number: int(fields[number - 3]) for number in range(_CODE_START, _ENVIRON_END + 1)}
    except (OSError, IndexError, ValueError):
        return None
    return known if known[_ARGUMENTS] else None
