"""The event loop of a store's process: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio


def new_event_loop(*, fast: bool = True) -> asyncio.AbstractEventLoop:
    """A new loop; `fast=False` never takes uvloop's. The extra `rallypoint[fast]` installs it.

    Only for processes that do nothing but serve: importing uvloop takes 35 ms.
    """
    if fast:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
