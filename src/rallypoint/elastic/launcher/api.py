"""Launching a job from a program, in torch's vocabulary."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from msgspec.structs import replace

from rallypoint.agent.embedding import Embedding, run_embedded, start_in_thread
from rallypoint.agent.environ import SHUTDOWN_TIMEOUT_VARIABLE, asked_for
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.options import count_devices, read_access, read_count, read_observe
from rallypoint.cli.parser import Scanned
from rallypoint.cli.run_options.rendezvous import Reading, read_rendezvous
from rallypoint.cli.values import integer, read
from rallypoint.config import (
    DEFAULT_STATIC_PORT,
    AgentConfig,
    Endpoint,
    ObserveConfig,
    OutputConfig,
    OutputMode,
    RendezvousConfig,
    StopConfig,
    WorkerConfig,
)
from rallypoint.core.given import Given
from rallypoint.core.settings import BY_ENDPOINT, FLAGS
from rallypoint.core.text import naming_parameters
from rallypoint.elastic.agent.embedded.parameters import OF_A_LAUNCH
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
from rallypoint.elastic.agent.embedded.parameters import given_by, keys_given, parameter_errors
from rallypoint.elastic.rendezvous.utils import parse_rendezvous_endpoint
from rallypoint.errors import (
    ChildFailedError,
    ExitClass,
    InfrastructureError,
    InvariantError,
    ParameterError,
    RallypointError,
)
from rallypoint.register.engines import find

_log = logging.getLogger("rallypoint")
NO_TIMEOUT = -1
_APART = frozenset(
    {"--logs-specs", "--monitor-interval", "--preload", "--shutdown-timeout", "--start-method"}
)
"""The options that `_scanned` skips: their parameters are no text or have other defaults."""
_NAMES = {"--rdzv-id": "run_id"}
"""The parameter of each option whose parameter does not have the option's name."""


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
    `monitor_interval` have no effect: see `metrics.configure`, and exits are noticed at once.
    `drain_deadline` and `hang_timeout` are seconds, as `--drain-deadline` and `--hang-timeout`
    (limits of phases are a text, as there). None: a drain has the shutdown timeout, and workers
    never count as hung. `progress_pattern`, `max_no_progress` and `history` are as
    `--progress-pattern`, `--max-no-progress` and `--history`; no record of the end is kept for a
    job on one node. `env_style` and `keep_env` are lists, as `--env-style` and `--keep-env` have
    them. With an `rdzv_backend` of `file`, the endpoint is a directory that all nodes share. Any of
    them may then host the job, on a port from the first to the last of `port_range`. With another
    kind of store for the job's records the endpoint is as for `rallypoint run`.

    A value that can't be used is refused when the job is launched, by ParameterError or UsageError;
    a `shutdown_timeout`, or that of the variable, already when this object is made. A
    `rdzv_timeout` is written into `rdzv_configs`, as with torch.
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
    hang_timeout: float | str | None = None
    port_range: tuple[int, int] | None = None
    progress_pattern: str | None = None
    max_no_progress: int | None = None
    history: str | None = None
    env_style: Sequence[str] | None = None
    keep_env: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.shutdown_timeout is None:
            self.shutdown_timeout = _usual_grace_s()
        elif not self.shutdown_timeout >= 0:
            raise ParameterError(
                f"LaunchConfig(shutdown_timeout={self.shutdown_timeout!r}): needs 0 or more seconds"
            )
        if self.rdzv_timeout != NO_TIMEOUT:
            self.rdzv_configs = {**self.rdzv_configs, "timeout": self.rdzv_timeout}


def _usual_grace_s() -> float:
    text = asked_for(SHUTDOWN_TIMEOUT_VARIABLE)
    if not text:
        return StopConfig().shutdown_grace_s
    with parameter_errors():
        given = Given(text, f"{SHUTDOWN_TIMEOUT_VARIABLE}={text!r}")
        return float(read(FLAGS["--shutdown-timeout"], given))


@naming_parameters(OF_A_LAUNCH)
@parameter_errors()
def agent_config(config: LaunchConfig, entrypoint: Entrypoint, args: Sequence[Any]) -> AgentConfig:
    """Return the settings of this node's agent. Raises ParameterError, one line.

    The parameters are read as `rallypoint run` reads its options, so that nodes that were started
    either way find each other. Remarks on them are logged as warnings.
    """
    machine, notices = ThisHost(), list[str]()
    reading = read_rendezvous(_scanned(config), machine, notices)
    count = read_count(reading.scanned.get("--nproc-per-node"), {}, machine)
    workers = WorkerConfig(
        **reading.fields["workers"],
        count=count,
        preload=module_names(config.preload),
        numa=numa_options(config.numa_options),
        unbuffered=config.progress_pattern is not None,
        devices=count_devices(count, reading, machine, None),
    )
    output: dict[str, Any] = {
        "mode": OutputMode.INHERIT,
        "temp_dir": tempfile.gettempdir(),
        "logs_specs": "default" if config.logs_specs is None else config.logs_specs,
    }
    made = AgentConfig(
        rendezvous=_rendezvous(config, reading),
        workers=worker_config(entrypoint, args, workers, config.start_method),
        output=OutputConfig(**output | reading.fields["output"]),
        stop=StopConfig(**reading.fields["stop"] | _graces(config)),
        access=read_access(reading, None),
        observe=_observe(config, reading, machine),
    )
    for notice in notices:
        _log.warning("rallypoint: %s", notice)
    return made


def _scanned(config: LaunchConfig) -> Scanned:
    """Return the fields of `config`, without those of `_APART`, as values of equivalent options."""
    least, most = config.min_nodes, config.max_nodes
    given = {"--nnodes": Given(f"{least}:{most}", f"min_nodes={least!r}, max_nodes={most!r}")}
    for row in FLAGS.values():
        name = _NAMES.get(row.flag, row.name)
        value = getattr(config, name, None)
        is_absent = value is None or value is False or (row.above_zero and value == 0)
        if not is_absent and row.flag not in _APART:
            given[row.flag] = given_by(row, value, f"{name}={value!r}")
    for flag in ("--rdzv-endpoint", "--rdzv-id"):
        if flag in given and not given[flag].text:
            del given[flag]
    if config.rdzv_backend in BY_ENDPOINT or find(config.rdzv_backend) is not None:
        given |= _conf(config)
    if config.rdzv_backend == "static" and "--rdzv-endpoint" in given:
        where = parse_rendezvous_endpoint(config.rdzv_endpoint, DEFAULT_STATIC_PORT)
        given["--rdzv-endpoint"] = Given(str(Endpoint(*where)), given["--rdzv-endpoint"].origin)
    return Scanned(()).plus(given)


def _conf(config: LaunchConfig) -> dict[str, Given]:
    backend, most, alone = config.rdzv_backend, config.max_nodes, not config.rdzv_endpoint
    if backend in BY_ENDPOINT and alone and most > 1:
        raise ParameterError(
            f"max_nodes={most} without an rdzv_endpoint: several nodes need an endpoint; give "
            "each the same rdzv_endpoint='HOST:29400', HOST being one of them"
        )
    conf = _configs(config)
    rank = conf.pop("rank", None)
    given = keys_given(conf)
    if rank is not None:
        given["--node-rank"] = Given(str(rank), f"the rendezvous parameter rank={rank!r}")
        integer(given["--node-rank"])
    elif backend == "static" and not alone:
        raise ParameterError(
            "rdzv_backend='static': needs rdzv_configs={'rank': K}, from 0, every node its own"
        )
    return given


def _rendezvous(config: LaunchConfig, reading: Reading) -> RendezvousConfig:
    """Return the rendezvous settings; a plug-in's handler gets `rdzv_configs` unchanged."""
    made = reading.rendezvous
    if made.handler is None:
        return made
    conf: Any = tuple(_configs(config).items())
    return replace(made, handler=replace(made.handler, conf=conf))


def _configs(config: LaunchConfig) -> dict[str, Any]:
    return dict(config.rdzv_configs)


def _graces(config: LaunchConfig) -> dict[str, float]:
    """Return how long workers may take after SIGTERM, in seconds, by name of the setting.

    The default applies only when a person or a scheduler ends the job, any other
    `shutdown_timeout` to every stop.
    """
    chosen, row = config.shutdown_timeout, FLAGS["--shutdown-timeout"]
    if chosen is None:
        return {}
    grace_s = read(row, given_by(row, chosen, f"shutdown_timeout={chosen!r}"))
    if grace_s == _usual_grace_s():
        return {"shutdown_grace_s": grace_s}
    return {"shutdown_grace_s": grace_s, "restart_grace_s": grace_s}


def _observe(config: LaunchConfig, reading: Reading, machine: ThisHost) -> ObserveConfig:
    observe = read_observe(reading, None, machine, [])
    # A launch on one node tells its caller all, and a program may launch hundreds.
    return observe if config.max_nodes > 1 else replace(observe, keep_in="")


class elastic_launch:  # noqa: N801  # Its name in torch.
    """`elastic_launch(config, entrypoint)(*args)` runs workers and returns their results.

    It runs `entrypoint(*args)`, or the command line with these words, as the workers of this node,
    and returns what they return by global rank; None for each worker that is a command.

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
    """Run a job as `elastic_launch(config, entrypoint)(*args)` does. Blocks.

    `health_check_server` is stopped in the end.
    """

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
    """Run a job as `elastic_launch` does, without blocking the running event loop.

    The program handles signals itself. Cancelling this coroutine cancels the job; the coroutine
    then raises CancelledError once the workers of this node are gone.
    """
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
    """Return the result of `work`; raise its error without a traceback of our own frames.

    Applies to Rallypoint's errors, except InvariantError, and to KeyboardInterrupt. A usage error
    loses its cause as well, because its message is enough.
    """
    try:
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


@naming_parameters(OF_A_LAUNCH)
def _run(config: AgentConfig, name: str, embedding: Embedding) -> dict[int, Any]:
    log = JobLog()
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
