"""All settings of a job, in one table.

The command line, its help, the documentation, the library's parameters, the checks of `config.py`
and the comparison between nodes are made from it.

A new setting that all nodes must agree on is a field of `SharedSettings` and a row of the table,
both in this file, and is used where it has an effect. A setting of one node is a field of a struct
in `config.py` and a row here, whose `target` names that field. Defaults are in the structs only.
Pure data.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Literal

from msgspec import Struct

from rallypoint.core.outcomes import classes_help

MAX_NODES = 100_000
MAX_WORKERS_PER_NODE = 4096
MAX_GIVEN = 2**31 - 1
"""The largest count that an option takes, for example of restarts or lost nodes."""
MAX_NUMBER = 2**62
"""The largest number of a round, message, life or coordinator; some room is left above it."""
MIN_SECONDS = 0.001
"""The shortest time other than 0, in seconds: a shorter lease only keeps the coordinator busy."""
MAX_SECONDS = 1e9
"""The longest time of a setting, in seconds: about 30 years, which every clock here can take."""
MAX_WAIT_S = 86_400.0
"""The longest time in seconds, a day, for which one node may have the others wait for its workers
to stop."""
HOLD_S = 10.0
"""How long a leader may act after it has written its job's record, in seconds, unless `hold` is
given."""
HOLD_MIN_S, HOLD_MAX_S = 2, 300
MAX_EXIT_CODES = 255
"""The longest list of exit codes: all but 0."""
ENGINE_NAMES = ("file", "etcd", "kubernetes")
"""The names of the built-in engines of registers, which store jobs' records; `register/engines.py`
has a row for each."""
FOR_DIRECTORIES = "file"
"""The engine of registers that keeps records in a directory: the endpoint, or in a shared home."""
BY_REGISTER = "--rdzv-backend file, etcd or kubernetes"
"""The options for a job that any node may lead."""
BY_ENDPOINT = ("tcp", "c10d", "static")
"""The backends whose endpoint determines the node that hosts the job."""
ENV_STYLES = ("torch", "jax", "tensorflow", "mpi", "deepspeed")
"""The launchers and frameworks whose variables workers can get."""
MAX_TOLD_WORKERS, MAX_TOLD_BYTES = 4096, 120_000
"""The most workers whose addresses are passed to each other, and the most bytes of these addresses:
they become one variable, and the kernel's limit is 128 KiB."""
UNNAMED_RUN_ID = "none"
"""The run id of a job without a name, as with torchrun: several nodes must agree on one."""


class OnJoin(Enum):
    """The effect of late nodes on a running round.

    RESTART ends it for a larger one, HOLD waits until it ends anyway. AT_CHECKPOINT first asks the
    workers for a checkpoint, and ends the round when they have saved one.
    """

    RESTART = "restart"
    HOLD = "hold"
    AT_CHECKPOINT = "at-checkpoint"


SETTINGS_UNCOUNTED = 24
"""The number of settings that an older coordinator knows, which does not say how many it does."""


class SharedSettings(Struct, frozen=True, array_like=True):
    """The settings that every node of a job must agree on (behaviour R7). Times are in seconds."""

    run_id: str
    min_nodes: int = 1
    max_nodes: int = 1
    static: bool = False
    """Whether `node_rank` gives group ranks, and the round store shares the endpoint's port."""
    max_restarts: int = 0
    """How often workers may be restarted after failures; the next failure ends the job. Changes of
    the nodes never count."""
    restart_window_s: float = 0.0
    """The seconds for which a restart counts towards `max_restarts`; 0: for the whole life."""
    restart_backoff_s: float = 0.0
    """The pause before the first restart, doubled for each further one, at most 60 s."""
    no_restart_exit_codes: tuple[int, ...] = ()
    """The exit codes that end the job even if the budget is not used up."""
    lease_s: float = 15.0
    """How long a node may be silent before it is lost. A short lease detects a dead node sooner, a
    long one does not expel a paused or overloaded node. A node whose connection ends is lost sooner
    (`reconnect_grace_s`, `reset_grace_s`)."""
    heartbeat_s: float = 1.0
    reconnect_grace_s: float = 1.0
    """How long a node that closed its connection may take to return before it is lost."""
    join_timeout_s: float = 600.0
    """How long a forming round may lack nodes before the job ends."""
    last_call_s: float = 30.0
    """How long a first round, or one after all nodes were lost, waits for more than the minimum."""
    join_settle_s: float = 10.0
    """The time without a new node after which late nodes are admitted."""
    join_settle_max_s: float = 60.0
    min_growth_interval_s: float = 60.0
    """The least age of a round that may end to admit late nodes."""
    on_join: OnJoin = OnJoin.RESTART
    max_node_losses_per_hour: int = 10
    """The rounds in an hour that may lose nodes, however many each; the next one ends the job."""
    hang_timeout_s: float = 0.0
    """The time without progress of a worker that ends the round, once it has reported any; 0: no
    limit. It has to be longer than the longest step, with its checkpoint and its evaluation. Equal
    on all nodes, because a rank that hangs stops all others."""
    reset_grace_s: float = 5.0
    """How long a node may take to return when its connection broke without being closed by it."""
    stop_patience_s: float = 60.0
    """The extra wait when many nodes are slow to stop at once; 0: none."""
    world_multiple_of: int = 1
    """Every world has a multiple of this number of workers; surplus nodes are on standby."""
    max_no_progress: int = 0
    """The number of equal failures in a row without progress that ends the job; 0: no limit."""
    hold_back_after: int = 2
    """The number of failures within an hour after which a machine is held back while the minimum
    remains without it (one on probation: after the first); 0: failures never hold one back."""
    max_runtime_s: float = 0.0
    """The time after which the job is ended, from the start of its first workers; 0: no limit."""
    env_styles: tuple[str, ...] = ()
    """The variables that workers get besides torch's: some of `ENV_STYLES`, sorted. Equal on all
    nodes, because each node provides ports for the other nodes' workers."""
    hang_phases: tuple[tuple[str, float], ...] = ()
    """The limits that replace `hang_timeout_s`, by phase, sorted."""

    def differences(self, other: SharedSettings) -> Differences:
        """Return the settings that differ, as (name, self's value, other's value).

        A setting that only follows from another one that differs is left out.
        """
        if self == other:
            return ()
        fields = SharedSettings.__struct_fields__
        both = [(name, getattr(self, name), getattr(other, name)) for name in fields]
        differ = {name for name, mine, theirs in both if mine != theirs}
        follow = {name for name in differ if BY_FIELD[name].follows in differ}
        return tuple(each for each in both if each[0] in differ - follow)


Differences = tuple[tuple[str, object, object], ...]


class Setting(Struct, frozen=True):
    """A row of the table of settings: an option, a key of `--rdzv-conf`, or one with neither."""

    flag: str
    """`--name`; of a key of `--rdzv-conf` that has no flag, `name`; empty: a person gives none."""
    metavar: str = ""
    """The name of the value in the help; empty: a switch. For a `choice` it has the words, as
    `text|json`; for an `engine` the built-in ones."""
    about: str = ""
    """One line of help, without the default."""
    kind: str = "text"
    """The form of the value; `cli/values.py` has a parser for each kind."""
    target: str = ""
    """The part of `AgentConfig` that it fills, and the field: `stop.restart_grace_s`; empty: none
    by itself, as `--standalone`."""
    default: str = ""
    """The default in words, where the default of the field does not show it."""
    short: str = ""
    twin: str = ""
    """The prefix of an environment variable that may also give the value: `PET` or `RALLYPOINT`,
    for `PET_<NAME>` or `RALLYPOINT_<NAME>`. Empty: there is none."""
    least: float = 0
    most: float = MAX_SECONDS
    """The largest valid number."""
    above_zero: bool = False
    """Whether a user can't give 0, which as a default means never, or all. Only for seconds."""
    key: Literal["", "tcp", "any", "call"] = ""
    """The calls that take it as a parameter.

    `tcp`: handlers with a coordinator, as `node_id`; `any`: all handlers, as `join_settle`. These
    reach a launch through `LaunchConfig.rdzv_configs`. `call`: launches, specs or logs; a
    field of its own, as `LaunchConfig.max_restarts`."""
    follows: str = ""
    """The field of `SharedSettings` from whose value this one gets its default."""
    words: str = ""
    """How a user gives the setting, for messages, if that is not by a single flag."""
    repeatable: bool = False
    required: bool = False
    implied: str = ""
    """The value of an option that is given without one; empty: it needs a value, or is a switch."""
    may_be_empty: bool = False
    """Whether an empty value counts as not given, as in torchrun."""
    of_one_agent: bool = False
    """Whether a worker that starts a job must not inherit it from its agent's environment."""
    not_with_handler: bool = False
    """Whether the setting has no effect where the handler of another backend forms the rounds."""

    @property
    def name(self) -> str:
        """The name with underscores.

        The key of `--rdzv-conf`, the library's parameter, and the field of `LaunchConfig`, where
        there is one.
        """
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def section(self) -> str:
        """The part of `AgentConfig` that the setting fills; empty: it fills none."""
        return self.target.partition(".")[0]

    @property
    def field(self) -> str:
        """The field of the `section` of `AgentConfig` that the setting fills; empty: none."""
        return self.target.partition(".")[2]

    @property
    def env_name(self) -> str:
        """The environment variable that sets it if the command line does not; empty: none."""
        return f"{self.twin}_{self.name.upper()}" if self.twin else ""

    @property
    def spelled(self) -> str:
        """How a user gives the setting, for messages: its flag, key, or words."""
        flag = self.flag if self.flag.startswith("--") else f"--rdzv-conf {self.flag}"
        return self.words or (flag if self.flag else self.field)


_torch = partial(Setting, twin="PET")
_own = partial(Setting, twin="RALLYPOINT")

# fmt: off
NODES_AND_WORKERS = (
    _torch("--nnodes", "N|MIN:MAX", "nodes of the job; MIN:MAX lets it shrink and grow",
           "nodes", default="1"),
    _torch("--nproc-per-node", "N|cpu|gpu|xpu|auto",
           "workers on this node; auto: one per accelerator, else one per CPU",
           "workers", "workers.count", least=1, most=MAX_WORKERS_PER_NODE, key="call"),
    _torch("--standalone", "", "this node alone: no other node can join", "switch"),
    _torch("--role", "NAME", "name of this node's kind of worker", "name", "workers.role",
         key="call", may_be_empty=True),
    _own("--scheduler", "auto|slurm|none",
         "scheduler that supplies what the command line leaves out; auto: Slurm, in a step of "
         "several tasks",
         "choice", default="auto"),
)
RENDEZVOUS = (
    _torch("--rdzv-endpoint", "HOST[:PORT]|DIR",
           "the node that hosts the coordinator, or rallypoint serve. With --rdzv-backend file: "
           "a directory that all nodes share; etcd: its members, HOST[:2379],...; kubernetes: "
           "the namespace, if not the pod's own",
           "place", default=":29400", key="call", may_be_empty=True),
    _torch("--rdzv-id", "ID", "name of the job, equal on all its nodes",
           "name", "rendezvous.run_id", "none; random when alone", may_be_empty=True),
    _torch("--rdzv-backend", "NAME",
           "tcp (c10d in torchrun): one node hosts the job. file, etcd, kubernetes: any node may "
           "host, and any may be lost. static: fixed ranks. Or the backend of a package",
           default="tcp", key="call"),
    _torch("--rdzv-conf", "K=V,...",
           "join_timeout (600 s), last_call_timeout (30 s), host_timeout (30 s), is_host (the "
           "node that can bind the endpoint), and torchrun's other keys", may_be_empty=True),
    _torch("--local-addr", "ADDR", "address by which the other nodes reach this one",
           "host", "rendezvous.local_addr", "the address of its connection to the coordinator",
         key="call", may_be_empty=True),
    _own("--port-range", "FIRST-LAST",
         f"with {BY_REGISTER}: ports on which this node may host the job",
         "ports", "register.ports", "29400 if it is free, else any", not_with_handler=True,
         key="call"),
    _own("--store-port", "PORT", "port of the workers' store, if this node has rank 0",
         "port", default="the system chooses", of_one_agent=True),
    _own("--join-settle", "SECONDS",
         "admit late nodes once no further one has joined for this long",
         "seconds", "rendezvous.join_settle_s", key="any", not_with_handler=True),
    _own("--min-growth-interval", "SECONDS",
         "minimum age of a round before late nodes are admitted",
         "seconds", "rendezvous.min_growth_interval_s", key="any", not_with_handler=True),
    _own("--on-join", "restart|hold|at-checkpoint",
         "when late nodes are admitted: at once, at the next restart, or after a checkpoint that "
         "the workers are asked for",
         "choice", "rendezvous.on_join", not_with_handler=True),
    _own("--max-node-losses", "N",
         "rounds per hour that may end because nodes were lost (any number of nodes each); one "
         "more ends the job",
         "integer", "rendezvous.max_node_losses_per_hour", most=MAX_GIVEN, key="tcp"),
    _own("--stop-patience", "SECONDS",
         "more time, after --restart-grace, for nodes to stop their workers when more than two (and"
         " 5 %) are slow at once; then they are expelled",
         "seconds", "rendezvous.stop_patience_s", key="any"),
    _own("--node-id", "NAME", "name of this node",
         "name", "rendezvous.node_id", "its host name and a number", key="tcp", of_one_agent=True),
    _own("--machine-id", "NAME",
         "name of the machine that this node runs on, equal for every node that is started there;"
         " bad machines are held back by it",
         "name", "rendezvous.machine_id",
         "the boot and the address of this machine; in a container the variable NODE_NAME",
         key="tcp", of_one_agent=True, not_with_handler=True, may_be_empty=True),
    _own("--topology", "KEY|file:FILE|cmd:COMMAND",
         "rank nodes by this first, for example rack-07; or by the line that FILE has or COMMAND"
         " prints",
         "name", "rendezvous.topology", key="tcp", not_with_handler=True, may_be_empty=True),
    _own("--spares", "N", "number of --nnodes that stand by to replace lost nodes",
         "integer", default="0", most=MAX_NODES, not_with_handler=True),
    _own("--world-multiple-of", "K",
         "start only with a multiple of K workers; surplus nodes stand by",
         "integer", "rendezvous.world_multiple_of", least=1, most=MAX_WORKERS_PER_NODE, key="tcp",
         not_with_handler=True),
)
FIXED_RANKS = (
    _torch("--node-rank", "K", "this node's rank; node 0 is the one at the endpoint",
           "integer", "rendezvous.node_rank", "0"),
    _torch("--master-addr", "ADDR", "address of node 0", "host",
           default="127.0.0.1", not_with_handler=True, key="call"),
    _torch("--master-port", "PORT", "port of node 0", "port", default="29500",
           not_with_handler=True, key="call"),
)
WHAT_RUNS = (
    _torch("--module", "", "SCRIPT is a module, as in python -m", "switch", short="-m"),
    _torch("--no-python", "", "SCRIPT is a program, not a Python script", "switch"),
    _torch("--run-path", "", "run SCRIPT by runpy.run_path in the worker's interpreter", "switch"),
    _torch("--start-method", "spawn|forkserver|fork",
           "how workers of --run-path start: as new processes, or forked from a prepared one",
           "choice", "workers.start_method", "spawn", key="call"),
    _own("--preload", "MODULE,...",
         "import these once and fork the workers from there: a restart costs milliseconds",
         "modules", "workers.preload", key="call", may_be_empty=True),
    _torch("--virtual-local-rank", "",
           "each worker sees only its own device (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES if it"
           " is set), and LOCAL_RANK 0",
           "switch", "workers.virtual_local_rank", key="call"),
    _own("--env-style", "|".join(ENV_STYLES),
         "also set the variables of these, separated by commas. jax: "
         "jax.distributed.initialize() needs no arguments; tensorflow: TF_CONFIG; mpi: Open "
         "MPI's, for scripts that read them; deepspeed: those of its launcher",
         "styles", "rendezvous.env_styles", "torch", repeatable=True, key="call"),
    _own("--keep-env", "NAME",
         "pass this variable of the agent's Slurm or MPI task to the workers, like SLURM_PROCID "
         "or 'SLURM_*'; repeatable",
         "variables", "workers.keep_env", "none", repeatable=True, key="call"),
    Setting("--numa-binding", "node|socket|exclusive|core-complex",
            "run each worker on CPUs near its GPU; without GPUs the workers are spread over the"
            " nodes",
            "choice", "workers.numa"),
)
FAILURES = (
    _torch("--max-restarts", "N", "restarts after worker failures, over the whole job",
           "integer", "rendezvous.max_restarts", most=MAX_GIVEN, key="call"),
    _own("--hang-timeout", "SECONDS[,PHASE=SECONDS,...]",
         "a worker that reports steps (rallypoint.worker.progress, --progress-pattern) fails "
         "after this long without a step. A PHASE has its own limit: start, until the first "
         "step, or a name from rallypoint.worker.phase",
         "seconds", "rendezvous.hang_timeout_s", "never", above_zero=True,
         key="call"),
    _own("--max-runtime", "SECONDS",
         "end the job this long after its first workers started, with a checkpoint; exit code 124",
         "seconds", "rendezvous.max_runtime_s", "never", above_zero=True),
    _own("--restart-window", "SECONDS", "count only the failures of the last SECONDS",
         "seconds", "rendezvous.restart_window_s", "all", above_zero=True),
    _own("--restart-backoff", "SECONDS", "pause before a restart, doubled each time",
         "seconds", "rendezvous.restart_backoff_s"),
    _own("--max-no-progress", "N",
         "end the job after N equal failures in a row without progress; 3 is a good choice",
         "integer", "rendezvous.max_no_progress", "never", most=MAX_GIVEN,
         key="call"),
    _own("--hold-back-after", "N",
         "hold back a machine whose workers have failed N times within an hour, while --nnodes MIN"
         " remain without it; 0: never",
         "integer", "rendezvous.hold_back_after", most=MAX_GIVEN, key="tcp", not_with_handler=True),
    _own("--no-restart-on", "CODE,...", "exit codes that end the job at once",
         "exit_codes", "rendezvous.no_restart_exit_codes", "none", least=1, most=MAX_EXIT_CODES),
    _own("--lease", "SECONDS", "a node without a heartbeat for this long is lost",
         "seconds", "rendezvous.lease_s", least=MIN_SECONDS, key="tcp"),
    _own("--reconnect-grace", "SECONDS",
         "how long a node may take to reconnect after its connection was closed, as by a crash or "
         "a shutdown",
         "seconds", "rendezvous.reconnect_grace_s", key="tcp"),
    _own("--reset-grace", "SECONDS",
         "the same when its connection was cut on the way, as by a firewall",
         "seconds", "rendezvous.reset_grace_s", "a third of the lease",
         follows="lease_s", key="tcp"),
    _own("--reconnect-timeout", "SECONDS",
         "how long to look for a lost coordinator; at least the lease, after which the workers "
         "are killed",
         "seconds", "rendezvous.reconnect_timeout_s",
         "120 if it does not answer, the lease if it refuses",
         not_with_handler=True),
)
STOPPING = (
    _torch("--shutdown-timeout", "SECONDS", "grace from SIGTERM to SIGKILL when the job stops",
           "seconds", "stop.shutdown_grace_s", most=MAX_WAIT_S, key="call"),
    _own("--restart-grace", "SECONDS", "the same when workers are restarted",
         "seconds", "stop.restart_grace_s", most=MAX_WAIT_S),
    _torch("--signals-to-handle", "NAME,...", "signals that stop the job",
           "signals", "stop.signals", key="call", may_be_empty=True),
    _own("--drain-deadline", "SECONDS",
         "when this node is asked to leave: total time for a last checkpoint and for its workers "
         "to stop, until SIGKILL",
         "seconds", "stop.drain_deadline_s", "--shutdown-timeout", most=MAX_WAIT_S, key="call"),
    _own("--drain-signal", "NAME", "signal that also asks the workers for that checkpoint",
         "signal", "stop.drain_signal"),
    _own("--preempt-notice", "FILE|cmd:COMMAND",
         "leave the job when FILE appears, or COMMAND exits with 0 (run every 5 s)",
         "notice", "stop.preempt_notice"),
    _own("--stop-at", "TIME",
         "when this node's allocation ends: seconds since 1970, or 2030-12-31T18:30:00",
         default="what Slurm says", of_one_agent=True),
    _own("--stop-before", "SECONDS",
         "leave the job this long before --stop-at, after a checkpoint; the exit code is that of "
         "infrastructure, so that the job is started again",
         "seconds", default="never", of_one_agent=True),
    _own("--signal-scope", "session|worker",
         "processes that a stop signals at once: each worker and its child processes, or the "
         "worker alone, and its children when it has ended",
         "choice", "stop.signal_scope"),
    _torch("--monitor-interval", "SECONDS", "ignored (accepted for torchrun compatibility)",
           "seconds", key="call"),
    _own("--exit-code", "CLASS=N",
         classes_help(),
         "exit_code_of", "stop.exit_codes", repeatable=True),
)
OUTPUT = (
    _own("--output", "auto|inherit|prefix",
         "workers' output unchanged, or each line with its rank in front; auto: prefix in a "
         "terminal with several workers",
         "choice", "output.mode"),
    _own("--quiet", "", "print nothing unless something fails", "switch", "output.quiet"),
    _own("--report", "auto|all|rank0|none",
         "nodes that print the full failure report; the others print one line. auto: all nodes "
         "of up to four, else those of rank 0 and of the failed worker",
         "choice", "output.report"),
    _own("--log-format", "text|json", "form of the agent's own lines",
         "choice", "output.log_format"),
    _torch("--log-dir", "DIR", "where redirected output and error files go",
           "directory", "output.log_dir", "a temporary folder", key="call", may_be_empty=True),
    _own("--log-layout", "torchrun|rounds",
         "files under JOB[_NODE]_RANDOM/attempt_N/RANK, or JOB/NODE/round_N/RANK with a link"
         " latest",
         "choice", "output.log_layout"),
    _own("--log-max-bytes", "N[K|M|G]", "rotate log files at this size, keeping one old one",
         "bytes", "output.log_max_bytes", "never", most=MAX_NUMBER),
    _torch("--redirects", "SPEC",
           "to files: 0 none, 1 stdout, 2 stderr, 3 both; by local rank 0:1,1:3, by global g12:3",
           "streams", "output.redirects", short="-r", key="call"),
    _torch("--tee", "SPEC", "the same, to files and to the console",
           "streams", "output.tee", short="-t", key="call"),
    Setting("--logs-specs", "NAME", "plug-in that chooses the log files, by name",
            "logs_specs", "output.logs_specs", key="call"),
    _torch("--log-line-prefix-template", "TEXT",
           "prefix of each line of a teed stream; macros: ${role_name}, ${local_rank}, ${rank},"
           " ${hostname}",
           "template", "output.prefix_template", "[${role_name}${local_rank}]:", key="call",
           may_be_empty=True),
    _torch("--local-ranks-filter", "RANK,...",
           "only these local ranks print to the console; g12: global rank 12",
           "ranks", "output.local_ranks_filter", "all", key="call", may_be_empty=True),
    _torch("--duplicate-stdout-filters", "TEXT,...",
           "copy teed lines that contain one of these texts to one file per round; ,, is a comma",
           "texts", "output.duplicate_stdout_filters", key="call", may_be_empty=True),
    _torch("--duplicate-stderr-filters", "TEXT,...", "the same for stderr",
           "texts", "output.duplicate_stderr_filters", key="call", may_be_empty=True),
    _own("--explain", "",
         "print what this job would do, and where each value comes from; start nothing",
         "switch", of_one_agent=True),
    Setting("--print-completion", "bash|zsh|tcsh|fish",
            "print a script that completes options in this shell, and nothing else", "choice"),
)
WATCHING = (
    _torch("--event-log-handler", "NAME[:ARG]",
           "where events go: null, console, jsonl:FILE, or a package's handler",
           "event_handler", "observe.event_log_handler", key="call"),
    _own("--json-summary", "FILE|DIR/",
         "write the outcome as JSON to FILE at the end, or to a file in DIR named after the node",
         "file", "observe.json_summary", of_one_agent=True),
    _own("--history", "FILE|DIR/|none",
         "the hosting node appends the job's events to FILE, or to a file in DIR named after the "
         "job; rallypoint events FILE shows them. none: keep nothing after the job's end",
         "file", "observe.history", "a directory in your home, where rallypoint status looks",
         of_one_agent=True, key="call"),
    _own("--progress-pattern", "NAME|REGEX",
         "read steps from the workers' output: hf-trainer, lightning, megatron, torchtitan, "
         "accelerate, or a regular expression with (?P<step>...) and optionally total, loss, "
         "tokens",
         "pattern", "output.progress_pattern", "none", key="call"),
    _own("--export-run-id", "wandb|mlflow,...",
         "workers of all rounds log to one run of W&B or MLflow, named after --rdzv-id",
         "trackers", "workers.export_run_id", "none", repeatable=True),
    _own("--metrics-port", "[HOST:]PORT", "serve metrics for Prometheus there (HOST: 127.0.0.1)",
         "listen", "observe.metrics", of_one_agent=True),
)
TOKEN_FILE, TOKEN_FD = (
    _own("--token-file", "FILE", "the secret that nodes share",
         "path", "access.token_file", "~/.config/rallypoint/token", key="tcp",
         not_with_handler=True),
    _own("--token-fd", "N", "read that secret from the open file descriptor N, to its end",
         "integer", "access.token_fd", of_one_agent=True, not_with_handler=True),
)
ACCESS = (
    TOKEN_FILE,
    TOKEN_FD,
    _own("--insecure", "", "let every host that reaches the port take part",
         "switch", "access.insecure", key="tcp"),
    _own("--store-allow", "CIDR,...",
         "networks that may use the workers' store of this node, besides the job's nodes; "
         "repeatable",
         "networks", "access.store_networks", repeatable=True),
)
GROUPS: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("Nodes and workers", NODES_AND_WORKERS),
    ("Rendezvous", RENDEZVOUS),
    ("Fixed node ranks (instead of --rdzv-endpoint)", FIXED_RANKS),
    ("What runs", WHAT_RUNS),
    ("Failures", FAILURES),
    ("Stopping", STOPPING),
    ("Output", OUTPUT),
    ("Watching", WATCHING),
    ("Access", ACCESS),
)
"""The options of `rallypoint run`, in the order of its help."""

KEYS = (
    Setting("join_timeout", "SECONDS", "how long a forming round waits for missing nodes",
            "seconds", "rendezvous.join_timeout_s", least=MIN_SECONDS, key="any"),
    Setting("timeout", "SECONDS", "the same, as the static backend spells it; join_timeout wins",
            "seconds", least=MIN_SECONDS, key="any"),
    Setting("last_call_timeout", "SECONDS",
            "how long the first round waits for more than the minimum",
            "seconds", "rendezvous.last_call_s", least=MIN_SECONDS, key="any"),
    Setting("host_timeout", "SECONDS", "how long to wait for a node that hosts the coordinator",
            "seconds", "rendezvous.host_timeout_s", least=MIN_SECONDS, key="tcp"),
    Setting("is_host", "", "true: this node hosts the coordinator; false: it never does",
            "switch", "rendezvous.is_host", "the node that can bind the endpoint", key="tcp"),
    Setting("keep_alive_interval", "SECONDS",
            "times keep_alive_max_attempt: the lease, unless --lease is given",
            "seconds", default="5", least=MIN_SECONDS, key="any"),
    Setting("hold", "SECONDS",
            f"with {BY_REGISTER}: how long a leader may act after it has written its record",
            "seconds", "register.hold_s", least=HOLD_MIN_S, most=HOLD_MAX_S),
    Setting("keep_alive_max_attempt", "N", "see keep_alive_interval",
            "integer", default="3", least=1, most=MAX_GIVEN, key="any"),
    Setting("close_timeout", "SECONDS",
            "ignored; with a handler of the library: how long a node may take to stop its workers"
            " and come back",
            "seconds", default="30", least=MIN_SECONDS, key="any"),
    Setting("heartbeat_timeout", "SECONDS", "ignored", "seconds", least=MIN_SECONDS, key="any"),
    Setting("read_timeout", "SECONDS", "ignored", "seconds", least=MIN_SECONDS, key="tcp"),
    Setting("store_type", "tcp|file",
            "file: --rdzv-endpoint is a path that all nodes share, as with --rdzv-backend file",
            "choice", default="tcp"),
)
"""The settings without an option, given by `--rdzv-conf`; most are library parameters, too."""

_FURTHER = (
    *(Setting("", "N", "", "integer", target, words="--nnodes", least=1, most=MAX_NODES)
      for target in ("rendezvous.min_nodes", "rendezvous.max_nodes")),
    Setting("", "", "", "switch", "rendezvous.static", words="--node-rank or --rdzv-endpoint"),
    Setting("", "SECONDS", "", "seconds", "rendezvous.heartbeat_s",
            least=MIN_SECONDS, follows="lease_s"),
    Setting("", "SECONDS", "", "seconds", "rendezvous.join_settle_max_s"),
    Setting("", "PHASE=SECONDS", "", "phases", "rendezvous.hang_phases", words="--hang-timeout",
            least=MIN_SECONDS),
    Setting("token", "TEXT", "the secret itself", "text", "access.token_text", key="tcp"),
)
# fmt: on

FLAGS: dict[str, Setting] = {row.flag: row for _, rows in GROUPS for row in rows}
"""The options of `rallypoint run`, by flag."""
CONF: dict[str, Setting] = {row.name: row for row in KEYS}
SETTINGS = (*FLAGS.values(), *KEYS, *_FURTHER)
BY_FIELD: dict[str, Setting] = {row.field: row for row in SETTINGS if row.field}
NUMBERS = frozenset({"seconds", "integer", "nodes", "workers", "bytes", "exit_codes"})
RANGES: dict[str, tuple[float, float]] = {
    name: (BY_FIELD[name].least, BY_FIELD[name].most)
    for name in SharedSettings.__struct_fields__
    if BY_FIELD[name].kind in NUMBERS
}
"""The least and the largest value of the numbers that nodes agree on."""


def is_torchrun(row: Setting) -> bool:
    """Return whether torchrun has this option too."""
    return row.twin != "RALLYPOINT"


def parameters(*, without_coordinator: bool = False) -> dict[str, Setting]:
    """Return the parameters of the library's rendezvous handlers, by name.

    `without_coordinator`: only those of all handlers, not those of handlers with a coordinator.
    """
    return {
        row.name: row
        for row in SETTINGS
        if row.key == "any" or (row.key == "tcp" and not without_coordinator)
    }


def out_of_range(row: Setting, value: float) -> str:
    """Return the valid range if the number is outside, as `must be 1 to 4096`; else empty."""
    if row.least <= value <= row.most:
        return ""
    unit = " seconds" if row.kind == "seconds" and row.least else ""
    return f"must be {row.least:g} to {row.most:.0f}{unit}"
