"""What /proc shows of a process that may end at any time."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def state_of(pid: int) -> str:
    """One letter as `ps -o state` shows it: "S" sleeps, "Z" is a zombie; empty when it is gone."""
    return "".join(stat_of(pid)[:1])


def is_alive(pid: int) -> bool:
    """Whether it runs or is stopped; a zombie is dead."""
    return state_of(pid) not in ("", "Z", "X")


def parent_of(pid: int) -> int:
    """The pid of its parent."""
    return int(stat_of(pid)[1])


def birth_of(pid: int) -> str:
    """When it began, in ticks of the kernel, which tells it from a later one with its pid; empty
    when it is gone."""
    return "".join(stat_of(pid)[19:20])


def children_of(pid: int) -> list[int]:
    """Those that its main thread has started; empty when it is gone."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> list[int]:
    """Those that its threads have started, and theirs."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found + [below for child in found for below in descendants(child)]


def name_of(pid: int) -> str:
    """Its name as `ps -o comm` shows it; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command_line(pid: int) -> str:
    """Its words; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def processes_with(name: str, is_wanted: Callable[[bytes], bool]) -> list[int]:
    """The processes whose file of this name in /proc can be read and has the wanted bytes."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if is_wanted(Path(f"/proc/{pid}/{name}").read_bytes()):
                found.append(int(pid))
    return found
