"""What a rendezvous handler is made from: the parameters of a command line or of a program.

The keys are those of `core/settings.py` that have a `key`. Late nodes are admitted at once (0 s)
where nothing else is given. For a `CoordinatorRendezvousHandler`, `host_timeout` is 60 s, at most
`join_timeout`; `heartbeat_timeout` and `read_timeout` are checked and ignored.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

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
from rallypoint.core.settings import MAX_NODES, Setting, SharedSettings, out_of_range, parameters
from rallypoint.errors import ParameterError
from rallypoint.torch_versions import without_effect
from rallypoint.wire.address import ANY_PORT, split_endpoint

_log = logging.getLogger(__name__)

_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")
DEFAULTS: dict[str, Any] = {"join_settle_s": 0.0, "min_growth_interval_s": 0.0}
"""Late nodes are admitted at once, unless a program gives another time."""
BEATS = 3
"""A lease has room for so many heartbeats."""
HOST_TIMEOUT_S = 60.0
_KEYS = parameters()
_FURTHER = frozenset(SharedSettings.__struct_fields__) - {
    "join_timeout_s",
    "last_call_s",
    "lease_s",
}
"""What all nodes must agree on, besides what `RendezvousSettings` has fields for."""


class RendezvousParameters:
    """How to make a handler. `config` has what only some backends know.

    Raises ParameterError (a ValueError) for an empty backend name and for impossible node counts.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,
    ) -> None:
        if not backend:
            raise ParameterError("the rendezvous backend has no name: give one, for example 'tcp'")
        check_nodes(min_nodes, max_nodes)
        self.backend, self.endpoint, self.run_id = backend, endpoint, run_id
        self.min_nodes, self.max_nodes = min_nodes, max_nodes
        self.local_addr, self.config = local_addr, config

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a configuration key, as it was given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """A truth: a bool, 0 or 1, or one of the usual words. Raises ParameterError."""
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, int | str) else ""
        if word not in (*_TRUE, *_FALSE):
            raise ParameterError(f"the rendezvous parameter {key}={value!r}: needs true or false")
        return word in _TRUE

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """A whole number. Raises ParameterError."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            text = f"the rendezvous parameter {key}={value!r}: needs a whole number"
            raise ParameterError(text) from None

    def read(self, row: Setting, default: Any = None) -> Any:
        """The value of a setting, of the type and in the range that the table has for it.

        Raises ParameterError.
        """
        if row.kind == "switch":
            return self.get_as_bool(row.name, default)
        value = self.get(row.name, default)
        if value is None:
            return None
        if row.kind not in ("seconds", "integer"):
            return str(value)
        return number_of(row, value, f"the rendezvous parameter {row.name}={value!r}")


class RendezvousTimeout:
    """How long things may take. Every one must be positive; raises ParameterError if not."""

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self._join = _positive("join", join, 600)
        self._last_call = _positive("last_call", last_call, 30)
        self._close = _positive("close", close, 30)
        self._heartbeat = _positive("heartbeat", heartbeat, 5)

    @property
    def join(self) -> timedelta:
        """For the minimum of nodes to come together."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """For more nodes to come, once the minimum is there; the first round only."""
        return self._last_call

    @property
    def close(self) -> timedelta:
        """For nodes to come back after a round has ended; a node that does not is lost."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """Accepted for compatibility: a heartbeat takes as long as the backend's call."""
        return self._heartbeat


class RendezvousSettings(Struct, frozen=True):
    """What a handler was made with."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    given: tuple[tuple[str, Any], ...] = ()
    """Further settings that all nodes must agree on, by the name of the field."""

    @property
    def lease_s(self) -> float:
        """A node that has been silent for so long is lost."""
        return self.keep_alive_interval.total_seconds() * self.keep_alive_max_attempt

    def shared(self) -> SharedSettings:
        """What all nodes must agree on."""
        return SharedSettings(
            run_id=self.run_id,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            lease_s=self.lease_s,
            heartbeat_s=self.keep_alive_interval.total_seconds(),
            join_timeout_s=self.timeout.join.total_seconds(),
            last_call_s=self.timeout.last_call.total_seconds(),
            **DEFAULTS | dict(self.given),
        )


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """The host and the port of `HOST`, `HOST:PORT` or `[IPV6]:PORT`; an empty text is localhost.
    Raises ParameterError."""
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    try:
        return split_endpoint(text, default_port)
    except ValueError as error:
        raise ParameterError(f"the endpoint {text!r}: {error}") from None


def check_nodes(min_nodes: int, max_nodes: int) -> None:
    """Raises ParameterError unless 1 <= min_nodes <= max_nodes."""
    if min_nodes < 1:
        raise ParameterError(f"min_nodes={min_nodes}: needs 1 or more")
    if max_nodes < min_nodes:
        raise ParameterError(f"max_nodes={max_nodes} is less than min_nodes={min_nodes}")
    if max_nodes > MAX_NODES:
        raise ParameterError(f"max_nodes={max_nodes}: needs {MAX_NODES} or less")


def check_timeout(timeout: float | None) -> None:
    """Raises ParameterError for what is no number of seconds."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout == timeout):
        raise ParameterError(f"timeout={timeout!r}: needs seconds, or None to wait for ever")


def settings_from(
    params: RendezvousParameters, *, without_coordinator: bool = False
) -> RendezvousSettings:
    """The settings that `params` describe. Raises ParameterError."""
    rows = parameters(without_coordinator=without_coordinator)
    given = {name: params.read(row) for name, row in rows.items() if params.get(name) is not None}

    def seconds(key: str) -> timedelta | None:
        return timedelta(seconds=given[key]) if key in given else None

    fields = ((rows[name].field, value) for name, value in given.items())
    return RendezvousSettings(
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        timeout=RendezvousTimeout(
            join=seconds("join_timeout") or seconds("timeout"),
            last_call=seconds("last_call_timeout"),
            close=seconds("close_timeout"),
            heartbeat=seconds("heartbeat_timeout"),
        ),
        keep_alive_interval=seconds("keep_alive_interval") or timedelta(seconds=5),
        keep_alive_max_attempt=given.get("keep_alive_max_attempt", 3),
        given=tuple(each for each in fields if each[0] in _FURTHER),
    )


def number_of(row: Setting, value: Any, given: str) -> Any:
    """A number that a program gave, of the type and in the range of the setting. `given`: what it
    wrote. Raises ParameterError."""
    kind, unit = (float, " seconds") if row.kind == "seconds" else (int, "")
    try:
        number = kind(value)
        fits = not out_of_range(row, number)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ParameterError(f"{given}: needs {row.least:g} to {row.most:.0f}{unit}")
    return number


def _positive(name: str, value: timedelta | None, default_s: float) -> timedelta:
    if value is None:
        return timedelta(seconds=default_s)
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise ParameterError(f"the rendezvous timeout {name}={value!r}: needs a timedelta above 0")
    return value


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
        "endpoint": coordinator_endpoint(params),
        "host_timeout_s": min(given.get("host_timeout_s", HOST_TIMEOUT_S), shared.join_timeout_s),
    }
    access = {name: given[name] for name in given if name in AccessConfig.__struct_fields__}
    access.setdefault("token_text", environ_token())
    return CoordinatorSettings(settings, RendezvousConfig(**chosen), AccessConfig(**access))


def _check_store_type(given: object) -> None:
    """Nodes that a coordinator brings together need no store for it."""
    if str(given).strip().lower() != "tcp":
        raise ParameterError(
            f"the rendezvous parameter store_type={given!r}: leave it out to use TCP, or give the "
            "backend 'file'"
        )


def coordinator_endpoint(params: RendezvousParameters) -> Endpoint:
    """Where the nodes meet. Raises ParameterError, also for port 0 where there are several."""
    where = Endpoint(*parse_rendezvous_endpoint(params.endpoint, DEFAULT_COORDINATOR_PORT))
    if not where.port and params.max_nodes > 1:
        raise ParameterError(f"the endpoint {params.endpoint!r}: {ANY_PORT}")
    return where
