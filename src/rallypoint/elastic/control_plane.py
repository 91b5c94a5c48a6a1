"""The main function of a worker whose state can be queried by torch's debug server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rallypoint.worker.error_file import get_error_handler

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"


@contextmanager
def worker_main() -> Iterator[None]:
    """Tell the agent of an exception of the block.

    By `@worker_main()` of the main function.

    Where the variable TORCH_WORKER_SERVER_SOCKET names a socket, torch's own server answers there
    meanwhile; only then torch is imported, and ModuleNotFoundError raised where it is missing.
    """
    serving: AbstractContextManager[None] = nullcontext()
    if os.environ.get(TORCH_WORKER_SERVER_SOCKET):
        from torch.distributed.elastic.control_plane import worker_main as served_by_torch

        serving = served_by_torch() or serving
    handler = get_error_handler()
    handler.initialize()
    with serving:
        try:
            yield
        except Exception as error:
            handler.record_exception(error)
            raise
        handler.record_success()
