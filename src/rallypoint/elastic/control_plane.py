"""The main function of a worker whose state can be queried by torch's debug server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rallypoint.worker.error_file import get_error_handler

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"


@contextmanager
def worker_main() -> Iterator[None]:
    """Write an exception of the block to the worker's error file, which its agent reads.

    The exception is raised all the same. Meant as a decorator of the main function:
    `@worker_main()`.

    Where the variable TORCH_WORKER_SERVER_SOCKET names a socket, torch's debug server answers there
    during the block. Only then torch is imported; ModuleNotFoundError is raised if it is missing.
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
