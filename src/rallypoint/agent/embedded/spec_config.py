"""From a `WorkerSpec` and a handler to an agent's settings."""

from __future__ import annotations

import itertools
import os
import socket
from typing import Any

from rallypoint.agent.embedded.worker_spec import WorkerSpec
from rallypoint.agent.handler.client import HandlerClient
from rallypoint.config import (
    AgentConfig,
    Endpoint,
    ObserveConfig,
    RendezvousConfig,
    StopConfig,
    WorkerConfig,
)
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.errors import ParameterError

SEVERAL = 2
"""Nodes at most, where a handler does not say: only whether there may be others matters."""

_agents = itertools.count()


def agent_config(
    spec: WorkerSpec, handler: HandlerClient | None, shutdown_timeout_s: float
) -> AgentConfig:
    """What an agent of this spec does. Raises ParameterError and UsageError."""
    if not 0 <= shutdown_timeout_s < float("inf"):
        raise ParameterError(f"shutdown_timeout={shutdown_timeout_s}: needs 0 or more seconds")
    return AgentConfig(
        rendezvous=_alone(spec) if handler is None else _by_handler(spec, handler),
        workers=WorkerConfig(argv=(), count=spec.local_world_size, role=spec.role),
        stop=StopConfig(shutdown_grace_s=shutdown_timeout_s, restart_grace_s=shutdown_timeout_s),
        observe=ObserveConfig(event_log_handler=spec.event_log_handler),
    )


def handler_client(handler: Any) -> HandlerClient | None:
    """The calls of a live handler, if there is one."""
    if handler is None:
        return None
    if not hasattr(handler, "next_rendezvous"):
        raise ParameterError(f"rdzv_handler={handler!r:.80}: needs a rendezvous handler")
    ask = getattr(handler, "get_backend", None)
    return HandlerClient(handler, str(ask()) if ask is not None else type(handler).__name__)


def _alone(spec: WorkerSpec) -> RendezvousConfig:
    return RendezvousConfig(
        run_id=random_run_id(),
        max_restarts=spec.max_restarts,
        endpoint=Endpoint("localhost", 0),
        is_host=True,
        local_addr=spec.master_addr or spec.local_addr,
        store_port=spec.master_port or 0,
    )


def _by_handler(spec: WorkerSpec, handler: HandlerClient) -> RendezvousConfig:
    settings = handler.settings
    least, most = getattr(settings, "min_nodes", 1), getattr(settings, "max_nodes", SEVERAL)
    timeout = getattr(getattr(settings, "timeout", None), "join", None)
    host = socket.gethostname().partition(".")[0] or "node"
    return RendezvousConfig(
        run_id=handler.run_id or UNNAMED_RUN_ID,
        max_restarts=spec.max_restarts,
        min_nodes=least,
        max_nodes=most,
        join_timeout_s=timeout.total_seconds() if timeout is not None else 600.0,
        # A program may run several agents: the process does not tell them apart.
        node_id=f"{host}.{os.getpid()}.{next(_agents)}",
        local_addr=spec.master_addr or spec.local_addr,
        store_port=spec.master_port or 0,
        handler=handler.name,
    )


def random_run_id() -> str:
    """For a job that nobody else is to find."""
    return os.urandom(6).hex()
