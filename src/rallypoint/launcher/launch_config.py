"""What a program asks a job to be, in torch's vocabulary, and what that is in ours."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from rallypoint.agent.embedded.entrypoint import Entrypoint, worker_config
from rallypoint.config import (
    AgentConfig,
    ObserveConfig,
    OutputConfig,
    OutputMode,
    RestartConfig,
    StopConfig,
)
from rallypoint.core.limits import MAX_WORKERS_PER_NODE
from rallypoint.errors import ParameterError
from rallypoint.launcher.where_to_meet import where_to_meet

NO_TIMEOUT = -1


@dataclass
class LaunchConfig:
    """One node's part of a job. Field names are torch's; what differs is in docs/agent.md.

    `min_nodes` to `max_nodes` nodes take part, each with `nproc_per_node` workers. Several nodes
    need an `rdzv_endpoint`, `HOST:PORT`; one node alone needs nothing. `rdzv_configs` has what
    `--rdzv-conf` takes, and `token`, `token_file`, `insecure`. A `start_method` of None is
    forkserver for a function; `preload` names modules to import before workers are forked.
    `logs_specs` decides on files of the workers; without one their output is inherited.
    `shutdown_timeout` is the grace in seconds after SIGTERM, wherever workers are stopped; None: 25
    when a person or a scheduler ends the job, 5 when a round ends. `numa_options` is a NumaOptions,
    ours or torch's; None: workers are not bound. `event_log_handler` is `null`, `console`,
    `jsonl:FILE` or a package's. `metrics_cfg` and `monitor_interval` are accepted: see
    `observe.configure` for metrics, and exits are noticed at once. `drain_deadline` and
    `hang_timeout` are seconds, as `--drain-deadline` and `--hang-timeout`; None: the shutdown
    timeout, and never.

    A value that can't be used is refused when the job is launched: ParameterError or UsageError.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "tcp"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = NO_TIMEOUT
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str | None = None
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = ",".join(StopConfig().signals)
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    _: KW_ONLY
    preload: Sequence[str] = ()
    drain_deadline: float | None = None
    hang_timeout: float | None = None


def agent_config(config: LaunchConfig, entrypoint: Entrypoint, args: Sequence[Any]) -> AgentConfig:
    """The settings of this node's agent. Raises ParameterError and UsageError, each one line."""
    count, budget = config.nproc_per_node, config.max_restarts
    if not isinstance(count, int) or not 0 < count <= MAX_WORKERS_PER_NODE:
        raise ParameterError(f"nproc_per_node={count!r}: needs 1..{MAX_WORKERS_PER_NODE} workers")
    if not isinstance(budget, int) or budget < 0:
        raise ParameterError(f"max_restarts={budget!r}: needs 0 or more")
    conf = dict(config.rdzv_configs)
    if config.rdzv_timeout != NO_TIMEOUT:
        conf.setdefault("timeout", config.rdzv_timeout)
    rendezvous, access = where_to_meet(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        nodes=(config.min_nodes, config.max_nodes),
        local_addr=config.local_addr,
        conf=conf,
    )
    return AgentConfig(
        rendezvous=rendezvous,
        workers=worker_config(
            entrypoint,
            args,
            count=config.nproc_per_node,
            role=config.role,
            start_method=config.start_method,
            preload=config.preload,
            virtual_local_rank=config.virtual_local_rank,
            numa_options=config.numa_options,
        ),
        restart=RestartConfig(
            max_restarts=config.max_restarts,
            hang_timeout_s=_seconds("hang_timeout", config.hang_timeout) or 0.0,
        ),
        output=_output(config),
        stop=_stop(config),
        access=access,
        observe=ObserveConfig(event_log_handler=config.event_log_handler),
    )


def _output(config: LaunchConfig) -> OutputConfig:
    return OutputConfig(
        mode=OutputMode.INHERIT,
        prefix_template=config.log_line_prefix_template,
        temp_dir=tempfile.gettempdir(),
        duplicate_stdout_filters=tuple(config.duplicate_stdout_filters or ()),
        duplicate_stderr_filters=tuple(config.duplicate_stderr_filters or ()),
        logs_specs="default" if config.logs_specs is None else config.logs_specs,
    )


def _stop(config: LaunchConfig) -> StopConfig:
    names = tuple(name.strip() for name in config.signals_to_handle.split(",") if name.strip())
    deadline_s = _seconds("drain_deadline", config.drain_deadline)
    grace_s = _seconds("shutdown_timeout", config.shutdown_timeout)
    if grace_s is None:
        return StopConfig(signals=names, drain_deadline_s=deadline_s)
    return StopConfig(
        signals=names,
        shutdown_grace_s=grace_s,
        restart_grace_s=grace_s,
        drain_deadline_s=deadline_s,
    )


def _seconds(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise ParameterError(f"{name}={seconds:g}: needs 0 or more seconds")
    return seconds
