"""The activity of a worker right now.

The stacks of its threads, or the kernel's information about it.

A worker that uses `rallypoint.worker` writes its stacks to a file when it is asked through a pipe
beside it; a thread of its own does so (`worker/stacks.py`, which says why). Where that thread does
not get the interpreter lock, the worker is sent the signal that it has told: Python's faulthandler
needs neither. What it told is believed only as far as it is harmless: the process must belong to
the session of the worker, and it must catch that signal, which would end it otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

from rallypoint.files import open_named
from rallypoint.process import sessions, syscalls
from rallypoint.wire.shm_words import ask_stacks_path

STACKS_LIMIT_BYTES = 64 * 1024
_LOOK_S = 0.01
_SETTLED_LOOKS = 5
_WRITER = "/rallypoint/worker/stacks.py"
"""The end of the path of the module whose thread writes stacks; that thread's own is left out."""
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible sleep",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "a zombie",
}


async def dump(worker: int, owner: int, signum: int, path: str, *, timeout_s: float) -> str:
    """Return the stacks of the worker with this pid, or a line about its state.

    `owner` is the process of the worker's session that writes its stacks to `path` when it gets
    `signum`. A thread of it is asked first, by a pipe. If that has not written them within half of
    `timeout_s` seconds, the process is sent `signum`. If neither brings stacks, the line is from
    /proc.
    """
    before, began_at = _size(path), asyncio.get_running_loop().time()
    asked = path and before >= 0 and _ask_thread(path, timeout_s / 2)
    if asked and await _settled(path, before, lambda: False, began_at + timeout_s / 2):
        return _read(path, before)
    before, blocking = _size(path), _blocking(owner, signum)
    if path and before >= 0 and _ask(worker, owner, signum):
        deadline = began_at + timeout_s

        def writing() -> bool:
            return not _blocking(owner, signum) <= blocking

        if await _settled(path, before, writing, deadline):
            return _read(path, before)
        return f"{describe(owner)}; it wrote no stacks within {timeout_s:g} s"
    return describe(worker)


def describe(pid: int) -> str:
    """Return one line from the kernel about a process: its state, its place in the kernel, threads.

    The line says so if the process has gone.
    """
    status = _status(pid)
    state = status.get("State", "")[:1]
    if not state:
        return f"process {pid} has gone"
    text = f"process {pid} ({status.get('Name', '?')}) is {_STATES.get(state, state)}"
    place = _first_line(f"/proc/{pid}/wchan")
    if place not in ("", "0"):
        text += f" in {place}"
    threads = status.get("Threads", "1")
    return text if threads == "1" else f"{text}, with {threads} threads"


def _ask_thread(path: str, timeout_s: float) -> bool:
    """Ask the worker's thread for stacks, by the pipe beside `path`; return whether it was asked.

    The request says that they are wanted within `timeout_s` seconds. Never blocks.
    """
    until = time.monotonic_ns() + int(timeout_s * 1e9)
    try:
        fd = open_named(ask_stacks_path(path), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # Nobody reads there.
        return False
    try:
        return os.write(fd, until.to_bytes(8, sys.byteorder)) == 8
    except OSError:
        return False
    finally:
        os.close(fd)


def _ask(worker: int, owner: int, signum: int) -> bool:
    if not signal.SIGRTMIN <= signum <= signal.SIGRTMAX or owner <= 1:
        return False
    try:
        fd = syscalls.pidfd_open(owner)
    except (OSError, OverflowError):
        return False
    try:
        # The descriptor pins the process while it is looked at.
        if sessions.session_of(owner) != worker or not catches(owner, signum):
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def catches(pid: int, signum: int) -> bool:
    """Return whether this process has a handler for the signal."""
    return _has_signal(_status(pid).get("SigCgt", ""), signum)


def _blocking(pid: int, signum: int) -> frozenset[str]:
    """Return the process's threads that block this signal.

    A thread that is just handling the signal does.
    """
    if not signal.SIGRTMIN <= signum <= signal.SIGRTMAX or pid <= 1:
        return frozenset()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return frozenset()
    masks = ((thread, _status(f"{pid}/task/{thread}").get("SigBlk", "")) for thread in threads)
    return frozenset(thread for thread, mask in masks if _has_signal(mask, signum))


def _has_signal(mask: str, signum: int) -> bool:
    try:
        return bool(int(mask, 16) >> (signum - 1) & 1)
    except ValueError:
        return False


async def _settled(path: str, before: int, writing: Callable[[], bool], deadline: float) -> bool:
    """Wait until the file is longer than `before` bytes and whole; return whether it is longer.

    Waits until the deadline at most. It is whole when it ends with a line, has not grown for a
    moment, and nobody is `writing`.
    """
    loop = asyncio.get_running_loop()
    last, same = before, 0
    while loop.time() < deadline and (same < _SETTLED_LOOKS or writing()):
        await asyncio.sleep(_LOOK_S)
        size = _size(path)
        same = same + 1 if size == last > before and _ends_a_line(path, size) else 0
        last = size
    return last > before


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path else -1
    except OSError:
        return -1


def _ends_a_line(path: str, size: int) -> bool:
    return _bytes(path, size - 1, 1) in (b"\n", b"")


def _read(path: str, start: int) -> str:
    # Where there are too many threads, the first one, which comes last, tells most.
    start = max(start, _size(path) - STACKS_LIMIT_BYTES)
    text = _bytes(path, start, STACKS_LIMIT_BYTES).decode(errors="replace").strip()
    *others, main = [block for block in text.split("\n\n") if _WRITER not in block] or [text]
    if main.startswith("Thread 0x"):  # The one that wrote was another.
        main = f"Current t{main[1:]}"
    return "\n\n".join([*others, main])


def _bytes(path: str, start: int, length: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, length, start)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _status(pid: int | str) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""
