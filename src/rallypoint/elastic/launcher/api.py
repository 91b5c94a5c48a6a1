"""What a program asks a job to be, in torch's vocabulary, and what that is in ours."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.embedding import Embedding, random_run_id, run_embedded, start_in_thread
from rallypoint.agent.environ import (
    SHUTDOWN_TIMEOUT_VARIABLE,
    kept_jobs,
    observe_config,
    shutdown_timeout_asked_for,
)
from rallypoint.config import (
    ANY_PORTS,
    DEFAULT_STATIC_PORT,
    AccessConfig,
    AgentConfig,
    Endpoint,
    HandlerConfig,
    ObserveConfig,
    OutputConfig,
    OutputMode,
    RegisterConfig,
    RendezvousConfig,
    StopConfig,
    WorkerConfig,
)
from rallypoint.core.limits import MAX_PORT
from rallypoint.core.settings import BY_ENDPOINT, FLAGS, MAX_WORKERS_PER_NODE, UNNAMED_RUN_ID
from rallypoint.elastic.agent.embedded.entrypoint import (
    Entrypoint,
    entrypoint_name,
    module_names,
    numa_options,
    worker_config,
)
from rallypoint.elastic.agent.embedded.run import JobLog, run_processes
from rallypoint.elastic.agent.embedded.worker_spec import run_result
from rallypoint.elastic.agent.server.health_check_server import HealthCheckServer
from rallypoint.elastic.rendezvous.api import (
    RENAMED,
    RENAMED_TO,
    RendezvousParameters,
    known_backends,
    number_of,
)
from rallypoint.elastic.rendezvous.led.parameters import read_parameters
from rallypoint.elastic.rendezvous.utils import parse_rendezvous_endpoint
from rallypoint.errors import (
    ChildFailedError,
    ExitClass,
    InfrastructureError,
    InvariantError,
    ParameterError,
    RallypointError,
    UsageError,
)
from rallypoint.files import local_path
from rallypoint.observe.parameter_names import OF_A_LAUNCH, naming_parameters
from rallypoint.register.engines import Row, Use, chosen, find, known_engines, make

_log = logging.getLogger("rallypoint")
NO_TIMEOUT = -1
_OF_A_FIXED_HOST = ("rank", "is_host", "host_timeout")
_DEFAULTS = {"join_settle": 10.0, "min_growth_interval": 60.0, "host_timeout": 30.0}
"""Those of the command line, where a handler's own differ."""
HEARTBEAT_S, BEATS = 1.0, 5
"""A heartbeat each second; at least so many in a lease."""


class Usual(float):
    """A time that the program has not chosen."""


@dataclass
class LaunchConfig:
    """One node's part of a job. Field names are torch's; what differs is in docs/agent.md.

    `min_nodes` to `max_nodes` nodes take part, each with `nproc_per_node` workers. Several nodes
    need an `rdzv_endpoint`, `HOST:PORT`; one node alone needs nothing. `rdzv_configs` has what
    `--rdzv-conf` takes, and `token`, `token_file`, `insecure`. A `start_method` of None is
    forkserver for a function; `preload` names modules to import before workers are forked.
    `logs_specs` decides on files of the workers; without one they have none.
    `shutdown_timeout` is the grace in seconds after SIGTERM, wherever workers are stopped; None:
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 25, when a person or a scheduler ends the job, and 5 when a
    round ends. `numa_options` is a NumaOptions, ours or torch's; None: workers are not bound.
    `event_log_handler` is `null`, `console`, `jsonl:FILE` or a package's. `metrics_cfg` and
    `monitor_interval` are accepted: see `metrics.configure`, and exits are noticed at
    once. `drain_deadline` and `hang_timeout` are seconds, as `--drain-deadline` and
    `--hang-timeout`; None: the shutdown timeout, and never. `progress_pattern`, `max_no_progress`
    and `history` are as `--progress-pattern`, `--max-no-progress` and `--history`; the end of a job
    on one node is not kept. With an
    `rdzv_backend` of `file`, the endpoint is a directory that all nodes share, and any of them may
    host the job, on a port of `port_range`: the first and the last; with another engine of records
    the endpoint is as for the command.

    A value that can't be used is refused when the job is launched, and the variable's at once:
    ParameterError or UsageError.
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
    port_range: tuple[int, int] | None = None
    progress_pattern: str | None = None
    max_no_progress: int | None = None
    history: str | None = None

    def __post_init__(self) -> None:
        if self.shutdown_timeout is None:
            text, row = shutdown_timeout_asked_for(), FLAGS["--shutdown-timeout"]
            given = f"{SHUTDOWN_TIMEOUT_VARIABLE}={text!r}"
            chosen_s = number_of(row, text, given) if text else StopConfig().shutdown_grace_s
            self.shutdown_timeout = Usual(chosen_s)


@naming_parameters(OF_A_LAUNCH)
def agent_config(config: LaunchConfig, entrypoint: Entrypoint, args: Sequence[Any]) -> AgentConfig:
    """The settings of this node's agent. Raises ParameterError and UsageError, each one line."""
    count, budget = config.nproc_per_node, config.max_restarts
    if not isinstance(count, int) or not 0 < count <= MAX_WORKERS_PER_NODE:
        raise ParameterError(f"nproc_per_node={count!r}: needs 1..{MAX_WORKERS_PER_NODE} workers")
    if not isinstance(budget, int) or budget < 0:
        raise ParameterError(f"max_restarts={budget!r}: needs 0 or more")
    rendezvous, access = _rendezvous(config)
    workers = WorkerConfig(
        count=count,
        role=config.role,
        preload=module_names(config.preload),
        virtual_local_rank=config.virtual_local_rank,
        numa=numa_options(config.numa_options),
        unbuffered=config.progress_pattern is not None,
    )
    return AgentConfig(
        rendezvous=replace(rendezvous, **_given(config, RendezvousConfig)),
        workers=worker_config(entrypoint, args, workers, config.start_method),
        output=_output(config),
        stop=_stop(config),
        access=access,
        observe=_observe(config),
    )


def _output(config: LaunchConfig) -> OutputConfig:
    return OutputConfig(
        mode=OutputMode.INHERIT,
        prefix_template=config.log_line_prefix_template,
        temp_dir=tempfile.gettempdir(),
        duplicate_stdout_filters=tuple(config.duplicate_stdout_filters or ()),
        duplicate_stderr_filters=tuple(config.duplicate_stderr_filters or ()),
        logs_specs="default" if config.logs_specs is None else config.logs_specs,
        progress_pattern=_pattern(config.progress_pattern),
    )


def _observe(config: LaunchConfig) -> ObserveConfig:
    path = config.history
    if path is not None and not (isinstance(path, str | os.PathLike) and os.fspath(path)):
        raise ParameterError(f"history={path!r}: needs a file, or a directory with a slash")
    observe = observe_config(config.event_log_handler)
    if path == "none":
        return observe
    # A launch on one node tells its caller all, and a program may launch hundreds.
    keep_in = kept_jobs() if config.max_nodes > 1 else ""
    return replace(observe, history=None if path is None else os.fspath(path), keep_in=keep_in)


def _pattern(text: str | None) -> str:
    """Raises ParameterError."""
    if text is None:
        return ""
    from rallypoint.process.relay.pattern import ProgressPattern

    try:
        ProgressPattern(text)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"progress_pattern={text!r}: {error}") from None
    return text


def _stop(config: LaunchConfig) -> StopConfig:
    names = tuple(name.strip() for name in config.signals_to_handle.split(",") if name.strip())
    given = _given(config, StopConfig)
    if not isinstance(config.shutdown_timeout, Usual | None):
        given["restart_grace_s"] = given["shutdown_grace_s"]
    return StopConfig(signals=names, **given)


def _given(config: LaunchConfig, kind: type[Struct]) -> dict[str, Any]:
    """The numbers of the table of settings that are fields of both. Raises ParameterError."""
    found = {}
    for row in FLAGS.values():
        value = getattr(config, row.name, None)
        is_number = row.kind in ("seconds", "integer") and row.field in kind.__struct_fields__
        if is_number and value is not None:
            found[row.field] = number_of(row, value, f"{row.name}={value!r}")
    return found


def _rendezvous(config: LaunchConfig) -> tuple[RendezvousConfig, AccessConfig]:
    """As `rallypoint run` would have it, so that nodes that were started either way find each
    other."""
    backend, endpoint, most = config.rdzv_backend, config.rdzv_endpoint, config.max_nodes
    conf = dict(config.rdzv_configs)
    if config.rdzv_timeout != NO_TIMEOUT:
        conf.setdefault("timeout", config.rdzv_timeout)
    if backend not in BY_ENDPOINT:
        row = find(backend)
        if row is None:
            return _by_handler(config, conf), AccessConfig()
        return _by_register(config, row, conf)
    alone = most == 1 and not endpoint
    if not alone and not endpoint:
        raise ParameterError(
            f"max_nodes={most} without an rdzv_endpoint: several nodes need an endpoint; give "
            "each the same rdzv_endpoint='HOST:29400', HOST being one of them"
        )
    rank = conf.pop("rank", None)
    params = RendezvousParameters(
        backend,
        "localhost:0" if alone else endpoint,
        config.run_id or (random_run_id() if alone else UNNAMED_RUN_ID),
        config.min_nodes,
        most,
        config.local_addr,
        **_DEFAULTS | conf,
    )
    made = read_parameters(params)
    found = replace(made.config, heartbeat_s=min(HEARTBEAT_S, made.config.lease_s / BEATS))
    if backend == "static" and not alone:
        found = _static(found, endpoint, rank)
    elif alone or not found.endpoint.port:
        found = replace(found, is_host=True)
    elif rank is not None:
        _rank(rank)
        _log.warning("the rendezvous parameter rank has no effect: only fixed ranks need it")
    return found, made.access


def _by_register(
    config: LaunchConfig, row: Row, conf: dict[str, Any]
) -> tuple[RendezvousConfig, AccessConfig]:
    backend = config.rdzv_backend
    if not config.rdzv_endpoint and row.needs:
        raise ParameterError(f"rdzv_backend={backend!r}: needs an rdzv_endpoint, {row.needs}")
    if config.run_id in ("", UNNAMED_RUN_ID):
        raise ParameterError(
            f"run_id={config.run_id!r}: rdzv_backend={backend!r} needs one, the same on all nodes: "
            "many jobs may be kept there"
        )
    register = _register(config, row, conf)
    for name in _OF_A_FIXED_HOST:
        if conf.pop(name, None) is not None:
            _log.warning("the rendezvous parameter %s has no effect: any node may host", name)
    params = RendezvousParameters(
        config.rdzv_backend,
        "localhost",
        config.run_id,
        config.min_nodes,
        config.max_nodes,
        config.local_addr,
        **_DEFAULTS | conf,
    )
    made = read_parameters(params)
    heartbeat_s = min(HEARTBEAT_S, made.config.lease_s / BEATS)
    found = replace(
        made.config,
        heartbeat_s=heartbeat_s,
        register=register,
        endpoint=RendezvousConfig(config.run_id).endpoint,
    )
    return found, made.access


def _register(config: LaunchConfig, row: Row, conf: dict[str, Any]) -> RegisterConfig:
    """Takes the keys of the engine out of `conf`."""
    backend, where = config.rdzv_backend, config.rdzv_endpoint
    if row.is_directory:
        try:
            where = os.path.abspath(local_path(where, "needs a directory"))
        except ValueError as error:
            raise ParameterError(f"rdzv_endpoint={where!r}: {error}") from None
    given = {name: str(conf.pop(name)) for name in list(conf) if name in row.keys}
    ports = _ports(config.port_range)
    register = chosen(backend, where, given, os.path.abspath, ports=ports)
    try:
        make(register, Use())
    except UsageError as error:
        raise ParameterError(f"rdzv_backend={backend!r}: {error}") from None
    return register


def _ports(given: tuple[int, int] | None) -> tuple[int, int]:
    if given is None:
        return ANY_PORTS
    try:
        first, last = map(int, given)
    except (TypeError, ValueError):
        first = last = 0
    if not 0 < first <= last <= MAX_PORT:
        raise ParameterError(f"port_range={given!r}: needs (FIRST, LAST), from 1 to {MAX_PORT}")
    return first, last


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


def _by_handler(config: LaunchConfig, conf: dict[str, Any]) -> RendezvousConfig:
    backend, endpoint = config.rdzv_backend, config.rdzv_endpoint
    known = {*BY_ENDPOINT, *known_engines(), *known_backends()}
    if backend not in known:
        why = RENAMED_TO if backend == RENAMED else f"known are {', '.join(sorted(known))}"
        raise ParameterError(f"rdzv_backend={backend!r}: {why}")
    return RendezvousConfig(
        run_id=config.run_id or UNNAMED_RUN_ID,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        handler=HandlerConfig(
            backend, endpoint, cast(tuple[tuple[str, str], ...], tuple(conf.items()))
        ),
    )


def _rank(given: Any) -> int:
    try:
        return int(given)
    except (TypeError, ValueError):
        raise ParameterError(f"rdzv_configs={{'rank': {given!r}}}: needs a whole number") from None


class elastic_launch:  # noqa: N801  # Its name in torch.
    """`elastic_launch(config, entrypoint)(*args)` runs `entrypoint(*args)`, or the command line
    with these words, as the workers of this node, and returns what they return by global rank;
    None for each worker that is a command.

    Blocks until the job has ended. In the main thread SIGINT cancels the job and SIGTERM has this
    node leave it; several may run at once, in threads. `health_check_server` is stopped in the end.

    Raises ChildFailedError when workers have failed, with the job's first cause on whichever node
    it was; what `rallypoint.elastic.agent.server`'s `run` raises for what is not the workers'
    fault; KeyboardInterrupt and SignalException for signals; ParameterError and UsageError for
    what can't be started.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Entrypoint,
        health_check_server: HealthCheckServer | None = None,
    ) -> None:
        self._config, self._entrypoint = config, entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Entrypoint,
    args: Sequence[Any],
    health_check_server: HealthCheckServer | None = None,
) -> dict[int, Any]:
    """As `elastic_launch(config, entrypoint)(*args)`."""

    def run() -> dict[int, Any]:
        settings, embedding = agent_config(config, entrypoint, args), Embedding()
        name = entrypoint_name(entrypoint, args)
        return run_embedded(embedding, lambda: _run(settings, name, embedding))

    try:
        return _with_short_traceback(run)
    finally:
        if health_check_server is not None:
            health_check_server.stop()


async def launch(config: LaunchConfig, entrypoint: Entrypoint, *args: Any) -> dict[int, Any]:
    """The same for a running loop, which is not blocked. Signals are left to the program;
    cancelling this cancels the job, and returns when its workers are gone."""
    settings = agent_config(config, entrypoint, args)
    embedding, name = Embedding(), entrypoint_name(entrypoint, args)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(ended.set)

    wait, take = start_in_thread(lambda: _run(settings, name, embedding), wake)
    cancelled = False
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError:
            cancelled = True
            embedding.signal(signal.SIGINT)
    wait()
    if cancelled:
        raise asyncio.CancelledError
    return _with_short_traceback(take)


def _with_short_traceback(work: Callable[[], dict[int, Any]]) -> dict[int, Any]:
    """Strip our own frames from the traceback, and the cause from a usage error, which is one line
    that says it all."""
    try:
        with naming_parameters(OF_A_LAUNCH):
            return work()
    except InvariantError:
        raise
    except KeyboardInterrupt as error:
        error.__traceback__ = None
        raise
    except RallypointError as error:
        error.__traceback__ = None
        if error.exit_class is ExitClass.USAGE:
            raise error from None
        raise


def _run(config: AgentConfig, name: str, embedding: Embedding) -> dict[int, Any]:
    log = JobLog(OF_A_LAUNCH)
    try:
        told = run_processes(config, log, embedding)
    finally:
        log.close()
    result = run_result(told)
    if not result.is_failed():
        return result.return_values
    verdict = told.end.finish.verdict
    assert verdict is not None
    cause = verdict.cause
    if cause is None or cause.failure is None:
        raise InfrastructureError(verdict.text)
    raise ChildFailedError(
        name, result.failures, first_rank=cause.failure.rank, followed=cause.collateral
    )
