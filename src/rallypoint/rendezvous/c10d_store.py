"""Who hosts the store of a c10d rendezvous, and the backend in it: the seed's `create_backend`.

`store_type=tcp`: whoever can bind the endpoint hosts the server, everybody else is its client;
`is_host` decides otherwise. `store_type=file`: the endpoint is a path that all nodes share, of a
file, or of a directory in which the file of this job is made.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

from rallypoint.errors import (
    ParameterError,
    RendezvousConnectionError,
    StoreConnectionError,
    StoreError,
)
from rallypoint.rendezvous.c10d_backend import C10dRendezvousBackend
from rallypoint.rendezvous.dynamic import DynamicRendezvousHandler, create_handler
from rallypoint.rendezvous.endpoint_text import parse_rendezvous_endpoint
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.store.file_store import FileStore
from rallypoint.store.store import Store
from rallypoint.store.tcp_store import TCPStore

DEFAULT_PORT = 29400
READ_TIMEOUT_S = 60


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Store]:
    """The backend that `params` describe, and the store in which it keeps the state. Blocks.

    Raises ParameterError, RendezvousConnectionError when there is nobody at the endpoint for
    `read_timeout` seconds (60), and AccessError for a file that is not this user's alone.
    """
    store_type = str(params.get("store_type", "tcp")).strip().lower()
    timeout = timedelta(seconds=params.get_as_seconds("read_timeout", READ_TIMEOUT_S))
    makers = {"tcp": _tcp_store, "file": _file_store}
    if store_type not in makers:
        raise ParameterError(
            f"the rendezvous parameter store_type={store_type!r}: known are {', '.join(makers)}"
        )
    try:
        store = makers[store_type](params, timeout)
    except StoreError as error:
        raise RendezvousConnectionError(f"the rendezvous store: {error}") from error
    return C10dRendezvousBackend(store, params.run_id), store


def create_handler_from(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """The handler of the backend `c10d`, and of `file`, which needs no server at all.

    Raises what `create_backend` does.
    """
    if params.backend == "file":
        if not params.get_as_bool("insecure", False):
            raise ParameterError(
                "rendezvous backend 'file': nodes prove no token, and everybody who reaches the "
                "port of a round's store can use it: give insecure=True on every node to accept "
                "that, or use the backend 'tcp'"
            )
        params.config.setdefault("store_type", "file")
    backend, store = create_backend(params)
    return create_handler(store, backend, params)


def _tcp_store(params: RendezvousParameters, timeout: timedelta) -> TCPStore:
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    is_host = params.get_as_bool("is_host")
    if is_host is not False:
        try:
            return TCPStore(host, port, None, True, timeout, wait_for_workers=False)
        except StoreConnectionError:
            if is_host:
                raise
    return TCPStore(host, port, None, False, timeout, wait_for_workers=False)


def _file_store(params: RendezvousParameters, timeout: timedelta) -> FileStore:
    path = Path(params.endpoint.strip() or tempfile.gettempdir())
    if path.is_dir():
        path /= f"rallypoint-rendezvous-{params.run_id.replace('/', '_')}"
    return FileStore(path, timeout=timeout, private=True)
