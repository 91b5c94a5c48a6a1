"""A command line and an environment become a `AgentConfig`.

What was asked wins in this order: the command line, then `PET_*` or `RALLYPOINT_*`, then the
default. Everything that can be known to be wrong before a worker starts is refused here, in one
line that shows the value as it was written. Besides the default environment nothing of this
machine is looked at directly: `ThisHost` has the questions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import cast, get_args

from rallypoint.agent.environ import health_port_asked_for, own_device
from rallypoint.cli import values
from rallypoint.cli.access import check
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import (
    Command,
    CompletionRequested,
    ExplainRequested,
    Scanned,
    paragraph,
    parse,
)
from rallypoint.cli.run_options.empty_values import without_empty
from rallypoint.cli.run_options.fixed_ranks import without_fixed_ranks
from rallypoint.cli.run_options.placement import with_placement
from rallypoint.cli.run_options.rendezvous import Fields, Reading, has_no_effect, read_rendezvous
from rallypoint.cli.run_options.script import (
    interpreter,
    need_a_script,
    options_behind,
    worker_command,
)
from rallypoint.cli.run_options.stopping import read_stop
from rallypoint.cli.run_options.surroundings import with_surroundings
from rallypoint.cli.values import Given
from rallypoint.config import (
    AccessConfig,
    AffinityMode,
    AgentConfig,
    LogLevel,
    NumaOptions,
    ObserveConfig,
    OutputConfig,
    StartMethod,
    WorkerConfig,
    environ_token,
)
from rallypoint.config import default_of as field_default
from rallypoint.core.outcomes import exit_codes_help
from rallypoint.core.settings import (
    FLAGS,
    GROUPS,
    MAX_WORKERS_PER_NODE,
    UNNAMED_RUN_ID,
    Setting,
)
from rallypoint.core.task_variables import describes_task
from rallypoint.core.text import shown
from rallypoint.errors import UsageError
from rallypoint.observe.printing import print_error
from rallypoint.process.logs.plan import (
    check_ranks,
    colour_wanted,
    drawing_wanted,
    names_any,
    parse_std_map,
    rank_key,
)

_LOG_LEVELS = get_args(LogLevel)
_DEVICE_WORDS = ("cpu", "gpu", "xpu", "auto")


_TOP = """\
usage: rallypoint run [options] SCRIPT [its arguments]

Starts SCRIPT on every node, gives each worker its rank, and restarts the
workers when one of them or a node dies. Options go before SCRIPT.

  one machine, one worker per GPU (or per CPU)
    rallypoint run --nproc-per-node auto train.py

  two to four machines: the same line on each; node-a is any one of them
    rallypoint run --nnodes 2:4 --rdzv-endpoint node-a --max-restarts 3 train.py

  the same without a special node: all machines see the directory /shared/jobs
    rallypoint run --rdzv-backend file --rdzv-endpoint /shared/jobs \\
        --rdzv-id digits --nnodes 2:4 --max-restarts 3 train.py

  two machines with fixed ranks: K is 0 on node-a and 1 on the other
    rallypoint run --nnodes 2 --node-rank K --master-addr node-a train.py

  print the environment of each worker
    rallypoint run --nproc-per-node 2 --no-python env
"""

_BOTTOM = """\
Values in parentheses are defaults. Dashes and underscores are the same. Options
may also be variables: PET_NPROC_PER_NODE=2 is --nproc-per-node 2. Options that
torchrun does not have begin with RALLYPOINT_ there: RALLYPOINT_LEASE=30.

Environment:
  PYTHON_EXEC                     interpreter of the workers
  LOGLEVEL                        level of the agent's own lines
  OMP_NUM_THREADS                 if not set, 1 when there are several workers
  TORCH_ELASTIC_SHUTDOWN_TIMEOUT  default of --shutdown-timeout
  RALLYPOINT_TOKEN                the shared secret itself
  RALLYPOINT_ETCD_PASSWORD        password of the user=NAME in --rdzv-conf

""" + paragraph(exit_codes_help())


def _ignored(flag: str) -> Setting | None:
    """Return the option of this name, if some version of torch has it and it has no effect here.

    None: another name.
    """
    from rallypoint.torch_versions import without_effect

    known = without_effect("flag", flag)
    return Setting(flag, "VALUE" if known.takes_value else "") if known else None


RUN = Command("run", _TOP, GROUPS, _BOTTOM, ("SCRIPT",), runs_a_script=True, ignored=_ignored)


def default_of(row: Setting) -> str:
    """Return the default of an option of `run` in words; empty: none.

    It is the option's own text, or else the default of the configuration's field.
    """
    if row.default or not row.target or not row.metavar:
        return row.default
    default = field_default(row)
    if isinstance(default, Enum):
        return str(default.value)
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    if default is None:
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def parse_run(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    machine: ThisHost | None = None,
) -> AgentConfig:
    """Return the configuration for the words of `rallypoint run`, without these two words.

    Raises UsageError, HelpRequested, CompletionRequested or ExplainRequested, and
    RendezvousPlugInError for an unusable plug-in. May ask the worker's interpreter how many
    accelerators it sees (`--nproc-per-node auto`), which can take seconds.
    """
    environ = os.environ if environ is None else environ
    scanned = scan_run(argv, environ)
    return read_run(scanned, environ, machine or ThisHost(), options_behind(RUN, argv, scanned))


def scan_run(argv: Sequence[str], environ: Mapping[str, str]) -> Scanned:
    """Return the options of a command line and of the environment, as texts.

    Raises UsageError, HelpRequested or CompletionRequested.
    """
    scanned = without_empty(parse(RUN, argv, environ))
    if (shell := scanned.read(RUN, "--print-completion")) is not None:
        raise CompletionRequested(shell)
    return scanned


def read_run(
    scanned: Scanned, environ: Mapping[str, str], machine: ThisHost, remarks: Sequence[str] = ()
) -> AgentConfig:
    """Return the configuration of a scanned command line.

    The variables of options were read before; `environ` has other facts, such as a scheduler's.
    `remarks` are further lines for the user. Raises UsageError, RendezvousPlugInError for an
    unusable plug-in, and ExplainRequested for --explain.
    """
    notices = list(remarks)
    need_a_script(scanned)
    scanned = without_fixed_ranks(scanned, notices)
    scanned = with_surroundings(scanned, environ, machine, notices)
    scanned = with_placement(scanned, machine)
    reading = read_rendezvous(scanned, machine, notices)
    if (interval := scanned.get("--monitor-interval")) is not None:
        has_no_effect("flag", "--monitor-interval", interval.origin, notices)
    for flag in scanned.values.keys() - FLAGS.keys():
        has_no_effect("flag", flag, flag, notices)
    workers = _workers(reading, environ, machine, notices)
    output = _output(reading, environ, workers.count, machine, notices)
    stop = read_stop(reading, environ, machine.now(), notices)
    check(scanned.get("--token-fd"), scanned.get("--token-file"), insecure=scanned.on("--insecure"))
    config = AgentConfig(
        rendezvous=reading.rendezvous,
        output=output,
        stop=stop,
        access=read_access(reading, environ),
        observe=read_observe(reading, environ, machine, notices),
        workers=workers,
        notices=tuple(notices),
    )
    if scanned.on("--explain"):
        from rallypoint.cli.explain import explain

        raise ExplainRequested(tuple(explain(config, reading.scanned, environ)))
    return config


def read_access(reading: Reading, environ: Mapping[str, str] | None) -> AccessConfig:
    """Return the values of the options about the token, and the token in RALLYPOINT_TOKEN."""
    usual: Fields = {"token_text": environ_token(environ)}
    return AccessConfig(**usual | reading.fields["access"])


def read_observe(
    reading: Reading, environ: Mapping[str, str] | None, machine: ThisHost, notices: list[str]
) -> ObserveConfig:
    """Return the destinations of events and kept data, and the health port. Raises UsageError.

    Remarks are added to `notices`.
    """
    given, handler = reading.fields["observe"], reading.scanned.get("--event-log-handler")
    if handler is not None:
        given["event_log_handler"] = values.event_handler(handler, machine.event_handlers)
        if handler.text == "console":
            twice = "prints each event as JSON, beside the agent's own lines"
            notices.append(f"{handler.origin} {twice}; jsonl:FILE keeps them apart")
    if given.get("history") == "none":
        given["history"] = None
    else:
        given["keep_in"] = machine.kept_jobs()
    return ObserveConfig(**given, health_port=health_port_asked_for(environ))


def _output(
    reading: Reading,
    environ: Mapping[str, str],
    workers: int,
    machine: ThisHost,
    notices: list[str],
) -> OutputConfig:
    ranks, specs = map(reading.scanned.get, ("--local-ranks-filter", "--logs-specs"))
    template = environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or None
    usual: Fields = {"prefix_template": template}
    output = OutputConfig(
        **usual | reading.fields["output"],
        log_level=_log_level(environ),
        temp_dir=environ.get("TMPDIR") or "/tmp",
        colour=colour_wanted(
            is_terminal=True, no_color=environ.get("NO_COLOR"), term=environ.get("TERM")
        ),
        draws=drawing_wanted(term=environ.get("TERM")),
        local_ranks_filter=_ranks(ranks, workers) if ranks else None,
        logs_specs=_specs(specs, machine.logs_specs) if specs else "default",
    )
    filed = names_any(parse_std_map(output.redirects, workers, flag="--redirects"))
    teed = names_any(parse_std_map(output.tee, workers, flag="--tee"))
    if output.logs_specs == "default":
        notices += _without_effect(output, filed=filed or teed, teed=teed)
    return output


def _without_effect(output: OutputConfig, *, filed: bool, teed: bool) -> list[str]:
    """Return remarks on options about output that have no effect.

    `filed` and `teed`: whether an output of any worker goes to a file, and whether one is teed.
    """
    remarks = []
    if not teed:
        for name, texts in (
            ("--duplicate-stdout-filters", output.duplicate_stdout_filters),
            ("--duplicate-stderr-filters", output.duplicate_stderr_filters),
        ):
            if texts:
                remarks.append(f"{name} copies teed lines, and --tee is not given")
    if output.log_max_bytes and not filed:
        remarks.append("--log-max-bytes is about files, and neither --redirects nor --tee is given")
    return remarks


def _ranks(given: Given, workers: int) -> tuple[int | str, ...] | None:
    """Parse local and global ranks, separated by commas; None, no filter, for an empty value."""
    if not given.text.strip():
        return None
    found = []
    for part in given.text.split(","):
        rank = rank_key(part)
        if rank is None:
            raise given.wrong("needs local ranks, for example 0,2, or global ones, as in g12")
        found.append(rank)
    check_ranks(found, workers, given.origin)
    return tuple(found)


def _specs(given: Given, known: Callable[[], Sequence[str]]) -> str:
    if given.text == "default":
        return "default"
    offered = known()
    if given.text not in offered:
        near = values.nearest(given.text, offered)
        raise given.wrong(f"no package offers it; there are: {', '.join(offered)}{near}")
    return given.text


def _log_level(environ: Mapping[str, str]) -> LogLevel:
    given = environ.get("LOGLEVEL", "")
    word = given.strip().upper() or "INFO"
    if word not in _LOG_LEVELS:
        raise UsageError(f"LOGLEVEL={shown(given)}: needs one of {', '.join(_LOG_LEVELS)}")
    return cast(LogLevel, word)


def _workers(
    reading: Reading, environ: Mapping[str, str], machine: ThisHost, notices: list[str]
) -> WorkerConfig:
    given, scanned = reading.fields["workers"], reading.scanned
    argv = worker_command(scanned, environ, machine)
    preload, numa = scanned.get("--preload"), given.pop("numa", None)
    method = given.pop("start_method", None)
    if preload is not None and scanned.on("--no-python") and not scanned.on("--run-path"):
        raise preload.wrong("has no effect with --no-python: a program imports for itself")
    given["unbuffered"] = scanned.get("--progress-pattern") is not None
    export = scanned.get("--export-run-id")
    if export is not None and reading.rendezvous.run_id == UNNAMED_RUN_ID:
        raise export.wrong("needs --rdzv-id: without it, all jobs would log to one run")
    # Before the agent has a console: a person who waits is told why, a program with the rest.
    is_silent = scanned.on("--quiet") or scanned.get("--log-format") is not None
    tell = notices.append if is_silent else _tell_at_once
    count = read_count(scanned.get("--nproc-per-node"), environ, machine, tell)
    given["count"] = count
    given["devices"] = count_devices(count, reading, machine, environ)
    if count > 1 and "OMP_NUM_THREADS" not in environ:
        given["omp_threads"] = 1
        notices.append(f"OMP_NUM_THREADS is not set: each of the {count} workers gets 1")
    if given.get("virtual_local_rank"):
        own_device(environ, 0, count)
    notices += [
        f"--keep-env {shown(name)} has no effect: workers get that variable in any case"
        for name in given.get("keep_env", ())
        if name.isidentifier() and not describes_task(name)
    ]
    # As with torchrun, the start method has no meaning for a script or a module: they are commands.
    by_path = method and scanned.on("--run-path")
    return WorkerConfig(
        **given,
        argv=argv,
        start_method=StartMethod(method) if by_path else None,
        numa=NumaOptions(AffinityMode(numa)) if numa else None,
    )


def count_devices(
    workers: int, reading: Reading, machine: ThisHost, environ: Mapping[str, str] | None
) -> int:
    """Return the number of this node's GPUs to report to JAX, if one worker is to use them all.

    Returns 0 if there are more workers, or they do not get JAX's variables. Blocks for as long as a
    driver takes.
    """
    if workers > 1 or "jax" not in reading.rendezvous.env_styles:
        return 0
    return machine.count_gpus(os.environ if environ is None else environ)


def _tell_at_once(line: str) -> None:
    print_error("rallypoint", line)


def read_count(
    given: Given | None,
    environ: Mapping[str, str],
    machine: ThisHost,
    tell: Callable[[str], None] = _tell_at_once,
) -> int:
    """Return the number of workers on this node, 1 without `given`. Raises UsageError.

    `given` is the value of --nproc-per-node. `tell` is called with a line for the user if torch has
    to be asked, which takes seconds.
    """
    if given is None:
        return 1
    word = given.text.strip()
    if word.removeprefix("-").isdecimal():
        count = values.integer(given)
        if count < 1:
            raise given.wrong("needs 1 or more workers")
        if count > MAX_WORKERS_PER_NODE:
            raise given.wrong(f"must be 1..{MAX_WORKERS_PER_NODE} workers")
        return count
    if word not in _DEVICE_WORDS:
        raise given.wrong(f"needs a number, or one of {', '.join(_DEVICE_WORDS)}")
    count = machine.count_workers(word, interpreter(environ, machine), environ, tell)
    if count < 1:
        raise given.wrong(f"no {word} is visible on this node; use cpu, or a number")
    return count
