"""What a `CoordinatorRendezvousHandler` is made from, read and checked.

| key | |
| --- | --- |
| join_timeout | how long a forming round may lack nodes (600 s) |
| last_call_timeout | how long the first round waits for more than the minimum (30 s) |
| close_timeout | how long a node may take to stop its workers and come back (30 s) |
| keep_alive_interval x keep_alive_max_attempt | the lease (5 s x 3), unless `lease` is given |
| lease | silence after which a node is lost |
| reconnect_grace | time for a node to reconnect when its side closed the connection (1 s) |
| reset_grace | time for a node to reconnect when the connection was reset (a third of the lease) |
| join_settle, min_growth_interval | when late nodes are admitted: at once (0 s) |
| max_node_losses | so many rounds in an hour may lose nodes; one more ends the job (10) |
| stop_patience | wait so much longer when many nodes at once are slow to stop (60 s) |
| is_host | true: this node hosts the coordinator; false: it never does; else whoever can |
| host_timeout | how long nobody hosting is tolerated (60 s, at most join_timeout) |
| node_id, topology | how nodes are ranked: by (topology, node id) |
| token, token_file, insecure | who may take part |
| heartbeat_timeout, read_timeout | checked, then unused: nothing waits for them |
"""

from __future__ import annotations

from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.config import (
    DEFAULT_COORDINATOR_PORT,
    AccessConfig,
    Endpoint,
    RendezvousConfig,
)
from rallypoint.core.liveness import RESET_SHARE
from rallypoint.core.model import SharedSettings
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.endpoint_text import parse_rendezvous_endpoint
from rallypoint.rendezvous.parameters import (
    RendezvousParameters,
    RendezvousSettings,
    not_negative_seconds,
    settings_from,
)

BEATS = 3
"""A lease has room for so many heartbeats."""
HOST_TIMEOUT_S = 60.0
_KEYS = (
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "read_timeout",
    "host_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "lease",
    "reconnect_grace",
    "reset_grace",
    "join_settle",
    "min_growth_interval",
    "max_node_losses",
    "stop_patience",
    "is_host",
    "node_id",
    "topology",
    "token",
    "token_file",
    "insecure",
)


class CoordinatorSettings(Struct, frozen=True):
    """All that a handler needs to know."""

    rendezvous: RendezvousSettings
    shared: SharedSettings
    """What all nodes of the job must agree on (behaviour R7)."""
    config: RendezvousConfig
    access: AccessConfig


def read_parameters(params: RendezvousParameters) -> CoordinatorSettings:
    """Raises ParameterError, which names the key and its value, and UsageError."""
    for key in params.config:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
            raise ParameterError(f"unknown rendezvous parameter {key}: {hint}")
    for key in ("read_timeout", "host_timeout"):
        params.get_as_seconds(key, HOST_TIMEOUT_S)
    losses = params.get_as_int("max_node_losses", 10)
    if losses is None or losses < 0:
        raise ParameterError(f"the rendezvous parameter max_node_losses={losses}: needs 0 or more")
    settings = settings_from(params)
    lease_s = params.get_as_seconds("lease", settings.lease_s)
    shared = replace(
        settings.shared(),
        lease_s=lease_s,
        heartbeat_s=min(settings.keep_alive_interval.total_seconds(), lease_s / BEATS),
        reconnect_grace_s=not_negative_seconds(params, "reconnect_grace", 1.0),
        reset_grace_s=not_negative_seconds(params, "reset_grace", lease_s * RESET_SHARE),
        max_node_losses_per_hour=losses,
    )
    return CoordinatorSettings(settings, shared, _config(params, shared), _access(params))


def _config(params: RendezvousParameters, shared: SharedSettings) -> RendezvousConfig:
    node_id = params.get("node_id")
    return RendezvousConfig(
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        lease_s=shared.lease_s,
        heartbeat_s=shared.heartbeat_s,
        reconnect_grace_s=shared.reconnect_grace_s,
        reset_grace_s=shared.reset_grace_s,
        join_timeout_s=shared.join_timeout_s,
        last_call_s=shared.last_call_s,
        endpoint=Endpoint(*parse_rendezvous_endpoint(params.endpoint, DEFAULT_COORDINATOR_PORT)),
        is_host=params.get_as_bool("is_host"),
        host_timeout_s=min(
            params.get_as_seconds("host_timeout", HOST_TIMEOUT_S), shared.join_timeout_s
        ),
        node_id=None if node_id is None else str(node_id),
        topology=str(params.get("topology", "")),
        local_addr=params.local_addr,
    )


def _access(params: RendezvousParameters) -> AccessConfig:
    return AccessConfig(
        token_file=params.get("token_file"),
        token_text=params.get("token"),
        insecure=bool(params.get_as_bool("insecure", False)),
    )
