"""What a process that does nothing but serve a store runs on: an event loop, and its heap.

The loop is uvloop's where it is installed, else asyncio's own.
"""

from __future__ import annotations

import asyncio

_KEPT_BYTES = 4 << 20


def new_event_loop(*, fast: bool = True) -> asyncio.AbstractEventLoop:
    """A new loop; `fast=False` never takes uvloop's. The extra `rallypoint[fast]` installs it.

    Only for processes that do nothing but serve: importing uvloop takes 35 ms, and up to 8 MiB of
    freed memory are kept from then on.
    """
    _keep_freed_memory()
    if fast:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _keep_freed_memory() -> None:
    """Values of 64 KiB come and go, and a page fault for every 4 KiB costs more than serving them.

    glibc's malloc gives back what it has freed when that is twice as much as the largest block that
    was ever freed and had been mapped for itself (mallopt(3), M_MMAP_THRESHOLD): so one is freed
    here. It is never written to, so it takes no memory; another malloc does nothing of that kind.
    """
    bytearray(_KEPT_BYTES)
