"""Tools for authors of rendezvous backends: a contract, a clock and unreliable files.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.testing.backend_contract import RendezvousBackendContract
    from rallypoint.testing.clock import Clock, FakeClock, VirtualTimers
    from rallypoint.testing.unreliable_files import Fault, FileServer, UnreliableFiles

__all__ = [
    "RendezvousBackendContract",
    "Clock",
    "FakeClock",
    "Fault",
    "FileServer",
    "UnreliableFiles",
    "VirtualTimers",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".backend_contract": ("RendezvousBackendContract",),
        ".clock": ("Clock", "FakeClock", "VirtualTimers"),
        ".unreliable_files": ("Fault", "FileServer", "UnreliableFiles"),
    },
)
