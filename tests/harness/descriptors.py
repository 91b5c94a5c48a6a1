"""What a test process has open and which children it has, to tell what a test has left.

Compare by what is new. Sockets that an earlier test left to the garbage collector are closed at any
time, so that a descriptor may be gone after a test that did nothing; and a test may begin beside
children of earlier ones, as is the resource tracker of `multiprocessing`, which is never ended.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def open_descriptors() -> set[tuple[str, str]]:
    """Numbers, each with what it leads to; without the one of the listing itself."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:
            pass  # of the listing, or closed meanwhile
    return found


def own_children() -> set[int]:
    """Pids, also of those that have exited and were not reaped."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # The thread has ended.
            found.update(map(int, (thread / "children").read_text().split()))
    return found


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """No file can be opened, and no connection accepted."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
