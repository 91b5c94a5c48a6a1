"""Which descriptors a test process has open, to tell what a test has left open.

Compare by what is new: sockets that an earlier test left to the garbage collector are closed at any
time, so that a descriptor may be gone after a test that did nothing.
"""

from __future__ import annotations

import os


def open_descriptors() -> set[tuple[str, str]]:
    """Numbers, each with what it leads to; without the one of the listing itself."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:
            pass  # of the listing, or closed meanwhile
    return found
