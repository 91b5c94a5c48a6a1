"""Key-value stores with torch's vocabulary, without torch.

Importing this package imports nothing else; a name is imported when it is first asked for, because
the launcher needs no store until a round has one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.errors import (
        StoreConnectionError,
        StoreCorruptError,
        StoreError,
        StoreQueueEmptyError,
        StoreTimeoutError,
    )
    from rallypoint.store.async_tcp_store import AsyncTCPStore
    from rallypoint.store.file_store import FileStore
    from rallypoint.store.hash_store import HashStore
    from rallypoint.store.prefix_store import PrefixStore
    from rallypoint.store.store import Store
    from rallypoint.store.tcp_store import TCPStore

__all__ = [
    "AsyncTCPStore",
    "FileStore",
    "HashStore",
    "PrefixStore",
    "Store",
    "StoreConnectionError",
    "StoreCorruptError",
    "StoreError",
    "StoreQueueEmptyError",
    "StoreTimeoutError",
    "TCPStore",
]

_MODULES = {
    "AsyncTCPStore": "rallypoint.store.async_tcp_store",
    "FileStore": "rallypoint.store.file_store",
    "HashStore": "rallypoint.store.hash_store",
    "PrefixStore": "rallypoint.store.prefix_store",
    "Store": "rallypoint.store.store",
    "TCPStore": "rallypoint.store.tcp_store",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES.get(name, "rallypoint.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
