"""Key-value stores with torch's vocabulary, without torch."""

from __future__ import annotations

from rallypoint.elastic.stores.file_store import (
    FileStore as FileStore,
)
from rallypoint.elastic.stores.hash_store import (
    HashStore as HashStore,
)
from rallypoint.elastic.stores.ports import (
    create_c10d_store as create_c10d_store,
)
from rallypoint.elastic.stores.ports import (
    get_free_port as get_free_port,
)
from rallypoint.elastic.stores.ports import (
    get_socket_with_port as get_socket_with_port,
)
from rallypoint.elastic.stores.prefix_store import (
    PrefixStore as PrefixStore,
)
from rallypoint.elastic.stores.store import (
    Store as Store,
)
from rallypoint.elastic.stores.tcp_store import (
    TCPStore as TCPStore,
)
from rallypoint.errors import (
    StoreConnectionError as StoreConnectionError,
)
from rallypoint.errors import (
    StoreCorruptError as StoreCorruptError,
)
from rallypoint.errors import (
    StoreError as StoreError,
)
from rallypoint.errors import (
    StoreQueueEmptyError as StoreQueueEmptyError,
)
from rallypoint.errors import (
    StoreTimeoutError as StoreTimeoutError,
)

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
