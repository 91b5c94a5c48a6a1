"""What tests of a rendezvous are made from: the contract of backends, and jobs in virtual time.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.testing.backend_contract import RendezvousBackendContract
    from rallypoint.testing.cluster import Cluster
    from rallypoint.testing.fake_clock import Clock, FakeClock
    from rallypoint.testing.scenario import Scenario
    from rallypoint.testing.shared_cluster import SharedCluster
    from rallypoint.testing.virtual_time import RoundHost, VirtualTimers

__all__ = [
    "RendezvousBackendContract",
    "Cluster",
    "Clock",
    "FakeClock",
    "Scenario",
    "SharedCluster",
    "RoundHost",
    "VirtualTimers",
]

_MODULES = {
    "RendezvousBackendContract": "rallypoint.testing.backend_contract",
    "Cluster": "rallypoint.testing.cluster",
    "Clock": "rallypoint.testing.fake_clock",
    "FakeClock": "rallypoint.testing.fake_clock",
    "Scenario": "rallypoint.testing.scenario",
    "SharedCluster": "rallypoint.testing.shared_cluster",
    "RoundHost": "rallypoint.testing.virtual_time",
    "VirtualTimers": "rallypoint.testing.virtual_time",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
