"""Rallypoint's rendezvous for stock torchrun: `--rdzv-backend rallypoint`.

    torchrun --rdzv-backend rallypoint --rdzv-endpoint node0:29400 --nnodes 1:4 train.py

torchrun finds `make_creator` as an entry point of the group `torchrun.handlers`. Agents and workers
are torch's; Rallypoint's coordinator decides which nodes take part and when, so that a lost node is
reported at once, and each round has its own store and address.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.static_tcp_rendezvous import (
    CoordinatorRendezvousHandler,
    create_handler_from,
)
from rallypoint.errors import (
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.observe.printing import print_error

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler

BACKEND = "rallypoint"
_OF_TORCHRUN = ("timeout", "rank")
"""The keys that torchrun adds to a backend's configuration, and that belong to other backends."""

_tokens: list[str] = []
"""Tokens that were removed from the environment, for further handlers of this process."""


def make_creator() -> Callable[[Any], RendezvousHandler]:
    """Return `create_handler`, which makes a handler of torch's kind from torch's parameters."""
    return create_handler


def create_handler(params: Any) -> RendezvousHandler:
    """Return a handler for torch's `RendezvousParameters`.

    docs/rendezvous.md has the keys. The token may also be in RALLYPOINT_TOKEN, which is removed
    from the environment, because the workers inherit it. Raises torch's RendezvousError.
    """
    config = {key: value for key, value in params.config.items() if key not in _OF_TORCHRUN}
    _tokens.extend(filter(None, [os.environ.pop("RALLYPOINT_TOKEN", None)]))
    if _tokens:
        config.setdefault("token", _tokens[-1])
    with _as_torch_says():
        ours = RendezvousParameters(
            params.backend,
            params.endpoint,
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            **config,
        )
        return _wrap(create_handler_from(ours))


def _wrap(handler: CoordinatorRendezvousHandler) -> RendezvousHandler:
    from torch.distributed import PrefixStore, TCPStore
    from torch.distributed.elastic import rendezvous

    class Handler(rendezvous.RendezvousHandler):
        """The handler as a subclass of torch's `RendezvousHandler`."""

        def get_backend(self) -> str:
            return handler.get_backend()

        def get_run_id(self) -> str:
            return handler.get_run_id()

        @property
        def use_agent_store(self) -> bool:
            return True

        def next_rendezvous(self) -> rendezvous.RendezvousInfo:
            with _as_torch_says():
                try:
                    info = handler.next_rendezvous()
                except RendezvousGracefulExitError as error:
                    if not _runs_torchrun():
                        raise
                    # torchrun's own way out of this one ends in an AttributeError.
                    print_error("rallypoint", str(error))
                    raise SystemExit(0) from error
            where = info.bootstrap_store_info
            assert where is not None
            host, port = where.master_addr, where.master_port
            timeout = handler.settings.timeout.join
            store = TCPStore(host, port, timeout=timeout, wait_for_workers=False)
            return rendezvous.RendezvousInfo(
                PrefixStore(f"rallypoint.{handler.get_run_id()}", store),
                info.rank,
                info.world_size,
                rendezvous.RendezvousStoreInfo(host, port),
            )

        def is_closed(self) -> bool:
            with _as_torch_says():
                return handler.is_closed()

        def set_closed(self) -> None:
            with _as_torch_says():
                handler.set_closed()

        def num_nodes_waiting(self) -> int:
            with _as_torch_says():
                return handler.num_nodes_waiting()

        def shutdown(self) -> bool:
            """Shut down the handler, which torchrun does last, even when the job has failed.

            Unless an exception is being handled, this node's workers count as succeeded.
            """
            failed = sys.exc_info()[0] is not None
            return handler.shutdown() if failed else handler.finish()

    return Handler()


def _runs_torchrun() -> bool:
    """Return whether this process is the command torchrun, not a program that uses its library."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_module = spec is not None and spec.name == "torch.distributed.run"
    return is_module or os.path.basename(sys.argv[0]) == "torchrun"


@contextmanager
def _as_torch_says() -> Iterator[None]:
    """Raise Rallypoint's errors as torch's rendezvous errors, with the same text."""
    from torch.distributed.elastic import rendezvous as theirs

    try:
        yield
    except RallypointError as error:
        kinds = (
            (RendezvousGracefulExitError, theirs.RendezvousGracefulExitError),
            (RendezvousClosedError, theirs.RendezvousClosedError),
            (RendezvousTimeoutError, theirs.RendezvousTimeoutError),
            (RendezvousConnectionError, theirs.RendezvousConnectionError),
            (RendezvousStateError, theirs.RendezvousStateError),
        )
        for ours, kind in kinds:
            if isinstance(error, ours):
                raise kind(str(error)) from error
        raise theirs.RendezvousError(str(error)) from error
