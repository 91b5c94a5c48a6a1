"""Start the processes of one node: commands or Python functions, with torch's signature."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rallypoint.core.text import count
from rallypoint.errors import ParameterError
from rallypoint.process.logs.specs import Environs, LogsDest
from rallypoint.process.process_context import PContext, ProcessPlan, Programs
from rallypoint.process.syscalls import open_fds

if TYPE_CHECKING:
    from rallypoint.config import NumaOptions

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_START_METHODS = ("spawn", "forkserver", "fork")


class Reifies(Protocol):
    """What is needed of a `LogsSpecs`; torch's have it, too."""

    def reify(self, envs: Environs) -> LogsDest:
        """Where the streams go."""


def start_processes(
    name: str,
    entrypoint: Callable[..., object] | str,
    args: Mapping[int, Sequence[object]],
    envs: Mapping[int, Mapping[str, str]],
    logs_specs: Reifies,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: NumaOptions | None = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    grace_s: float = 30.0,
) -> PContext:
    """Start one process per local rank, and return at once; `wait` for it, and `close` it.

    `entrypoint` is a program, whose arguments are made texts, or a function (see
    `rallypoint.config.FunctionCall`), which with the start method `fork` runs in forks of this
    process, else in interpreters of their own. `args` and `envs` have the keys 0 to n-1; an
    environment is added to our own, as are TORCHELASTIC_ERROR_FILE and, unless set,
    PYTHONFAULTHANDLER.

    Lines of teed streams have `log_line_prefixes`, else `[<name><local rank>]:`. `grace_s` is how
    long the others have to end when one has failed.

    `numa_options` binds the processes as `--numa-binding` does; a remark on it is a warning.

    Raises ParameterError or UsageError for what can't be used, OSError where the program can't be
    run (FileNotFoundError ..), InfrastructureError where the system has no process left; then
    nothing runs.
    """
    _check(args, envs)
    if start_method not in _START_METHODS:
        raise ParameterError(f"start_method {start_method!r}: use one of {_START_METHODS}")
    dest = logs_specs.reify(envs)
    base = dict(os.environ)
    base.setdefault("PYTHONFAULTHANDLER", "1")
    cpus = _cpus(len(envs), numa_options, base)
    environments = [
        base | {**envs[rank], ERROR_FILE_VARIABLE: dest.error_files.get(rank, "")}
        for rank in range(len(envs))
    ]
    plan = ProcessPlan(
        name=name,
        programs=_programs(entrypoint, args, start_method),
        envs=environments,
        dest=dest,
        prefixes=log_line_prefixes or {},
        stdout_filters=tuple(duplicate_stdout_filters or ()),
        stderr_filters=tuple(duplicate_stderr_filters or ()),
        grace_s=grace_s,
        cpus=cpus,
        unbound_if_refused=_may_run_unbound(numa_options),
    )
    context = PContext(plan)
    context.start()
    return context


def _cpus(
    processes: int, numa: NumaOptions | None, environ: Mapping[str, str]
) -> Sequence[frozenset[int]]:
    if numa is None:
        return ()
    from rallypoint.process.affinity import worker_cpus

    cpus, notice = worker_cpus(processes, numa, environ.get("CUDA_VISIBLE_DEVICES"))
    if notice:
        warnings.warn(notice, stacklevel=3)
    return cpus


def _may_run_unbound(numa: NumaOptions | None) -> bool:
    return numa is not None and numa.should_fall_back_if_binding_fails


def _check(args: Mapping[int, object], envs: Mapping[int, Mapping[str, str]]) -> None:
    _check_ranks("args", args)
    _check_ranks("envs", envs)
    if len(args) != len(envs):
        raise ParameterError(
            f"args are for {count(len(args), 'local rank')}, envs for {len(envs)}: "
            "give both for every local rank"
        )
    for local_rank, env in envs.items():
        for name, value in env.items():
            if not name or "=" in name or "\0" in f"{name}{value}" or not isinstance(value, str):
                raise ParameterError(
                    f"envs has for local rank {local_rank} {name!r}: {value!r}: needs a name "
                    "without = and a text"
                )


def _check_ranks(what: str, given: Mapping[int, object]) -> None:
    if not given:
        raise ParameterError(f"{what} is empty: needs an entry for each local rank, from 0")
    if set(given) != set(range(len(given))):
        keys = ", ".join(map(repr, given))
        raise ParameterError(
            f"{what} has the local ranks {keys}: needs 0 to {len(given) - 1}, each once"
        )


def _programs(
    entrypoint: Callable[..., object] | str,
    args: Mapping[int, Sequence[object]],
    start_method: str,
) -> Programs:
    tuples = tuple(tuple(args[rank]) for rank in range(len(args)))
    if not callable(entrypoint):
        return Programs(argvs=[[entrypoint, *map(str, words)] for words in tuples])
    from rallypoint.config import FunctionCall
    from rallypoint.process.prepared.calls import pickle_calls

    call = FunctionCall(entrypoint, tuples)
    if start_method == "fork":
        return Programs(forks=call, fds=open_fds())
    return Programs(calls=pickle_calls(call))
