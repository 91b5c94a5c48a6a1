"""The configuration of one agent: frozen settings, each with its unit and default.

Nothing here reads a clock, a socket or a command line. `cli/options.py` reads what a person or a
program gives. `__post_init__` checks combinations of settings, and the numbers and names of the
table, and raises `UsageError` with the offending value and the fix.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Literal

from msgspec import Struct

from rallypoint.core.limits import MAX_NAME_BYTES, is_host, is_name
from rallypoint.core.outcomes import CODES
from rallypoint.core.settings import (
    BY_FIELD,
    HOLD_S,
    MAX_EXIT_CODES,
    NUMBERS,
    Setting,
    SharedSettings,
    out_of_range,
)
from rallypoint.core.settings import OnJoin as OnJoin
from rallypoint.core.text import named, spelled
from rallypoint.errors import UsageError

TOKEN_VARIABLE = "RALLYPOINT_TOKEN"
_PASSWORD = "RALLYPOINT_", "_PASSWORD"
DEFAULT_COORDINATOR_PORT = 29400
"""The coordinator's port when an endpoint has none; the same as torchrun's."""
DEFAULT_STATIC_PORT = 29500
"""The port of a static rendezvous (fixed ranks) without `--master-port`; the same as torchrun's."""
ENROL_MIN_S = 15.0


def password_variable(backend: str) -> str:
    """Return the name of the variable with a rendezvous backend's password."""
    return backend.upper().replace("-", "_").join(_PASSWORD)


def is_secret(variable: str) -> bool:
    """Return whether a variable of this name has the token or a password, which workers lack."""
    begin, end = _PASSWORD
    return variable == TOKEN_VARIABLE or (variable.startswith(begin) and variable.endswith(end))


def environ_token(environ: Mapping[str, str] | None = None) -> str | None:
    """Return RALLYPOINT_TOKEN without the spaces around it; None if it is unset or empty."""
    environ = os.environ if environ is None else environ
    return environ.get(TOKEN_VARIABLE, "").strip() or None


def check_name(flag: str, value: str, *, empty_ok: bool = False) -> None:
    """Check that a name is valid in messages and file names. Raises UsageError.

    `flag` is the option that the name is the value of.
    """
    if not value and empty_ok:
        return
    if not value or not is_name(value):
        written = repr(value).replace("\\udc", "\\x")  # Bytes that are no UTF-8.
        raise UsageError(
            f"{flag} {written}: needs 1 to {MAX_NAME_BYTES} bytes of printable characters"
        )


def _check(settings: Struct) -> None:
    """Check numbers and names against the table of settings. Raises UsageError."""
    for field in settings.__struct_fields__:
        row, value = BY_FIELD.get(field), getattr(settings, field)
        if row is None or value is None:
            continue
        if row.kind in NUMBERS and isinstance(value, int | float):
            if needs := out_of_range(row, value):
                raise UsageError(f"{spelled(row.spelled)} {value:.12g}: {needs}")
        elif row.kind == "name":
            check_name(
                spelled(row.spelled), value, empty_ok=row.field in ("topology", "machine_id")
            )


LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class OutputMode(Enum):
    """How the workers' output reaches the console.

    AUTO is PREFIX when stdout and stderr are terminals and the job may have several workers, else
    INHERIT. In a job of one node, workers hidden from the console do not count.
    """

    AUTO = "auto"
    INHERIT = "inherit"
    PREFIX = "prefix"


class FailureReport(Enum):
    """The nodes that print the whole report of a failure; the others print one line.

    AUTO is ALL in a round of up to four nodes, else the node of the failed worker and rank 0's.
    """

    AUTO = "auto"
    ALL = "all"
    RANK0 = "rank0"
    NONE = "none"


class Endpoint(Struct, frozen=True):
    """A host as the person wrote it (name, IPv4 or IPv6 without brackets) and a port, 0..65535."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


ANY_PORTS = (0, 0)
"""The value of `RegisterConfig.ports` for: port 29400 if it is free, else any free port."""


class RegisterConfig(Struct, frozen=True):
    """The place of a job's record, and the ports on which this node listens if it leads the job."""

    engine: str
    """The name of the engine that keeps the record: see `register/engines.py`."""
    where: str = ""
    """The endpoint in the engine's form; a path is absolute."""
    settings: tuple[tuple[str, str], ...] = ()
    """The settings of the engine, as (key, value) pairs. Paths are absolute."""
    ports: tuple[int, int] = ANY_PORTS
    """The first and the last port on which this node may listen when it leads; or `ANY_PORTS`."""
    hold_s: float = HOLD_S
    """How long this node may lead after its last write of the record, in seconds."""

    def __repr__(self) -> str:
        """Return a text without the values of settings, which may be passwords."""
        keys = ", ".join(key for key, _ in self.settings)
        return f"RegisterConfig({self.engine!r}, {self.where!r}, settings: {keys or 'none'})"


class HandlerConfig(Struct, frozen=True):
    """A backend of another package, whose handler replaces the coordinator's rendezvous."""

    backend: str
    endpoint: str = ""
    conf: tuple[tuple[str, str], ...] = ()
    """Further parameters of the handler, as (key, text) pairs."""


class RendezvousConfig(SharedSettings, frozen=True, kw_only=True):
    """The job's settings, equal on all nodes (behaviour R7), and how this node finds the others."""

    endpoint: Endpoint = Endpoint("localhost", 0)
    """The address at which the nodes meet. Port 0, for a job of one node only, lets the system
    choose."""
    node_rank: int | None = None
    is_host: bool | None = None
    """Whether this node hosts the coordinator; None: the node that can bind the endpoint does."""
    host_timeout_s: float = 30.0
    """How long to wait, once the endpoint's name resolves, until a node hosts the coordinator, in
    seconds."""
    reconnect_timeout_s: float | None = None
    """How long to try to reach a lost coordinator, in seconds, at least the lease. None: 120 s if
    it does not answer, the lease if its host refuses connections, and the join timeout if another
    node may take over."""
    node_id: str | None = None
    """The name of this node; None: with fixed ranks it follows from the rank, else it is the host
    name with an ordinal from the coordinator."""
    machine_id: str = ""
    """The name of the node's machine; empty: the result of `machine_name.py`."""
    topology: str = ""
    """The place of the machine, such as its rack: nodes get their ranks in the order of (topology,
    node id)."""
    local_addr: str | None = None
    """The address by which other nodes reach this node; None: the local address of its connection
    to the coordinator."""
    store: Endpoint = Endpoint("", 0)
    """The address of this node's round store. Without a host it is `local_addr`; with port 0 the
    system chooses. If a host or a port is given, the workers do not use a handler's store."""
    register: RegisterConfig | None = None
    """The register with which any of the nodes may lead the job; None: the endpoint determines the
    node that hosts the coordinator."""
    handler: HandlerConfig | None = None
    """The rendezvous handler that replaces the coordinator's rendezvous; None: the
    coordinator's."""

    def __post_init__(self) -> None:
        if self.static and self.min_nodes != self.max_nodes:
            raise UsageError(
                f"{named.nnodes} {self.min_nodes}:{self.max_nodes} with {named.node_rank}: fixed "
                f"ranks need a fixed number of nodes; use {named.rdzv_endpoint} HOST:PORT for an "
                "elastic job"
            )
        _check(self)
        codes = self.no_restart_exit_codes
        if len(codes) > MAX_EXIT_CODES or not all(0 < code <= MAX_EXIT_CODES for code in codes):
            shown = ",".join(map(str, codes[:10]))
            raise UsageError(f"{named.no_restart_on} {shown}: needs exit codes from 1 to 255")
        if self.heartbeat_s * 2 > self.lease_s:
            raise UsageError(
                f"{named.lease} {self.lease_s:g}: must be at least two heartbeats "
                f"({self.heartbeat_s:g} s each)"
            )
        if self.local_addr is not None and not is_host(self.local_addr):
            raise UsageError(
                f"{named.local_addr} {self.local_addr!r}: needs a host name or an address"
            )

    def shared(self) -> SharedSettings:
        """Return the settings that are sent to the coordinator, which compares them."""
        return SharedSettings(*(getattr(self, name) for name in SharedSettings.__struct_fields__))

    @property
    def enrol_timeout_s(self) -> float:
        """How long a node may try to reach the round store of rank 0, in seconds.

        It is 15 s, or two leases if that is longer: by then the coordinator has noticed a dead rank
        0, and blames no other node for it. But it is half of the join timeout at most: a node has
        to report its failure before nodes that are not ready are expelled.
        """
        return min(max(ENROL_MIN_S, 2 * self.lease_s), self.join_timeout_s / 2)


class StartMethod(Enum):
    """The way in which a worker process is started.

    SPAWN executes the command, or an interpreter for a function. FORKSERVER forks a prepared
    process, which has imported the modules of `preload`, so that a restart does not import them
    again. FORK forks the calling process: no argument is pickled, but locks that its other threads
    hold stay locked in the worker, and CUDA can't be used there once the caller has used it.
    """

    SPAWN = "spawn"
    FORKSERVER = "forkserver"
    FORK = "fork"


class FunctionCall(Struct, frozen=True):
    """A Python function that workers run instead of a command; `args` by local rank.

    A worker that is not a fork of the calling process imports the function's module, and the
    program's `__main__` under the name `__mp_main__`. Its environment is in place before. The
    result of the function is pickled and returned, whatever its size; a worker that ends by
    `sys.exit(0)` returns None. An exception is printed and written to the worker's error file with
    its causes, and ends the worker with code 1.
    """

    function: Callable[..., object]
    args: tuple[tuple[object, ...], ...]

    @property
    def name(self) -> str:
        """The name of the function, for display."""
        return str(getattr(self.function, "__qualname__", None) or repr(self.function))


class AffinityMode(StrEnum):
    """The CPUs that a worker may use; `core/cpu_binding.py` explains each mode."""

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


class NumaOptions(Struct, frozen=True):
    """The binding of workers to CPUs near their GPUs, or without GPUs across the machine.

    Memory follows by itself: the kernel takes it from the NUMA node of the CPU that first uses it.
    """

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False
    """Whether to run unbound, with a notice, where this machine does not allow the binding; else
    that is an error."""


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """The program that runs on this node: a command, or a function."""

    argv: tuple[str, ...] = ()
    """The exact command; `${local_rank}` in an argument is replaced by the worker's local rank."""
    function: FunctionCall | None = None
    """The function to run instead of `argv`. Its results are `JobEnd.return_values`."""
    start_method: StartMethod | None = None
    """How workers are started; None: FORKSERVER for a function or with `preload`, else SPAWN."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once, in a prepared process that workers are forked from. The
    modules see the agent's environment, not a worker's. `__main__` is allowed if there is a
    function."""
    count: int = 1
    role: str = "default"
    omp_threads: int | None = None
    """Value of OMP_NUM_THREADS for workers that would inherit none; None: leave it unset."""
    virtual_local_rank: bool = False
    """Whether every worker gets LOCAL_RANK 0 and sees one device only."""
    numa: NumaOptions | None = None
    """The binding of workers to CPUs; None: workers have the agent's CPUs."""
    unbuffered: bool = False
    """Whether workers get PYTHONUNBUFFERED=1, because their output is read for progress."""
    keep_env: tuple[str, ...] = ()
    """The variables of a scheduler's task that workers inherit nevertheless; or patterns of their
    names."""
    devices: int = 0
    """The number of accelerators of this node's single worker, for frameworks that need it; 0:
    none, or they were not counted."""
    export_run_id: tuple[str, ...] = ()
    """The experiment trackers (such as `wandb`) for which workers get a run id, the same in all
    rounds."""

    def __post_init__(self) -> None:
        _check(self)
        if self.function is not None and self.argv:
            raise UsageError(f"argv {self.argv!r} with a function: give one of the two")
        if self.function is not None and len(self.function.args) != self.count:
            raise UsageError(
                f"{len(self.function.args)} tuples of arguments for {self.function.name}: "
                f"needs one for each of the {self.count} workers"
            )
        if self.preload and self.start_method not in (None, StartMethod.FORKSERVER):
            raise UsageError(
                f"{named.preload} {','.join(self.preload)} with the start method "
                f"{self.start_method.value}: only forkserver imports modules beforehand"
            )

    @property
    def method(self) -> StartMethod:
        """The start method that was asked for.

        By default, forkserver for a function or with `preload`, else spawn.
        """
        if self.start_method is not None:
            return self.start_method
        return StartMethod.FORKSERVER if self.function or self.preload else StartMethod.SPAWN


class OutputConfig(Struct, frozen=True, kw_only=True):
    """The destinations and the form of the output of the workers and of the agent.

    `redirects` and `tee` keep the flag's grammar: `3` or `0:1,10:3`.
    """

    mode: OutputMode = OutputMode.AUTO
    quiet: bool = False
    report: FailureReport = FailureReport.AUTO
    log_format: Literal["text", "json"] = "text"
    log_level: LogLevel = "INFO"
    """The lowest level of the agent's own lines that is shown (LOGLEVEL)."""
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    temp_dir: str = "/tmp"
    """The parent of temporary directories: those of the agent, and of log files without a log
    directory (TMPDIR)."""
    prefix_template: str | None = None
    """The template of the prefix of teed lines (`--log-line-prefix-template`)."""
    colour: bool = True
    """Whether colours are allowed on a terminal (NO_COLOR, TERM)."""
    draws: bool = True
    """Whether lines on a terminal may be redrawn: a status line, progress bars (TERM)."""
    local_ranks_filter: tuple[int | str, ...] | None = None
    """The workers whose output reaches the console: local ranks, and global ones such as "g12";
    None: all."""
    duplicate_stdout_filters: tuple[str, ...] = ()
    """Teed stdout lines that contain one of these texts are copied to one file for each round."""
    duplicate_stderr_filters: tuple[str, ...] = ()
    log_layout: Literal["torchrun", "rounds"] = "torchrun"
    log_max_bytes: int = 0
    """The size in bytes at which a log file is rotated; 0: no limit."""
    progress_pattern: str = ""
    """The pattern that the relay looks for in the workers' output (`process/relay/pattern.py`);
    empty: none. With a pattern both streams go through the relay; see `WorkerConfig.unbuffered`."""
    logs_specs: object = "default"
    """The object that chooses the log files: a name (see `process/logs/specs.py`), or an object
    with `reify`, which already has redirects, tees and ranks."""

    def __post_init__(self) -> None:
        _check(self)


class StopConfig(Struct, frozen=True, kw_only=True):
    """How this node's workers are stopped, and when the node leaves the job.

    A stop is a signal to the workers (see `signal_scope`), a grace, then SIGKILL to all processes
    of their sessions.
    """

    shutdown_grace_s: float = 25.0
    """The grace in seconds for a drain or a cancelled job. The default is below 30 s, after which
    schedulers kill."""
    restart_grace_s: float = 5.0
    """The grace in seconds at the end of a round: workers stuck in a collective never answer
    SIGTERM."""
    drain_deadline_s: float | None = None
    """The time in seconds from the request to leave until this node's workers are killed. A fifth
    of it at most is for stopping them, the rest for a last checkpoint. None: `shutdown_grace_s`."""
    drain_signal: str = ""
    """The signal that workers get when the job is about to lose a node; empty: none."""
    preempt_notice: str = ""
    """The notice that this node must leave: a file that appears, or `cmd:COMMAND` that ends with
    code 0; empty: none."""
    leave_in_s: float | None = None
    """How long after its start this node leaves the job, because its allocation ends, in seconds;
    None: no such time is set."""
    limit_in_s: float | None = None
    """How long after the agent's start the scheduler ends this node's allocation, in seconds; None:
    unknown."""
    is_slurms: bool = False
    """Whether this node runs in a job of Slurm: for advice after the end, not for any stop."""
    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    signal_scope: Literal["session", "worker"] = "session"
    """The processes that a stop signals first. `session`: the process group of each worker.
    `worker`: the worker alone, and the rest of its group once the worker has ended."""
    exit_codes: tuple[tuple[str, int], ...] = ()
    """The exit codes that a person has set, as (name of the class, code) pairs; the last one
    counts."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def drain_deadline(self) -> float:
        """The seconds from the request to leave until the workers are killed, given or default."""
        given = self.drain_deadline_s
        return self.shutdown_grace_s if given is None else given

    def exit_code(self, name: str, finer: str = "") -> int:
        """Return the exit code for a class of ends of a job.

        `finer` is a narrower class within it, or empty. A code that was set for `finer` counts
        first, then one for the class itself, then the default of the class.
        """
        chosen = dict(self.exit_codes)
        return chosen.get(finer, chosen.get(name, CODES[name]))


class AccessConfig(Struct, frozen=True, kw_only=True):
    """How nodes authenticate (behaviour F8)."""

    token_file: str | None = None
    token_text: str | None = None
    """The token itself. An agent of the command line replaces it by one that opens this job
    only."""
    token_fd: int | None = None
    """An inherited descriptor from which the command line reads the token."""
    insecure: bool = False
    store_networks: tuple[str, ...] = ()
    """CIDRs whose addresses may use this node's round store without enrolling (behaviour F9)."""

    def __repr__(self) -> str:
        text, insecure = "given" if self.token_text else "none", self.insecure  # Not the token.
        return f"AccessConfig(token_file={self.token_file!r}, token_text={text}, {insecure=})"


class ObserveConfig(Struct, frozen=True, kw_only=True):
    """The destinations of events and metrics, besides the console."""

    event_log_handler: str = "null"
    """The event handler: `null`, `console`, `jsonl:FILE`, or the name of a package's handler (with
    `:ARGUMENT`)."""
    json_summary: str | None = None
    """The file to which the whole outcome is written as JSON at the end; None: none."""
    history: str | None = None
    """The file, or with a slash at its end the directory, for the history of the job. It is written
    by a node that hosts the job; None: none is."""
    keep_in: str = ""
    """The directory in which records of how jobs ended are kept; empty: none are kept."""
    metrics: Endpoint | None = None
    """The address at which metrics are served for Prometheus; with port 0 the system chooses. None:
    they are not served."""
    health_port: int | None = None
    """The port for health checks, at the node's address in the job
    (TORCHELASTIC_HEALTH_CHECK_PORT); None: there are none."""


class AgentConfig(Struct, frozen=True, kw_only=True):
    """The whole configuration of one agent.

    The table in `core/settings.py` refers to these parts and their fields by their names.
    """

    rendezvous: RendezvousConfig
    workers: WorkerConfig
    output: OutputConfig = OutputConfig()
    stop: StopConfig = StopConfig()
    access: AccessConfig = AccessConfig()
    observe: ObserveConfig = ObserveConfig()
    notices: tuple[str, ...] = ()
    """Remarks about the command line to show at the start, one line each."""


SECTIONS: dict[str, type[Struct]] = {
    "rendezvous": RendezvousConfig,
    "register": RegisterConfig,
    "workers": WorkerConfig,
    "output": OutputConfig,
    "stop": StopConfig,
    "access": AccessConfig,
    "observe": ObserveConfig,
}
"""The structs of this module that hold settings, by their names in the table of settings."""


def default_of(row: Setting) -> object:
    """Return the default of the field that a setting fills; None if it has no default."""
    kind = SECTIONS[row.section]
    names, last = kind.__struct_fields__, kind.__struct_defaults__
    return dict(zip(reversed(names), reversed(last), strict=False)).get(row.field)
