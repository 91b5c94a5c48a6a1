"""Every option of `rallypoint run`: one table that the scanner and the help are both made from.

Pure data. The first thirty are torchrun's, under their own names; a value may also come from the
environment as `PET_<NAME>` (torchrun's options) or `RALLYPOINT_<NAME>` (new ones).
"""

from __future__ import annotations

from msgspec import Struct


class Flag(Struct, frozen=True):
    """One option. `metavar` is empty for a switch."""

    name: str
    metavar: str
    about: str
    short: str = ""
    twin: str = "PET"
    repeatable: bool = False

    @property
    def env_name(self) -> str:
        """The variable that gives a value when the command line does not; empty: none does."""
        return f"{self.twin}_{self.name[2:].replace('-', '_').upper()}" if self.twin else ""


def _new(name: str, metavar: str, about: str, *, repeatable: bool = False) -> Flag:
    return Flag(name, metavar, about, twin="RALLYPOINT", repeatable=repeatable)


NODES_AND_WORKERS = (
    Flag("--nnodes", "N|MIN:MAX", "nodes of the job; MIN:MAX lets it shrink and grow (1)"),
    Flag(
        "--nproc-per-node",
        "N|cpu|gpu|xpu|auto",
        "workers on this node; auto: one per accelerator, else one per CPU (1)",
    ),
    Flag("--standalone", "", "this node alone: no other node can join"),
    Flag("--role", "NAME", "name of this node's kind of worker (default)"),
)

MEETING = (
    Flag("--rdzv-endpoint", "HOST[:PORT]", "where the nodes meet; one of them hosts it (:29400)"),
    Flag("--rdzv-id", "ID", "name of the job, equal on all its nodes (none; random when alone)"),
    Flag("--rdzv-backend", "NAME", "tcp, its old name c10d, static, file, or of a package (tcp)"),
    Flag(
        "--rdzv-conf",
        "K=V,...",
        "join_timeout (600 s), last_call_timeout (30 s), host_timeout (30 s), is_host (whoever can"
        " bind the endpoint), and torchrun's other keys",
    ),
    Flag(
        "--local-addr",
        "ADDR",
        "address by which the other nodes reach this one (its connection's own)",
    ),
    _new("--join-settle", "SECONDS", "admit late nodes when none has come for so long (10)"),
    _new("--min-growth-interval", "SECONDS", "let a younger round run on undisturbed (60)"),
    _new(
        "--on-join",
        "restart|hold|at-checkpoint",
        "late nodes: regrow at once, at the next restart, or when the workers have saved a"
        " checkpoint that they were asked for (restart)",
    ),
    _new(
        "--max-node-losses",
        "N",
        "rounds per hour that may end by the loss of nodes, however many each; one more ends the"
        " job (10)",
    ),
    _new(
        "--stop-patience",
        "SECONDS",
        "more time, after --restart-grace, for nodes to stop their workers when more than two (and"
        " 5 %) are slow at once; then they are expelled (60)",
    ),
    _new("--node-id", "NAME", "name of this node (its host name and a number)"),
    _new("--topology", "KEY", "rank nodes by this first, for example rack-07"),
)

FIXED_RANKS = (
    Flag("--node-rank", "K", "this node's rank; node 0 is where the others meet (0)"),
    Flag("--master-addr", "ADDR", "address of node 0 (127.0.0.1)"),
    Flag("--master-port", "PORT", "port there (29500); else: the port of the workers' store"),
)

WHAT_RUNS = (
    Flag("--module", "", "SCRIPT is a module, as in python -m", short="-m"),
    Flag("--no-python", "", "SCRIPT is a program, not a Python script"),
    Flag("--run-path", "", "run SCRIPT by runpy.run_path in the worker's interpreter"),
    Flag(
        "--start-method",
        "spawn|forkserver|fork",
        "where workers of --run-path come from: exec'd, or forks of a process (spawn)",
    ),
    _new(
        "--preload",
        "MODULE,...",
        "import these once and fork the workers from there: a restart costs milliseconds",
    ),
    Flag(
        "--virtual-local-rank",
        "",
        "each worker sees only its own device (CUDA_VISIBLE_DEVICES), and LOCAL_RANK 0",
    ),
    Flag(
        "--numa-binding",
        "node|socket|exclusive|core-complex",
        "run each worker on CPUs near its GPU; without GPUs the workers are spread over the nodes",
        twin="",
    ),
)

FAILURES = (
    Flag("--max-restarts", "N", "worker failures that are healed, over the whole job (0)"),
    _new(
        "--hang-timeout",
        "SECONDS",
        "a worker that calls rallypoint.worker.progress and then is silent for so long has failed"
        " (never)",
    ),
    _new(
        "--restart-window", "SECONDS", "count only the failures of the last so many seconds (all)"
    ),
    _new("--restart-backoff", "SECONDS", "pause before a restart, doubled each time (0)"),
    _new("--no-restart-on", "CODE,...", "exit codes that end the job at once (none)"),
    _new("--lease", "SECONDS", "silence after which a node is lost (15)"),
    _new(
        "--reconnect-grace",
        "SECONDS",
        "how long a node may take to come back whose connection was closed, as by a crash or a"
        " shutdown (1)",
    ),
    _new(
        "--reset-grace",
        "SECONDS",
        "the same when its connection was cut on the way, as by a firewall (a third of the lease)",
    ),
    _new(
        "--reconnect-timeout",
        "SECONDS",
        "how long to look for a lost coordinator, at least the lease, when the workers are killed"
        " (120 if it is silent, the lease if it refuses)",
    ),
)

STOPPING = (
    Flag("--shutdown-timeout", "SECONDS", "grace from SIGTERM to SIGKILL when the job stops (25)"),
    _new("--restart-grace", "SECONDS", "the same when workers are restarted (5)"),
    Flag("--signals-to-handle", "NAME,...", "that stop the job (SIGTERM,SIGINT,SIGHUP,SIGQUIT)"),
    _new(
        "--drain-deadline",
        "SECONDS",
        "when this node is told to go: the time in all for a last checkpoint of the job, and for"
        " its workers to stop, until SIGKILL (--shutdown-timeout)",
    ),
    _new("--drain-signal", "NAME", "asks workers for that checkpoint, besides rallypoint.worker"),
    _new(
        "--preempt-notice",
        "FILE|cmd:COMMAND",
        "this node is to go when FILE appears, or COMMAND ends with 0 (run every 5 s)",
    ),
    Flag("--monitor-interval", "SECONDS", "accepted: nothing polls"),
    _new(
        "--exit-code",
        "CLASS=N",
        "exit code for success, failed, usage, infrastructure (0, 1, 2, 75) or already-succeeded"
        " (0: nothing was started, for the job had succeeded before); repeatable",
        repeatable=True,
    ),
)

OUTPUT = (
    _new(
        "--output",
        "auto|inherit|prefix",
        "workers' output untouched, or line by line with rank; auto: the latter at a terminal with"
        " several workers (auto)",
    ),
    _new("--quiet", "", "say nothing unless something fails"),
    _new(
        "--report",
        "auto|all|rank0|none",
        "nodes that print the whole report of a failure; the others print one line; auto: all of up"
        " to four nodes, else rank 0's and that of the failed worker (auto)",
    ),
    _new("--log-format", "text|json", "form of the agent's own lines (text)"),
    Flag("--log-dir", "DIR", "where redirected output and error files go (a temporary folder)"),
    _new(
        "--log-layout",
        "torchrun|rounds",
        "files under JOB_RANDOM/attempt_N/RANK, or JOB/NODE/round_N/RANK with a link latest"
        " (torchrun)",
    ),
    _new(
        "--log-max-bytes", "N[K|M|G]", "rotate log files at this size, keeping one old one (never)"
    ),
    Flag(
        "--redirects",
        "SPEC",
        "to files: 0 none, 1 stdout, 2 stderr, 3 both; by local rank 0:1,1:3, by global g12:3 (0)",
        "-r",
    ),
    Flag("--tee", "SPEC", "the same, to files and to the console (0)", "-t"),
    Flag("--logs-specs", "NAME", "a package's way to place files (default)", twin=""),
    Flag(
        "--local-ranks-filter",
        "RANK,...",
        "only these reach the console; g12: global rank 12 (all)",
    ),
    Flag(
        "--duplicate-stdout-filters",
        "TEXT,...",
        "copy teed lines with one of these to one file per round; two commas stand for one",
    ),
    Flag("--duplicate-stderr-filters", "TEXT,...", "the same for stderr"),
)

WATCHING = (
    Flag(
        "--event-log-handler",
        "NAME[:ARG]",
        "who gets an event for all that happens: null, console, jsonl:FILE, or of a package (null)",
    ),
    _new("--json-summary", "FILE", "write the whole outcome to FILE at the end"),
    _new("--metrics-port", "[HOST:]PORT", "serve metrics for Prometheus there (HOST: 127.0.0.1)"),
)

ACCESS = (
    _new("--token-file", "FILE", "the secret that nodes share (~/.config/rallypoint/token)"),
    _new("--token-fd", "N", "read that secret from the open file descriptor N, to its end"),
    _new("--insecure", "", "let anybody who reaches the port take part"),
    _new(
        "--store-allow",
        "CIDR,...",
        "networks that may use this node's workers' store, besides the job's nodes; repeatable",
        repeatable=True,
    ),
)

GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    ("Nodes and workers", NODES_AND_WORKERS),
    ("Where nodes meet", MEETING),
    ("Fixed node ranks (instead of --rdzv-endpoint)", FIXED_RANKS),
    ("What runs", WHAT_RUNS),
    ("Failures", FAILURES),
    ("Stopping", STOPPING),
    ("Output", OUTPUT),
    ("Watching", WATCHING),
    ("Access", ACCESS),
)

FLAGS: dict[str, Flag] = {flag.name: flag for _, group in GROUPS for flag in group}
SHORT: dict[str, Flag] = {flag.short: flag for flag in FLAGS.values() if flag.short}


def is_torchrun(flag: Flag) -> bool:
    """True for the thirty that torchrun has too."""
    return flag.twin != "RALLYPOINT"
