"""A command line and an environment become a `AgentConfig`.

What was asked wins in this order: the command line, then `PET_*` or `RALLYPOINT_*`, then the
default. Everything that can be known to be wrong before a worker starts is refused here, in one
line that shows the value as it was written. Besides the default environment nothing of this
machine is looked at directly: `Machine` has the questions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from rallypoint.agent.environ import VISIBLE_DEVICES, own_device
from rallypoint.cli import values
from rallypoint.cli.access import check, environ_token
from rallypoint.cli.many_copies import refuse_copies
from rallypoint.cli.output_options import read_output
from rallypoint.cli.scan import Scanned, Value, scan
from rallypoint.cli.verdict import CLASSES
from rallypoint.cli.where_to_meet import read_rendezvous
from rallypoint.config import (
    AccessConfig,
    AffinityMode,
    AgentConfig,
    NumaOptions,
    ObserveConfig,
    RestartConfig,
    StartMethod,
    StopConfig,
    WorkerConfig,
)
from rallypoint.core.wording import shown
from rallypoint.errors import UsageError
from rallypoint.process.prepared.command_line import RUN_PATH

_DEVICE_WORDS = ("cpu", "gpu", "xpu", "auto")


class Machine(Struct, frozen=True):
    """The questions that a command line asks of this machine; tests answer them themselves."""

    count_workers: Callable[[str, str, Mapping[str, str]], int]
    """(cpu | gpu | xpu | auto, interpreter, environment) -> workers; 0: no such device."""
    find_program: Callable[[str], str | None]
    script_exists: Callable[[str], bool]
    """Whether Python could run it: a file, or a directory with a __main__.py."""
    random_id: Callable[[], str]
    interpreter: str
    handlers: Callable[[], Sequence[str]] = lambda: ("file",)
    """The rendezvous backends that are known besides the coordinator's."""
    logs_specs: Callable[[], Sequence[str]] = lambda: ("default",)
    """The names that --logs-specs takes."""
    event_handlers: Callable[[], Sequence[str]] = lambda: values.EVENT_HANDLERS
    path_kind: Callable[[str], str] = lambda path: ""
    """`file`, `directory` or nothing: for a better word on a mistake."""


def this_machine() -> Machine:
    """Asks the real one, each answer looked up only when it is needed."""
    import sys

    return Machine(
        count_workers=_count_workers,
        find_program=_find_program,
        script_exists=_script_exists,
        random_id=_random_id,
        interpreter=sys.executable,
        handlers=_handlers,
        logs_specs=_logs_specs,
        event_handlers=_event_handlers,
        path_kind=_path_kind,
    )


def parse_run(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    machine: Machine | None = None,
) -> AgentConfig:
    """Reads `rallypoint run`'s words (without the program's and the command's name).

    Raises UsageError, or HelpRequested for --help. May ask the worker's interpreter how many
    accelerators it sees (`--nproc-per-node auto`), which can take seconds.
    """
    environ = os.environ if environ is None else environ
    machine = machine or this_machine()
    scanned = scan(argv, environ)
    notices: list[str] = []
    refuse_copies(scanned, environ, notices)
    rendezvous = read_rendezvous(scanned, machine.random_id, notices, machine.handlers)
    _monitor_interval(scanned.get("--monitor-interval"))
    workers = _workers(scanned, environ, machine, notices)
    output = read_output(scanned, environ, workers.count, machine.logs_specs, notices)
    return AgentConfig(
        rendezvous=rendezvous,
        restart=_restart(scanned),
        output=output,
        stop=_stop(scanned, environ),
        access=_access(scanned, environ),
        observe=_observe(scanned, machine),
        workers=workers,
        notices=tuple(notices),
    )


def _restart(scanned: Scanned) -> RestartConfig:
    budget, window = scanned.get("--max-restarts"), scanned.get("--restart-window")
    backoff, final = scanned.get("--restart-backoff"), scanned.get("--no-restart-on")
    hang = scanned.get("--hang-timeout")
    if budget is not None and values.integer(budget) < 0:
        raise budget.wrong("needs 0 or more")
    return RestartConfig(
        max_restarts=values.integer(budget) if budget else 0,
        window_s=values.seconds(window, positive=True) if window else None,
        backoff_s=values.seconds(backoff) if backoff else 0.0,
        no_restart_exit_codes=values.exit_codes(final) if final else (),
        hang_timeout_s=values.seconds(hang, positive=True) if hang else 0.0,
    )


def _stop(scanned: Scanned, environ: Mapping[str, str]) -> StopConfig:
    grace, restart = scanned.get("--shutdown-timeout"), scanned.get("--restart-grace")
    fallback = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")
    if grace is None and fallback:
        grace = Value(fallback, f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={fallback}")
    default, signals = StopConfig(), scanned.get("--signals-to-handle")
    deadline, notice = scanned.get("--drain-deadline"), scanned.get("--preempt-notice")
    drain_signal = scanned.get("--drain-signal")
    return StopConfig(
        drain_deadline_s=values.seconds(deadline) if deadline else None,
        drain_signal=values.one_signal(drain_signal) if drain_signal else "",
        preempt_notice=values.preempt_notice(notice) if notice else "",
        shutdown_grace_s=values.seconds(grace) if grace else default.shutdown_grace_s,
        restart_grace_s=values.seconds(restart) if restart else default.restart_grace_s,
        signals=values.signal_names(signals) if signals else default.signals,
        exit_codes=tuple(values.exit_override(v, CLASSES) for v in scanned.all("--exit-code")),
    )


def _access(scanned: Scanned, environ: Mapping[str, str]) -> AccessConfig:
    token_fd, token_file = scanned.get("--token-fd"), scanned.get("--token-file")
    insecure = scanned.on("--insecure")
    check(token_fd, token_file, insecure=insecure)
    return AccessConfig(
        token_file=token_file.text if token_file else None,
        token_text=environ_token(environ),
        token_fd=values.integer(token_fd) if token_fd else None,
        insecure=insecure,
        store_networks=tuple(n for v in scanned.all("--store-allow") for n in values.networks(v)),
    )


def _observe(scanned: Scanned, machine: Machine) -> ObserveConfig:
    handler, summary = scanned.get("--event-log-handler"), scanned.get("--json-summary")
    metrics, default = scanned.get("--metrics-port"), ObserveConfig()
    return ObserveConfig(
        event_log_handler=values.event_handler(handler, machine.event_handlers)
        if handler
        else default.event_log_handler,
        json_summary=values.file_to_write(summary) if summary else None,
        metrics=values.listen_at(metrics) if metrics else None,
    )


def _monitor_interval(given: Value | None) -> None:
    """Checked, so that a mistake shows; then unused, since nothing polls."""
    if given is not None:
        values.seconds(given)


def _workers(
    scanned: Scanned, environ: Mapping[str, str], machine: Machine, notices: list[str]
) -> WorkerConfig:
    role = scanned.get("--role")
    argv = _worker_command(scanned, environ, machine)
    method, preload = scanned.get("--start-method"), scanned.get("--preload")
    if preload is not None and scanned.on("--no-python") and not scanned.on("--run-path"):
        raise preload.wrong("has no effect with --no-python: a program imports for itself")
    chosen = StartMethod(values.choice(method, [m.value for m in StartMethod])) if method else None
    count = _count(scanned.get("--nproc-per-node"), environ, machine)
    omp_threads = None
    if count > 1 and "OMP_NUM_THREADS" not in environ:
        omp_threads = 1
        notices.append(f"OMP_NUM_THREADS is not set: each of the {count} workers gets 1")
    return WorkerConfig(
        argv=argv,
        # As with torchrun, of no meaning for a script or a module, which are commands.
        start_method=chosen if scanned.on("--run-path") else None,
        preload=values.module_names(preload) if preload else (),
        count=count,
        role=role.text if role else "default",
        omp_threads=omp_threads,
        virtual_local_rank=_virtual_local_rank(scanned, environ, count),
        numa=_numa(scanned.get("--numa-binding")),
    )


def _numa(mode: Value | None) -> NumaOptions | None:
    if mode is None:
        return None
    return NumaOptions(AffinityMode(values.choice(mode, [m.value for m in AffinityMode])))


def _virtual_local_rank(scanned: Scanned, environ: Mapping[str, str], workers: int) -> bool:
    if not scanned.on("--virtual-local-rank"):
        return False
    own_device(environ.get(VISIBLE_DEVICES), 0, workers)
    return True


def _count(given: Value | None, environ: Mapping[str, str], machine: Machine) -> int:
    if given is None:
        return 1
    word = given.text.strip()
    if word.removeprefix("-").isdecimal():
        count = values.integer(given)
        if count < 1:
            raise given.wrong("needs 1 or more workers")
        return count
    if word not in _DEVICE_WORDS:
        raise given.wrong(f"needs a number, or one of {', '.join(_DEVICE_WORDS)}")
    count = machine.count_workers(word, _interpreter(environ, machine), environ)
    if count < 1:
        raise given.wrong(f"no {word} is visible on this node; use cpu, or a number")
    return count


def _worker_command(
    scanned: Scanned, environ: Mapping[str, str], machine: Machine
) -> tuple[str, ...]:
    """The worker's argv: torchrun's `python -u [-m] script args`, or the program itself."""
    module, bare = scanned.on("--module"), scanned.on("--no-python")
    by_path = scanned.on("--run-path")
    if module and (bare or by_path):
        other = "--no-python" if bare else "--run-path"
        raise UsageError(f"--module with {other}: a module is run by Python's -m; give one of them")
    if not scanned.command:
        for name, given in scanned.values.items():
            if given[-1].text.endswith(".py"):
                raise UsageError(
                    f"the script is missing: {name} took {given[-1].text} as its value; "
                    f"give {name} its own, or leave it out"
                )
        raise UsageError(
            "the script is missing; for example: rallypoint run --nproc-per-node 2 train.py"
        )
    script, arguments = scanned.command[0], scanned.command[1:]
    if not script:
        raise UsageError("'': the script's name is empty; for example: rallypoint run train.py")
    if bare and not by_path:
        if machine.find_program(script) is None:
            raise UsageError(f"{shown(script)}: {_why_no_program(script, machine)}")
        return (script, *arguments)
    if not module and not machine.script_exists(script):
        raise UsageError(f"{shown(script)}: {_why_no_script(script, machine)}")
    python = (_interpreter(environ, machine), "-u")
    if module:
        return (*python, "-m", script, *arguments)
    if by_path:
        return (*python, "-c", RUN_PATH, script, *arguments)
    return (*python, script, *arguments)


def _why_no_program(program: str, machine: Machine) -> str:
    kind = machine.path_kind(program)
    if kind == "directory":
        return "a directory, not a program"
    if kind and "/" not in program:
        return f"no such program in PATH; for the one in this directory: ./{program}"
    if kind:
        return "may not be executed: chmod +x it, or name its interpreter first"
    return "no such program; check its path, or PATH"


def _why_no_script(script: str, machine: Machine) -> str:
    if machine.path_kind(script) == "directory":
        return "a directory without a __main__.py; name the script in it"
    return "no such file" + ("; it looks like a module: add -m" if _is_module_name(script) else "")


def _is_module_name(script: str) -> bool:
    return not script.endswith(".py") and all(word.isidentifier() for word in script.split("."))


def _interpreter(environ: Mapping[str, str], machine: Machine) -> str:
    chosen = environ.get("PYTHON_EXEC", "")
    if chosen and machine.find_program(chosen) is None:
        raise UsageError(f"PYTHON_EXEC={shown(chosen)}: no such program")
    return chosen or machine.interpreter


def _find_program(name: str) -> str | None:
    from shutil import which

    return which(name)


def _script_exists(path: str) -> bool:
    return os.path.exists(os.path.join(path, "__main__.py") if os.path.isdir(path) else path)


def _path_kind(path: str) -> str:
    if os.path.isdir(path):
        return "directory"
    return "file" if os.path.exists(path) else ""


def _handlers() -> Sequence[str]:
    from rallypoint.rendezvous.registry import known_backends

    return known_backends()


def _logs_specs() -> Sequence[str]:
    from rallypoint.process.logs.specs import known_logs_specs

    return known_logs_specs()


def _event_handlers() -> Sequence[str]:
    from rallypoint.observe.event_handlers import known_event_handlers

    return known_event_handlers()


def _count_workers(word: str, interpreter: str, environ: Mapping[str, str]) -> int:
    from rallypoint.cli.devices import count_workers

    return count_workers(word, interpreter, environ)


def _random_id() -> str:
    """Short enough to read aloud: `job-` and 40 random bits in base 32."""
    bits = int.from_bytes(os.urandom(5), "big")
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return "job-" + "".join(letters[bits >> shift & 31] for shift in range(35, -1, -5))
