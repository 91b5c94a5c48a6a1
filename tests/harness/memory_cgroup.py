"""A cgroup with little memory, for what should be killed for it; where the machine allows one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path | None]:
    """A new group, removed afterwards with whatever still runs in it; None where none can be."""
    group, setting = _make(limit_bytes)
    try:
        if group is not None:
            (group / setting).write_text(str(limit_bytes))
            _no_swap(group)
        yield group
    finally:
        if group is not None:
            _remove(group)


def inside(group: Path) -> tuple[str, ...]:
    """What to put before a command so that it, and all that it starts, runs in the group."""
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


def _make(limit_bytes: int) -> tuple[Path | None, str]:
    name = f"rallypoint-test-{os.getpid()}"
    for root, setting in ((_V1, "memory.limit_in_bytes"), (_V2, "memory.max")):
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        if os.access(group / setting, os.W_OK):
            return group, setting
        group.rmdir()
    return None, ""


def _no_swap(group: Path) -> None:
    for name, value in (("memory.swap.max", "0"), ("memory.swappiness", "0")):
        try:
            (group / name).write_text(value)
        except OSError:
            continue


def _remove(group: Path) -> None:
    for _ in range(3000):
        try:
            group.rmdir()
        except OSError:
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)
        else:
            return
    raise AssertionError(f"{group} can't be removed")
