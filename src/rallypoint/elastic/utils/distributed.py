"""Free ports, and stores that listen on them."""

from __future__ import annotations

import socket

from rallypoint.elastic.stores.tcp_store import TCPStore, bind


def get_socket_with_port() -> socket.socket:
    """Return a socket that is bound to a free port of localhost.

    No other process gets that port until the socket is closed. Raises StoreConnectionError if there
    is none.
    """
    return bind("localhost", 0)


def get_free_port() -> int:
    """Return a port of localhost that is free now; another process may take it."""
    with get_socket_with_port() as free:
        port: int = free.getsockname()[1]
    return port


def create_c10d_store(
    is_server: bool,
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600,
    wait_for_workers: bool = True,
    retries: int = 3,
    use_libuv: bool | None = None,
) -> TCPStore:
    """Return a `TCPStore`; with `is_server` this process hosts it.

    Blocks for `timeout` seconds at most. A server that is alone may leave the port out, and gets a
    free one: see the store's `port`. With `wait_for_workers` a server waits until `world_size`
    processes have come, itself included. `retries` and `use_libuv` have no effect.

    Raises ValueError for a missing port, and what `TCPStore` raises.
    """
    if server_port == -1 and (world_size > 1 or not is_server):
        why = f"world_size={world_size}" if is_server else "a client"
        raise ValueError(f"server_port=-1: {why} needs the port that all have agreed on")
    port = max(server_port, 0) if is_server else server_port
    return TCPStore(server_addr, port, world_size, is_server, timeout, wait_for_workers)
