"""A node of a job over a backend, whose rounds form soon."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rallypoint.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)
from rallypoint.elastic.stores import HashStore
from rallypoint.register.contract import RendezvousBackend


def quick_node(
    backend: RendezvousBackend,
    low: int,
    high: int,
    *,
    store: HashStore | None = None,
    **timeouts_s: float,
) -> DynamicRendezvousHandler:
    """One of `low` to `high` nodes; `timeouts_s` are those of `RendezvousTimeout`, in seconds."""
    given: dict[str, Any] = {"last_call": 0.2, **timeouts_s}
    timeout = RendezvousTimeout(**{name: timedelta(seconds=s) for name, s in given.items()})
    return DynamicRendezvousHandler.from_backend(
        *("job", store or HashStore(), backend, low, high, "127.0.0.1", timeout),
        keep_alive_interval=0.2,
    )
