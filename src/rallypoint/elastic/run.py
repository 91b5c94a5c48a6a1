"""`torch.distributed.run` for a program: a command line becomes a `LaunchConfig`, and a job.

    from rallypoint.elastic.run import config_from_args, elastic_launch, parse_args

    config, command, arguments = config_from_args(parse_args(["--nproc-per-node", "2", "train.py"]))
    elastic_launch(config, command)(*arguments)

`run(args)` is these two steps, `main(words)` all three. A program that has its own options adds
them to the parser of `get_args_parser`, or copies that one's; a namespace may lack any of them.
The options are those that `LaunchConfig` can say: torchrun's, and what a rendezvous has besides.
`python -m rallypoint.elastic.run` is the command `rallypoint run`, which has all of them.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # First: what a program needs, the command does not.
    from rallypoint.cli.main import main as command

    raise SystemExit(command(["run", *sys.argv[1:]]))

import argparse
import logging
import os
import runpy
from argparse import REMAINDER
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NoReturn

from rallypoint.agent.output_files import logs_specs
from rallypoint.cli.completion import SHELLS, script
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.options import RUN, read_count, read_run, scan_run
from rallypoint.cli.parser import CompletionRequested, HelpRequested, Scanned, parse
from rallypoint.cli.run_options.empty_values import is_empty, refuse_empty
from rallypoint.cli.run_options.rendezvous import read_rendezvous
from rallypoint.cli.values import Given, given, nodes, read, texts, truth
from rallypoint.config import (
    ANY_PORTS,
    DEFAULT_STATIC_PORT,
    AgentConfig,
    RendezvousConfig,
    StopConfig,
)
from rallypoint.core.settings import FLAGS, Setting, is_torchrun, parameters
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.utils.api import macros
from rallypoint.errors import CommandLineError, RuntimeParameterError, UsageError
from rallypoint.observe.printing import print_error, print_text, write_text
from rallypoint.process.logs.plan import Std
from rallypoint.process.logs.specs import DefaultLogsSpecs, LogsSpecs
from rallypoint.register.engines import PASSWORD
from rallypoint.worker.error_file import record

__all__ = [
    "DefaultLogsSpecs",
    "LaunchConfig",
    "LogsSpecs",
    "REMAINDER",
    "Std",
    "config_from_args",
    "determine_local_world_size",
    "elastic_launch",
    "get_args_parser",
    "get_rdzv_endpoint",
    "get_use_env",
    "macros",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "record",
    "run",
    "run_script_path",
]

_SCRIPT, _ARGUMENTS = "training_script", "training_script_args"
_FIELDS = frozenset(field.name for field in fields(LaunchConfig))
_OPTIONS = {
    row.name: row
    for row in FLAGS.values()
    if is_torchrun(row) or row.key or row.name in _FIELDS
    if row.name != "print_completion"
}
"""The options that a namespace has, by the name of their attribute in it."""
_ABSENT: Mapping[str, Any] = {
    "nnodes": "1:1",
    "nproc_per_node": "1",
    "rdzv_backend": "tcp",
    "rdzv_endpoint": "",
    "rdzv_id": "none",
    "rdzv_conf": "",
    "max_restarts": 0,
    "monitor_interval": 0.1,
    "start_method": "spawn",
    "event_log_handler": "null",
    "role": "default",
    "redirects": "0",
    "tee": "0",
    "log_line_prefix_template": "",
    "local_ranks_filter": "",
    "duplicate_stdout_filters": [],
    "duplicate_stderr_filters": [],
    "node_rank": 0,
    "master_addr": "127.0.0.1",
    "signals_to_handle": ",".join(StopConfig().signals),
}
"""The values of absent options in torch's namespace, which programs read.

A value of this table means the same as an absent option. Options that are not in it are None, or
False for a switch.
"""

_AS_PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "choice": lambda value: value.value,
    "signals": ",".join,
    "texts": list,
}
"""The functions that turn a setting's value into a `LaunchConfig` parameter, by kind of setting."""

_log = logging.getLogger("rallypoint")


def get_args_parser() -> argparse.ArgumentParser:
    """Return a parser of the command line.

    Each option's default is its variable in the environment (`PET_<NAME>`), if that is set. Raises
    UsageError for a variable that can't be used.
    """
    parser = argparse.ArgumentParser(
        prog="rallypoint.elastic.run", description="Starts SCRIPT on every node.", allow_abbrev=True
    )
    given = _from_variables(os.environ)
    for row in _OPTIONS.values():
        spelled = dict.fromkeys((row.flag, "--" + row.name))
        names = [*([row.short] if row.short else []), *spelled]
        about = row.about.replace("%", "%%")
        default = given.get(row.name, _absent(row))
        if not row.metavar:
            parser.add_argument(*names, action="store_true", default=default, help=about)
            continue
        parser.add_argument(
            *names, default=default, help=about, type=_reader(row), metavar=row.metavar
        )
    parser.add_argument(
        *("--print-completion", "--print_completion"),
        action=_PrintScript,
        choices=SHELLS,
        help=FLAGS["--print-completion"].about,
    )
    parser.add_argument(_SCRIPT, metavar="SCRIPT", help="what each worker runs")
    parser.add_argument(_ARGUMENTS, nargs=REMAINDER, help="its arguments")
    return parser


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line (default: the process's own), as `rallypoint run` does.

    Raises SystemExit as a parser of `argparse` does: status 0 after --help or --print-completion,
    else status 2 after one line on what is wrong. The latter is a CommandLineError, which is a
    ValueError and a RuntimeError too: torch raises these for values, when it uses them.
    """
    words, machine = sys.argv[1:] if args is None else [*map(str, args)], ThisHost()
    try:
        scanned = _scan(words)
        read_rendezvous(scanned, machine, [])
    except HelpRequested:
        print_text(*get_args_parser().format_help().splitlines())
        raise SystemExit(0) from None
    except CompletionRequested as wanted:
        write_text(script(wanted.args[0]))
        raise SystemExit(0) from None
    except UsageError as error:
        end_with(error)
    found = {row.name: _absent(row) for row in _OPTIONS.values()} | {"print_completion": None}
    for flag, values in scanned.values.items():
        row = FLAGS.get(flag)
        if row and row.name in _OPTIONS:
            found[row.name] = _typed(row, values[-1])
    found[_SCRIPT], *found[_ARGUMENTS] = scanned.words
    return argparse.Namespace(**found)


def config_from_args(args: argparse.Namespace) -> tuple[LaunchConfig, str, list[str]]:
    """Return a namespace's job as the arguments of `elastic_launch(config, command)(*arguments)`.

    As with torch, OMP_NUM_THREADS is set to 1 in this process for several workers that would
    inherit none. May ask the workers' interpreter for its devices (`nproc_per_node="auto"`), which
    can take seconds. The existence of the script is not checked, because it may lie on another
    machine. Raises RuntimeParameterError (a ValueError and a RuntimeError), one line with the
    value.
    """
    return _config(args, _AnyScript())


def _config(args: argparse.Namespace, machine: ThisHost) -> tuple[LaunchConfig, str, list[str]]:
    with _option_errors():
        asked = read_run(Scanned(_words(args), dict(_values(args))), os.environ, machine)
    for notice in asked.notices:
        _log.warning("rallypoint: %s", notice)
    if asked.workers.omp_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(asked.workers.omp_threads)
    backend, endpoint, conf = _rendezvous(asked)
    config = LaunchConfig(
        asked.rendezvous.min_nodes,
        asked.rendezvous.max_nodes,
        run_id=asked.rendezvous.run_id,
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_configs=conf,
        monitor_interval=float(getattr(args, "monitor_interval", None) or 0.1),
        numa_options=asked.workers.numa,
        **dict(_parameters(asked)) | {"logs_specs": logs_specs(asked)},
    )
    command, *arguments = asked.workers.argv
    return config, command, arguments


def _parameters(asked: AgentConfig) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the `LaunchConfig` fields that are named as their options and set."""
    for row in FLAGS.values():
        if row.name in _FIELDS and row.target:
            register = asked.rendezvous.register
            part = register if row.section == "register" else getattr(asked, row.section)
            value = getattr(part, row.field, None)
            if value not in (None, "", (), ANY_PORTS):
                as_parameter = _AS_PARAMETERS.get(row.kind)
                yield row.name, as_parameter(value) if as_parameter else value


def get_use_env(args: argparse.Namespace) -> bool:
    """Return whether workers get their local rank by LOCAL_RANK alone.

    Only a namespace of `rallypoint.elastic.launch` can ask for `--local-rank` as well.
    """
    return bool(getattr(args, "use_env", True))


def get_rdzv_endpoint(args: argparse.Namespace) -> str:
    """Return the rendezvous endpoint of a namespace.

    If it has none, and several nodes with the backend `tcp` or `static`, these have fixed ranks:
    then it is the master's address and port. Otherwise it is empty. Raises RuntimeParameterError
    for an invalid number of nodes.
    """
    if endpoint := getattr(args, "rdzv_endpoint", None):
        return str(endpoint)
    if not _has_fixed_ranks(args):
        return ""
    return f"{args.master_addr}:{args.master_port or DEFAULT_STATIC_PORT}"


def run(args: argparse.Namespace) -> None:
    """Run the job of a namespace to its end. Blocks.

    Raises as `elastic_launch` and `config_from_args` do, and for a script that does not exist.
    """
    config, command, arguments = _config(args, ThisHost())
    elastic_launch(config, command)(*arguments)


@record
def main(args: Sequence[str] | None = None) -> None:
    """Run the job of a command line (default: the process's own) to its end. Blocks.

    A usage error is printed as one line and raised as CommandLineError, a SystemExit; otherwise
    raises as `run`.
    """
    try:
        run(parse_args(args))
    except CommandLineError:
        raise
    except UsageError as error:
        end_with(error)


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """Return the least and the largest number of nodes of `N` or `MIN:MAX`.

    Raises RuntimeParameterError.
    """
    with _option_errors():
        return nodes(Given(nnodes, f"--nnodes {nnodes}"))


def determine_local_world_size(nproc_per_node: str) -> int:
    """Return the number of workers on this node for a number, `cpu`, `gpu`, `xpu` or `auto`.

    May take seconds. Raises RuntimeParameterError.
    """
    given = Given(str(nproc_per_node), f"--nproc-per-node {nproc_per_node}")
    with _option_errors():
        return read_count(given, os.environ, ThisHost())


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this interpreter, as its main program; `sys.argv` is replaced."""
    sys.argv = [training_script, *training_script_args]
    runpy.run_path(training_script, run_name="__main__")


class _PrintScript(argparse.Action):
    """The parser's action that prints the completion script of a shell, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:
        _namespace, shell, *_spelled = given
        write_text(script(str(shell)))
        parser.exit()


class _Secret(str):
    """A token or a password, which is not shown when a configuration is printed."""

    def __repr__(self) -> str:
        return "'(not shown)'"


def end_with(error: UsageError) -> NoReturn:
    """Print one line and raise CommandLineError, which is a SystemExit."""
    print_error("rallypoint.elastic.run", str(error))
    raise CommandLineError(str(error), error.exit_class) from None


class _AnyScript(ThisHost):
    """A machine on which every script and program exists, for parsing alone."""

    def find_program(self, name: str) -> str | None:
        return name

    def script_exists(self, path: str) -> bool:
        return True

    def head(self, path: str) -> bytes:
        return b""


@contextmanager
def _option_errors() -> Iterator[None]:
    """Turn usage errors of the block into RuntimeParameterError.

    Torch raises a ValueError for some unusable options and a RuntimeError for others; this error is
    both.
    """
    try:
        yield
    except UsageError as error:
        raise RuntimeParameterError(str(error)) from None


def _absent(row: Setting) -> Any:
    default = _ABSENT.get(row.name, None if row.metavar else False)
    return list(default) if isinstance(default, list) else default


def _scan(words: Sequence[str]) -> Scanned:
    """Return the options and the script of a command line, with the variables' values.

    Raises UsageError, also for an option that only `rallypoint run` has, and without a script.
    """
    scanned = scan_run(words, os.environ)
    for flag, values in scanned.values.items():
        row = FLAGS.get(flag)  # None: it has no effect, see rallypoint.torch_versions
        if row and row.name not in _OPTIONS and values[-1].origin.startswith(flag):
            raise values[-1].wrong("only the command `rallypoint run` has this option")
    if not scanned.words:
        raise UsageError("the script is missing; for example: --nproc-per-node 2 train.py")
    return scanned


def _from_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that environment variables give to options, by name of the option.

    Raises UsageError for a value that is no number, or neither on nor off, where one is needed.
    """
    scanned = parse(RUN, (), environ)
    rows = {FLAGS[flag]: values[-1] for flag, values in scanned.values.items()}
    return {row.name: _typed(row, value) for row, value in rows.items() if row.name in _OPTIONS}


def _typed(row: Setting, value: Given) -> Any:
    """Return the value in the type that torch's namespace has.

    Most are texts, also `--nproc-per-node`. Other numbers, switches and the lists of filters are
    not.
    """
    if not row.metavar:
        return truth(value)
    if row.kind in ("seconds", "integer", "port"):
        return read(row, value)
    return [*texts(value)] if row.kind == "texts" else value.text


def _reader(row: Setting) -> Callable[[str], Any]:
    def read_text(text: str) -> Any:
        try:
            if is_empty(row.flag, text):
                refuse_empty(row.flag)
                return text
            return _typed(row, given(row, text))
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_text


def _words(args: argparse.Namespace) -> tuple[str, ...]:
    script = getattr(args, _SCRIPT, None)
    if not script:
        raise UsageError(f"{_SCRIPT}={script!r}: needs the script, module or program to start")
    told = () if get_use_env(args) else (f"--local-rank={macros.local_rank}",)
    return (os.fspath(script), *told, *map(str, getattr(args, _ARGUMENTS, None) or ()))


def _values(args: argparse.Namespace) -> Iterator[tuple[str, list[Given]]]:
    """Yield flag and value of the options in a namespace that differ from an absent option.

    Several nodes without an endpoint have fixed ranks, as with torch, whose namespace always has
    ranks: then the node's rank and the master's address are always among them.
    """
    fixed = _has_fixed_ranks(args)
    for row in _OPTIONS.values():
        value = getattr(args, row.name, None)
        if value is None or value is False or value in ("", [], ()):
            continue
        if value == _absent(row) and not (fixed and row.name in ("node_rank", "master_addr")):
            continue
        if isinstance(value, list | tuple):
            value = ",".join(str(text).replace(",", ",,") for text in value)
        yield row.flag, [given(row, "1" if value is True else str(value))]


def _has_fixed_ranks(args: argparse.Namespace) -> bool:
    several = parse_min_max_nnodes(str(getattr(args, "nnodes", None) or "1"))[1] > 1
    backend = getattr(args, "rdzv_backend", None) or "tcp"
    return several and backend in ("tcp", "static") and not getattr(args, "rdzv_endpoint", None)


def _rendezvous(asked: AgentConfig) -> tuple[str, str, dict[str, Any]]:
    """Return `rdzv_backend`, `rdzv_endpoint` and `rdzv_configs` of the job's `LaunchConfig`."""
    chosen, access = asked.rendezvous, asked.access
    if (handler := chosen.handler) is not None:
        return handler.backend, handler.endpoint, dict(handler.conf)
    usual = RendezvousConfig(chosen.run_id)
    conf: dict[str, Any] = {}
    for row in parameters().values():
        if row.field in RendezvousConfig.__struct_fields__:
            value = getattr(chosen, row.field)
            if value != getattr(usual, row.field):
                conf[row.name] = value
    if access.insecure:
        conf["insecure"] = True
    if access.token_file is not None:
        conf["token_file"] = access.token_file
    elif access.token_text:
        conf["token"] = _Secret(access.token_text)
    if (register := chosen.register) is not None:
        settings: dict[str, Any] = dict(register.settings)
        if PASSWORD in settings:
            settings[PASSWORD] = _Secret(settings[PASSWORD])
        return register.engine, register.where, conf | settings
    if chosen.static:
        conf["rank"] = chosen.node_rank
        conf.pop("is_host", None)
        return "static", str(chosen.endpoint), conf
    if chosen.endpoint.port == 0 and chosen.endpoint.host == "localhost":
        conf.pop("is_host", None)
        return "tcp", "", conf
    return "tcp", str(chosen.endpoint), conf
