"""What a `CoordinatorRendezvousHandler` is made from, read and checked.

The keys are those of `core/settings.py` that have a `key`. Late nodes are admitted at once (0 s)
where nothing else is given, and `host_timeout` is 60 s, at most `join_timeout`. `heartbeat_timeout`
and `read_timeout` are checked and ignored.
"""

from __future__ import annotations

from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import asdict

from rallypoint.config import (
    DEFAULT_COORDINATOR_PORT,
    AccessConfig,
    Endpoint,
    RendezvousConfig,
)
from rallypoint.core.liveness import RESET_SHARE
from rallypoint.core.settings import SharedSettings, parameters
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.parameters import (
    RendezvousParameters,
    RendezvousSettings,
    parse_rendezvous_endpoint,
    settings_from,
)
from rallypoint.wire.address import ANY_PORT

BEATS = 3
"""A lease has room for so many heartbeats."""
HOST_TIMEOUT_S = 60.0
_KEYS = parameters()


class CoordinatorSettings(Struct, frozen=True):
    """All that a handler needs to know."""

    rendezvous: RendezvousSettings
    config: RendezvousConfig
    access: AccessConfig

    @property
    def shared(self) -> SharedSettings:
        """What all nodes of the job must agree on (behaviour R7)."""
        return self.config.shared()


def read_parameters(params: RendezvousParameters) -> CoordinatorSettings:
    """Raises ParameterError, which names the key and its value, and UsageError."""
    for key in params.config:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
            raise ParameterError(f"unknown rendezvous parameter {key}: {hint}")
    settings = settings_from(params)
    rows = (row for row in _KEYS.values() if params.get(row.name) is not None)
    given = {row.field: params.read(row) for row in rows}
    shared = settings.shared()
    lease_s = given.get("lease_s", shared.lease_s)
    chosen = {
        **asdict(shared),
        "reset_grace_s": lease_s * RESET_SHARE,
        "heartbeat_s": min(shared.heartbeat_s, lease_s / BEATS),
        "local_addr": params.local_addr,
        **{name: given[name] for name in given if name in RendezvousConfig.__struct_fields__},
        "endpoint": _endpoint(params),
        "host_timeout_s": min(given.get("host_timeout_s", HOST_TIMEOUT_S), shared.join_timeout_s),
    }
    access = {name: given[name] for name in given if name in AccessConfig.__struct_fields__}
    return CoordinatorSettings(settings, RendezvousConfig(**chosen), AccessConfig(**access))


def _endpoint(params: RendezvousParameters) -> Endpoint:
    where = parse_rendezvous_endpoint(params.endpoint, DEFAULT_COORDINATOR_PORT)
    if not where.port and params.max_nodes > 1:
        raise ParameterError(f"the endpoint {params.endpoint!r}: {ANY_PORT}")
    return where
