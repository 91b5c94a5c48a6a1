"""A rendezvous with ranks that a person gave out: `--node-rank K` of a fixed number of nodes.

The node of rank 0 hosts the coordinator at the endpoint. Unlike torchrun's static rendezvous, a
lost node and a restart on one node are everybody's: all meet again, under the same ranks, with a
fresh store.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.core.ranks import id_of_rank
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.coordinator_handler import CoordinatorRendezvousHandler
from rallypoint.rendezvous.coordinator_parameters import read_parameters
from rallypoint.rendezvous.endpoint_text import parse_rendezvous_endpoint
from rallypoint.rendezvous.parameters import RendezvousParameters

DEFAULT_PORT = 29500


class StaticRendezvousHandler(CoordinatorRendezvousHandler):
    """A coordinator's handler whose rank is always the given one."""


def create_handler_from(params: RendezvousParameters) -> StaticRendezvousHandler:
    """The handler of `--rdzv-backend static`, which needs `rank`; else as the coordinator's.

    Raises ParameterError.
    """
    rank = params.get_as_int("rank")
    if rank is None:
        raise ParameterError("the static rendezvous needs rank=K, from 0: every node its own")
    if params.min_nodes != params.max_nodes:
        raise ParameterError(
            f"min_nodes={params.min_nodes}, max_nodes={params.max_nodes}: the static rendezvous "
            "needs a fixed number of nodes"
        )
    if not 0 <= rank < params.max_nodes:
        raise ParameterError(f"rank={rank}: needs 0..{params.max_nodes - 1}")
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    config = {"is_host": rank == 0, "node_id": id_of_rank(rank)} | params.config
    del config["rank"]
    settings = read_parameters(
        RendezvousParameters(
            params.backend,
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            **config,
        )
    )
    return StaticRendezvousHandler(
        replace(
            settings,
            shared=replace(settings.shared, static=True),
            config=replace(settings.config, node_rank=rank),
        ),
        params.backend,
    )
