"""The agreement of a job's nodes on which of them take part, with torch's vocabulary."""

from __future__ import annotations

from rallypoint.elastic.rendezvous.api import (
    RendezvousHandler as RendezvousHandler,
    RendezvousHandlerCreator as RendezvousHandlerCreator,
    RendezvousHandlerRegistry as RendezvousHandlerRegistry,
    RendezvousInfo as RendezvousInfo,
    RendezvousParameters as RendezvousParameters,
    RendezvousStoreInfo as RendezvousStoreInfo,
    rendezvous_handler_registry as rendezvous_handler_registry,
)
from rallypoint.errors import (
    RendezvousClosedError as RendezvousClosedError,
    RendezvousConnectionError as RendezvousConnectionError,
    RendezvousError as RendezvousError,
    RendezvousGracefulExitError as RendezvousGracefulExitError,
    RendezvousStateError as RendezvousStateError,
    RendezvousTimeoutError as RendezvousTimeoutError,
)
