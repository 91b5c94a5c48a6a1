"""The parameters of a rendezvous handler, from a command line or from a program.

The keys are those of `core/settings.py` that have a `key`. Late nodes are admitted at once (0 s)
where nothing else is given. For a `CoordinatorRendezvousHandler`, `host_timeout` is 60 s, at most
`join_timeout`; `heartbeat_timeout` and `read_timeout` are checked and ignored.
"""

from __future__ import annotations

import logging
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import asdict

from rallypoint.config import (
    DEFAULT_COORDINATOR_PORT,
    AccessConfig,
    Endpoint,
    RendezvousConfig,
    environ_token,
)
from rallypoint.core.liveness import RESET_SHARE
from rallypoint.core.settings import SharedSettings, parameters
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings, settings_from
from rallypoint.elastic.rendezvous.utils import parse_rendezvous_endpoint
from rallypoint.errors import ParameterError
from rallypoint.torch_versions import without_effect
from rallypoint.wire.address import ANY_PORT

_log = logging.getLogger(__name__)
BEATS = 3
"""The least number of heartbeats in a lease; a longer interval is shortened to that."""
HOST_TIMEOUT_S = 60.0
_KEYS = parameters()


class CoordinatorSettings(Struct, frozen=True):
    """The settings of a handler with a coordinator."""

    rendezvous: RendezvousSettings
    config: RendezvousConfig
    access: AccessConfig

    @property
    def shared(self) -> SharedSettings:
        """The settings that all nodes of the job must agree on (behaviour R7)."""
        return self.config.shared()


def read_parameters(params: RendezvousParameters) -> CoordinatorSettings:
    """Return the settings that `params` describe; log a warning for keys that have no effect.

    Raises ParameterError, which names the key, and UsageError for values that no job can have.
    """
    for key in params.config:
        if key == "store_type":
            _check_store_type(params.config[key])
        elif key not in _KEYS:
            if (known := without_effect("key", key)) is not None:
                _log.warning("the rendezvous parameter %s has no effect: %s", key, known.why)
                continue
            near = get_close_matches(key, _KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
            raise ParameterError(f"unknown rendezvous parameter {key}: {hint}")
    settings = settings_from(params)
    read = params.read(_KEYS.values())
    given = {row.field: read[row.name] for row in _KEYS.values() if row.name in read}
    shared = settings.shared()
    lease_s = given.get("lease_s", shared.lease_s)
    chosen = {
        **asdict(shared),
        "reset_grace_s": lease_s * RESET_SHARE,
        "heartbeat_s": min(shared.heartbeat_s, lease_s / BEATS),
        "local_addr": params.local_addr,
        **{name: given[name] for name in given if name in RendezvousConfig.__struct_fields__},
        "endpoint": coordinator_endpoint(params),
        "host_timeout_s": min(given.get("host_timeout_s", HOST_TIMEOUT_S), shared.join_timeout_s),
    }
    access = {name: given[name] for name in given if name in AccessConfig.__struct_fields__}
    access.setdefault("token_text", environ_token())
    return CoordinatorSettings(settings, RendezvousConfig(**chosen), AccessConfig(**access))


def _check_store_type(given: object) -> None:
    """Check `store_type`, which a coordinator does not need.

    Raises ParameterError unless it is `tcp`.
    """
    if str(given).strip().lower() != "tcp":
        raise ParameterError(
            f"the rendezvous parameter store_type={given!r}: leave it out to use TCP, or give the "
            "backend 'file'"
        )


def coordinator_endpoint(params: RendezvousParameters) -> Endpoint:
    """Return the endpoint of the coordinator, with the default port if none is given.

    Raises ParameterError, also for port 0 where there may be several nodes.
    """
    where = Endpoint(*parse_rendezvous_endpoint(params.endpoint, DEFAULT_COORDINATOR_PORT))
    if not where.port and params.max_nodes > 1:
        raise ParameterError(f"the endpoint {params.endpoint!r}: {ANY_PORT}")
    return where
