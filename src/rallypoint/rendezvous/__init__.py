"""How the nodes of a job agree on who takes part, as a library with torch's vocabulary.

Importing this package imports nothing else; a name is imported when it is first asked for, so that
who needs one backend does not pay for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.errors import (
        ParameterError,
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousPlugInError,
        RendezvousStateError,
        RendezvousTimeoutError,
        SettingsConflictError,
    )
    from rallypoint.rendezvous.backend import (
        BeatingBackend,
        LetterBackend,
        RendezvousBackend,
        WakingBackend,
    )
    from rallypoint.rendezvous.c10d_backend import C10dRendezvousBackend
    from rallypoint.rendezvous.c10d_store import create_backend
    from rallypoint.rendezvous.coordinator_handler import CoordinatorRendezvousHandler
    from rallypoint.rendezvous.dynamic import DynamicRendezvousHandler, create_handler
    from rallypoint.rendezvous.handler import (
        RendezvousClosedException,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousNonRetryableError,
        RendezvousStoreInfo,
        RendezvousTimeoutException,
    )
    from rallypoint.rendezvous.memory_backend import MemoryRendezvousBackend
    from rallypoint.rendezvous.parameters import (
        RendezvousParameters,
        RendezvousSettings,
        RendezvousTimeout,
    )
    from rallypoint.rendezvous.registry import (
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        get_rendezvous_handler,
        rendezvous_handler_registry,
    )
    from rallypoint.rendezvous.static_handler import StaticRendezvousHandler

__all__ = [
    "BeatingBackend",
    "LetterBackend",
    "RendezvousBackend",
    "WakingBackend",
    "C10dRendezvousBackend",
    "create_backend",
    "CoordinatorRendezvousHandler",
    "DynamicRendezvousHandler",
    "create_handler",
    "RendezvousClosedException",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousNonRetryableError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutException",
    "MemoryRendezvousBackend",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousTimeout",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
    "StaticRendezvousHandler",
    "ParameterError",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousPlugInError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
    "SettingsConflictError",
]

_MODULES = {
    "BeatingBackend": "rallypoint.rendezvous.backend",
    "LetterBackend": "rallypoint.rendezvous.backend",
    "RendezvousBackend": "rallypoint.rendezvous.backend",
    "WakingBackend": "rallypoint.rendezvous.backend",
    "C10dRendezvousBackend": "rallypoint.rendezvous.c10d_backend",
    "create_backend": "rallypoint.rendezvous.c10d_store",
    "CoordinatorRendezvousHandler": "rallypoint.rendezvous.coordinator_handler",
    "DynamicRendezvousHandler": "rallypoint.rendezvous.dynamic",
    "create_handler": "rallypoint.rendezvous.dynamic",
    "RendezvousClosedException": "rallypoint.rendezvous.handler",
    "RendezvousHandler": "rallypoint.rendezvous.handler",
    "RendezvousInfo": "rallypoint.rendezvous.handler",
    "RendezvousNonRetryableError": "rallypoint.rendezvous.handler",
    "RendezvousStoreInfo": "rallypoint.rendezvous.handler",
    "RendezvousTimeoutException": "rallypoint.rendezvous.handler",
    "MemoryRendezvousBackend": "rallypoint.rendezvous.memory_backend",
    "RendezvousParameters": "rallypoint.rendezvous.parameters",
    "RendezvousSettings": "rallypoint.rendezvous.parameters",
    "RendezvousTimeout": "rallypoint.rendezvous.parameters",
    "RendezvousHandlerCreator": "rallypoint.rendezvous.registry",
    "RendezvousHandlerRegistry": "rallypoint.rendezvous.registry",
    "get_rendezvous_handler": "rallypoint.rendezvous.registry",
    "rendezvous_handler_registry": "rallypoint.rendezvous.registry",
    "StaticRendezvousHandler": "rallypoint.rendezvous.static_handler",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES.get(name, "rallypoint.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
