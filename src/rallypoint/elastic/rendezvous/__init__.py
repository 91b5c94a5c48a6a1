"""How the nodes of a job agree on which of them take part, as a library with torch's vocabulary."""

from __future__ import annotations

from rallypoint.elastic.rendezvous.handler import (
    RendezvousHandler as RendezvousHandler,
)
from rallypoint.elastic.rendezvous.handler import (
    RendezvousInfo as RendezvousInfo,
)
from rallypoint.elastic.rendezvous.handler import (
    RendezvousStoreInfo as RendezvousStoreInfo,
)
from rallypoint.elastic.rendezvous.parameters import (
    RendezvousParameters as RendezvousParameters,
)
from rallypoint.elastic.rendezvous.registry import (
    RendezvousHandlerCreator as RendezvousHandlerCreator,
)
from rallypoint.elastic.rendezvous.registry import (
    RendezvousHandlerRegistry as RendezvousHandlerRegistry,
)
from rallypoint.elastic.rendezvous.registry import (
    rendezvous_handler_registry as rendezvous_handler_registry,
)
from rallypoint.errors import (
    RendezvousClosedError as RendezvousClosedError,
)
from rallypoint.errors import (
    RendezvousConnectionError as RendezvousConnectionError,
)
from rallypoint.errors import (
    RendezvousError as RendezvousError,
)
from rallypoint.errors import (
    RendezvousGracefulExitError as RendezvousGracefulExitError,
)
from rallypoint.errors import (
    RendezvousStateError as RendezvousStateError,
)
from rallypoint.errors import (
    RendezvousTimeoutError as RendezvousTimeoutError,
)

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "rendezvous_handler_registry",
]
