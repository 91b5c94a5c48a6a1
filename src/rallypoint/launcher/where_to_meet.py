"""Where the nodes of a launched job meet: as `rallypoint run` would have it, so that nodes that
were started either way meet each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from rallypoint.agent.embedded.spec_config import random_run_id
from rallypoint.config import (
    DEFAULT_STATIC_PORT,
    AccessConfig,
    Endpoint,
    RendezvousConfig,
)
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.coordinator_parameters import read_parameters
from rallypoint.rendezvous.endpoint_text import parse_rendezvous_endpoint
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.registry import known_backends

_BY_COORDINATOR = ("tcp", "c10d", "static")
_DEFAULTS = {"join_settle": 10.0, "min_growth_interval": 60.0, "host_timeout": 30.0}
"""Those of the command line, where a handler's own differ."""
HEARTBEAT_S, BEATS = 1.0, 5


def where_to_meet(
    *,
    backend: str,
    endpoint: str,
    run_id: str,
    nodes: tuple[int, int],
    local_addr: str | None,
    conf: Mapping[str, Any],
) -> tuple[RendezvousConfig, AccessConfig]:
    """Raises ParameterError and UsageError."""
    least, most = nodes
    if backend not in _BY_COORDINATOR:
        known = {*_BY_COORDINATOR, *known_backends()}
        if backend not in known:
            names = ", ".join(sorted(known))
            raise ParameterError(f"rdzv_backend={backend!r}: known are {names}")
        return _by_handler(backend, endpoint, run_id, nodes, local_addr, conf), AccessConfig()
    alone = most == 1 and not endpoint
    if not alone and not endpoint:
        raise ParameterError(
            f"max_nodes={most} without an rdzv_endpoint: the nodes need a place to meet; give "
            "each the same rdzv_endpoint='HOST:29400', HOST being one of them"
        )
    given = dict(conf)
    if "timeout" in given:
        given.setdefault("join_timeout", given.pop("timeout"))
    rank = given.pop("rank", None)
    params = RendezvousParameters(
        backend,
        "localhost:0" if alone else endpoint,
        run_id or (random_run_id() if alone else UNNAMED_RUN_ID),
        least,
        most,
        local_addr,
        **_DEFAULTS | given,
    )
    settings = read_parameters(params)
    shared, config = settings.shared, settings.config
    config = replace(
        config,
        heartbeat_s=min(HEARTBEAT_S, shared.lease_s / BEATS),
        join_settle_s=shared.join_settle_s,
        min_growth_interval_s=shared.min_growth_interval_s,
        max_node_losses_per_hour=shared.max_node_losses_per_hour,
        stop_patience_s=shared.stop_patience_s,
    )
    if alone:
        return replace(config, is_host=True), settings.access
    if backend == "static":
        return _static(config, endpoint, rank), settings.access
    if rank is not None and config.is_host is None:
        config = replace(config, is_host=_rank(rank) == 0)
    return config, settings.access


def _static(config: RendezvousConfig, endpoint: str, rank: Any) -> RendezvousConfig:
    if rank is None:
        raise ParameterError(
            "rdzv_backend='static': needs rdzv_configs={'rank': K}, from 0, every node its own"
        )
    return replace(
        config,
        static=True,
        node_rank=_rank(rank),
        is_host=_rank(rank) == 0,
        endpoint=Endpoint(*parse_rendezvous_endpoint(endpoint, DEFAULT_STATIC_PORT)),
    )


def _by_handler(
    backend: str,
    endpoint: str,
    run_id: str,
    nodes: tuple[int, int],
    local_addr: str | None,
    conf: Mapping[str, Any],
) -> RendezvousConfig:
    if backend == "file" and not endpoint:
        raise ParameterError(
            "rdzv_backend='file': needs an rdzv_endpoint, a file or a directory that all share"
        )
    return RendezvousConfig(
        run_id=run_id or UNNAMED_RUN_ID,
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        local_addr=local_addr,
        handler=backend,
        handler_endpoint=endpoint,
        handler_conf=cast(tuple[tuple[str, str], ...], tuple(conf.items())),
    )


def _rank(given: Any) -> int:
    try:
        return int(given)
    except (TypeError, ValueError):
        raise ParameterError(f"rdzv_configs={{'rank': {given!r}}}: needs a whole number") from None
