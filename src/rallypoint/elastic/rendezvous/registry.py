"""The handler that parameters describe."""

from __future__ import annotations

from rallypoint.elastic.rendezvous.api import (
    RendezvousHandler as RendezvousHandler,
)
from rallypoint.elastic.rendezvous.api import (
    RendezvousParameters as RendezvousParameters,
)
from rallypoint.elastic.rendezvous.api import (
    rendezvous_handler_registry as handler_registry,
)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler that `params` describe. Raises as `create_handler` of the registry does."""
    return handler_registry.create_handler(params)
