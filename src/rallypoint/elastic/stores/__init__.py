"""Key-value stores with torch's vocabulary, without torch."""

from __future__ import annotations

from rallypoint.elastic.stores.file_store import FileStore as FileStore
from rallypoint.elastic.stores.hash_store import HashStore as HashStore
from rallypoint.elastic.stores.prefix_store import PrefixStore as PrefixStore
from rallypoint.elastic.stores.store import Store as Store
from rallypoint.elastic.stores.tcp_store import TCPStore as TCPStore
from rallypoint.errors import (
    StoreConnectionError as StoreConnectionError,
    StoreCorruptError as StoreCorruptError,
    StoreError as StoreError,
    StoreQueueEmptyError as StoreQueueEmptyError,
    StoreTimeoutError as StoreTimeoutError,
)
