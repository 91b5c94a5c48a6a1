"""What tests of a rendezvous are made from: the contract of backends, and jobs in virtual time.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.testing.backend_contract import RendezvousBackendContract
    from rallypoint.testing.clock import Clock, FakeClock, VirtualTimers
    from rallypoint.testing.cluster import Cluster
    from rallypoint.testing.kubernetes_api import KubernetesApi
    from rallypoint.testing.unreliable_files import Fault, FileServer, UnreliableFiles

__all__ = [
    "RendezvousBackendContract",
    "Cluster",
    "Clock",
    "FakeClock",
    "Fault",
    "FileServer",
    "KubernetesApi",
    "UnreliableFiles",
    "VirtualTimers",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".backend_contract": ("RendezvousBackendContract",),
        ".cluster": ("Cluster",),
        ".clock": ("Clock", "FakeClock", "VirtualTimers"),
        ".kubernetes_api": ("KubernetesApi",),
        ".unreliable_files": ("Fault", "FileServer", "UnreliableFiles"),
    },
)
