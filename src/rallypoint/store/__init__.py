"""Key-value stores with torch's vocabulary, without torch.

Importing this package imports nothing else; a name is imported when it is first asked for, because
the launcher needs no store until a round has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.errors import (
        StoreConnectionError,
        StoreCorruptError,
        StoreError,
        StoreQueueEmptyError,
        StoreTimeoutError,
    )
    from rallypoint.store.file_store import FileStore
    from rallypoint.store.hash_store import HashStore
    from rallypoint.store.ports import create_c10d_store, get_free_port, get_socket_with_port
    from rallypoint.store.prefix_store import PrefixStore
    from rallypoint.store.store import Store
    from rallypoint.store.tcp_store import TCPStore

__all__ = [
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
    "create_c10d_store",
    "get_free_port",
    "get_socket_with_port",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        "rallypoint.errors": (
            "StoreConnectionError",
            "StoreCorruptError",
            "StoreError",
            "StoreQueueEmptyError",
            "StoreTimeoutError",
        ),
        ".file_store": ("FileStore",),
        ".hash_store": ("HashStore",),
        ".ports": ("create_c10d_store", "get_free_port", "get_socket_with_port"),
        ".prefix_store": ("PrefixStore",),
        ".store": ("Store",),
        ".tcp_store": ("TCPStore",),
    },
)
