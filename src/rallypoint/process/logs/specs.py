"""The choice of files for each stream: the default layout, or a package's own.

`reify` is asked once for each round, before any of its workers starts, with the environment that
each of them will have. What it names is made by whoever opens it, so it may name files that do not
exist; their directories must.

A package offers a class of its own by name (`--logs-specs NAME`), as an entry point of the group
`rallypoint.logs_specs`, or of torch's group `torchrun.logs_specs`. It is made as torchrun makes it,
with `log_dir`, `redirects`, `tee` and `local_ranks_filter` by keyword, and asked through
`reify(envs)`; nothing else is required of it.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from msgspec import Struct, field

from rallypoint.core.text import named, naming_parameters, raised, shown
from rallypoint.errors import LogsSpecsError, UsageError
from rallypoint.process.logs.log_dir import Layout, LogDir, error_file
from rallypoint.process.logs.plan import NULL_DEVICE, Std, StdMap, is_named, names_any, streams_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rallypoint.logs_specs"
TORCH_GROUP = "torchrun.logs_specs"
_TORCH_MODULE = "torch.distributed.elastic.multiprocessing"

K = TypeVar("K")
Environs = Mapping[int, Mapping[str, str]]
"""The environment of each worker of this node, by local rank."""


class LogsDest(Struct, dict=True):
    """The files of one round's workers: for each stream a file by local rank.

    A rank that is missing, or has an empty path, has no file: its stream goes where `--output`
    says. `tee_*` has the files of the ranks whose lines go to the console too. The null device as a
    file discards. `error_files` are the paths for TORCHELASTIC_ERROR_FILE. Matching lines of teed
    streams (`--duplicate-stdout-filters`) are copied to `filtered_*`.
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


def checked(given: object) -> LogsDest:
    """Return what a plug-in's `reify` has returned as a LogsDest of ours.

    Raises AttributeError, TypeError or ValueError if it can't be one.
    """
    dest = LogsDest()
    for name in ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files"):
        setattr(dest, name, _paths(name, getattr(given, name)))
    for name in ("filtered_stdout", "filtered_stderr"):
        setattr(dest, name, _paths(name, {name: getattr(given, name, "")})[name])
    return dest


def _paths(name: str, given: Mapping[K, object]) -> dict[K, str]:
    paths = {key: os.fspath(cast(str, path)) for key, path in given.items()}
    for key, path in paths.items():
        if "\0" in path:
            raise ValueError(f"{name} has {path!r} for {key!r}")
    return paths


class Reifies(Protocol):
    """The one method of a `LogsSpecs` that is needed; torch's objects have it, too."""

    def reify(self, envs: Environs) -> LogsDest:
        """Return the files of the streams for the workers that have these environments."""


class LogsSpecs(ABC):
    """The choice of where the output of this node's workers goes.

    A subclass may call this constructor, which keeps its arguments in `_redirects`, `_tee` and
    `_local_ranks_filter`.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: StdMap = Std.NONE,
        tee: StdMap = Std.NONE,
        local_ranks_filter: Collection[int | str] | None = None,
    ) -> None:
        self._base, self._redirects, self._tee = log_dir, redirects, tee
        self._local_ranks_filter = (
            None if local_ranks_filter is None else frozenset(local_ranks_filter)
        )

    @abstractmethod
    def reify(self, envs: Environs) -> LogsDest:
        """Return the files of the streams for one round's workers.

        `envs` are the environments of the workers, by local rank. Called in the agent's loop:
        should not block for long.

        An exception ends the agent with one line.
        """

    @property
    @abstractmethod
    def root_log_dir(self) -> str | None:
        """The directory that holds all files; None while it is not known."""


class DefaultLogsSpecs(LogsSpecs):
    """The usual files: a directory for each round and worker.

    `redirects` and `tee` are a `Std` for all workers or a map by rank (see `Std.from_str`). Only
    the workers in `local_ranks_filter` reach the console, if it is given. `log_dir` None: a fresh
    temporary directory, which `close` removes, in `temp_dir` or where Python's tempfile makes its
    own; the null device: no files.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: StdMap = Std.NONE,
        tee: StdMap = Std.NONE,
        local_ranks_filter: Collection[int | str] | None = None,
        *,
        layout: Layout = "torchrun",
        node: str = "",
        temp_dir: str = "",
    ) -> None:
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._layout: Layout = layout
        self._node, self._temp_dir = node, temp_dir
        self._log_dir: LogDir | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether it was made with the same arguments, as with torch."""
        return isinstance(other, DefaultLogsSpecs) and self._given == other._given

    def __hash__(self) -> int:
        return hash(self._base)

    @property
    def _given(self) -> tuple[object, ...]:
        asked = (self._base, self._redirects, self._tee, self._local_ranks_filter)
        return (*asked, self._layout, self._node, self._temp_dir)

    @property
    def root_log_dir(self) -> str | None:
        """The given `log_dir`; without one the temporary directory, or None before it is made."""
        if self._base is not None:
            return self._base
        return self._log_dir.root if self._log_dir is not None else None

    @property
    def directory(self) -> str | None:
        """The directory of this agent's files.

        Empty if `log_dir` is the null device. None before it is made, which the first round does at
        the latest, and after `close`.
        """
        return self._log_dir.root if self._log_dir is not None else None

    @property
    def is_temporary(self) -> bool:
        """Whether this agent's directory was made, and is a temporary one."""
        return self._log_dir is not None and self._log_dir.is_temporary

    @property
    def may_stay(self) -> bool:
        """Whether files were asked for, but no directory was named.

        What was written stays when the job fails.
        """
        return self._base is None and (names_any(self._redirects) or names_any(self._tee))

    def open(self, run_id: str, temp_dir: str = "") -> LogDir:
        """Make this agent's directory and return it; later calls return the same one.

        Blocks on the file system. `temp_dir` replaces the usual place of a temporary directory.
        Raises LogStorageError, UsageError, or InfrastructureError when no descriptor is left: each
        one line with the fix.
        """
        with naming_parameters():
            return self._open(run_id, temp_dir)

    def reify(self, envs: Environs) -> LogsDest:
        """Make the directories of one round, and return the files of its workers' streams.

        The round's number is RALLYPOINT_ROUND of the workers, or without it
        TORCHELASTIC_RESTART_COUNT. Blocks on the file system.

        Raises LogStorageError, UsageError, or InfrastructureError when no descriptor is left: each
        one line with the fix.
        """
        with naming_parameters():
            return self._reify(envs)

    def close(self, *, keep: bool) -> None:
        """Remove a temporary directory at the end, unless `keep`.

        A later opening gets another directory. Never raises.
        """
        if self._log_dir is not None:
            self._log_dir.close(keep=keep)
            self._log_dir = None

    def remove_empty(self, dest: LogsDest) -> None:
        """Remove a round's empty directories, and the agent's own if it is empty then.

        Does nothing unless the agent's directory is a temporary one. Never raises.

        For a program that runs workers by itself, without an end at which `close` would be called.
        """
        if self._log_dir is None or not self._log_dir.is_temporary:
            return
        workers = {os.path.dirname(path) for path in dest.error_files.values()}
        rounds = {os.path.dirname(path) for path in workers}
        for path in (*workers, *rounds, self._log_dir.root):
            with suppress(OSError):
                os.rmdir(path)
        if not os.path.exists(self._log_dir.root):
            self._log_dir = None

    def _open(self, run_id: str, temp_dir: str = "") -> LogDir:
        if self._log_dir is None:
            self._log_dir = LogDir.open(
                self._base,
                run_id,
                layout=self._layout,
                node=self._node,
                temp_dir=temp_dir or self._temp_dir or _usual_temp_dir(),
            )
        return self._log_dir

    def _reify(self, envs: Environs) -> LogsDest:
        first = next(iter(envs.values()))
        number = first.get("RALLYPOINT_ROUND") or first.get("TORCHELASTIC_RESTART_COUNT") or "0"
        place = self._open(first.get("TORCHELASTIC_RUN_ID", "")).begin(int(number), envs)
        dest = LogsDest()
        for local_rank, env in envs.items():
            dest.error_files[local_rank] = error_file(place, local_rank)
            rank = int(env.get("RANK", -1))
            tee = streams_of(self._tee, local_rank, rank)
            files = tee | streams_of(self._redirects, local_rank, rank)
            hidden = not is_named(self._local_ranks_filter, local_rank, rank)
            for stream, name, paths, tees in (
                (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
            ):
                path = os.path.join(place, str(local_rank), name) if place else NULL_DEVICE
                if files & stream:
                    paths[local_rank] = path
                elif hidden:
                    paths[local_rank] = NULL_DEVICE
                if tee & stream and not hidden:
                    tees[local_rank] = path
        if place:
            dest.filtered_stdout = os.path.join(place, "filtered_stdout.log")
            dest.filtered_stderr = os.path.join(place, "filtered_stderr.log")
        return dest


class CommandLogsSpecs(DefaultLogsSpecs):
    """The `DefaultLogsSpecs` of the command line: its errors name options, not parameters."""

    open, reify = DefaultLogsSpecs._open, DefaultLogsSpecs._reify


def known_logs_specs() -> list[str]:
    """Return the names for `--logs-specs`: `default`, and those of installed packages."""
    from importlib.metadata import entry_points

    offered = [*entry_points(group=GROUP), *entry_points(group=TORCH_GROUP)]
    return sorted({"default", *(entry.name for entry in offered)})


def make_logs_specs(
    name: str,
    *,
    log_dir: str | None,
    redirects: StdMap,
    tee: StdMap,
    local_ranks_filter: Collection[int | str] | None,
) -> LogsSpecs:
    """Load and make the plug-in of this name; Rallypoint's entry points come before torch's.

    Imports its package. Raises UsageError when there is none, and LogsSpecsError when it can't be
    imported or made: one line each.
    """
    entry, group = _find(name)
    try:
        made = cast(Callable[..., Any], entry.load())(
            log_dir=log_dir,
            redirects=_for_group(redirects, group),
            tee=_for_group(tee, group),
            local_ranks_filter=None if local_ranks_filter is None else set(local_ranks_filter),
        )
        if not callable(getattr(made, "reify", None)):
            raise TypeError(f"{type(made).__name__} has no method reify")
    except (Exception, SystemExit) as error:
        raise LogsSpecsError(
            f"{named.logs_specs} {name}: {entry.value} of the package "
            f"{entry.dist.name if entry.dist else '?'} can't be used: {raised(error)}"
        ) from error
    return cast(LogsSpecs, made)


def _usual_temp_dir() -> str:
    import tempfile

    return tempfile.gettempdir()


def _find(name: str) -> tuple[EntryPoint, str]:
    from importlib.metadata import entry_points

    for group in (GROUP, TORCH_GROUP):
        for entry in entry_points(group=group, name=name):
            return entry, group
    raise UsageError(
        f"{named.logs_specs} {shown(name)}: needs one of {', '.join(known_logs_specs())}"
    )


def _for_group(wanted: StdMap, group: str) -> object:
    """Return the streams as torch's Std for a plug-in of torch's group, else as ours.

    torch is imported by now, if the plug-in needs it.
    """
    std: Any = getattr(sys.modules.get(_TORCH_MODULE), "Std", Std) if group == TORCH_GROUP else Std
    if isinstance(wanted, Std):
        return std(int(wanted))
    return {rank: std(int(streams)) for rank, streams in wanted.items()}
