"""The output of this node's workers: the combination of plan, files and relay."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct, field

from rallypoint.config import OutputMode
from rallypoint.core.text import named, raised
from rallypoint.errors import LogsSpecsError, RallypointError, during
from rallypoint.process.limits import out_of_files
from rallypoint.process.logs.log_dir import open_log, read_remembered, set_aside
from rallypoint.process.logs.plan import (
    NULL_DEVICE,
    ConsoleRoute,
    Copies,
    Inherit,
    LinePrefix,
    Route,
    Std,
    StreamWish,
    ToFile,
    ToRelay,
    is_named,
    plan_stream,
)
from rallypoint.process.logs.specs import DefaultLogsSpecs, Environs, LogsDest, Reifies, checked
from rallypoint.process.relay.client import Relay
from rallypoint.process.relay.drawing import WorkerKey
from rallypoint.process.relay.remembered import LastWords


class OutputSettings(Struct, frozen=True):
    """The settings of the workers' output, besides files. `mode` is never `auto`."""

    mode: OutputMode
    prefix: LinePrefix
    inherits: Std
    """The streams of this process that workers may inherit: an agent's if they are terminals."""
    draws: bool = True
    """Whether a terminal may redraw a worker's unfinished output."""
    local_ranks_filter: tuple[int | str, ...] | None = None
    """The workers whose output reaches the console, if given; a global rank is written "g12"."""
    stdout_filters: tuple[str, ...] = ()
    """The texts to look for: teed stdout lines that contain one are copied to a file of the
    round."""
    stderr_filters: tuple[str, ...] = ()
    log_max_bytes: int = 0
    """The size in bytes at which a log file is rotated; 0: no limit."""
    progress_pattern: str = ""
    """The pattern that the relay looks for in the workers' output; empty: none."""


class WorkerOutput(Struct, frozen=True):
    """One worker's descriptors (None: it inherits the agent's) and the names of its files."""

    stdout_fd: int | None
    stderr_fd: int | None
    error_file: str
    """The path for TORCHELASTIC_ERROR_FILE; empty without files."""
    log_file: str
    """The file of its last lines: stderr's, else stdout's, else empty."""
    stdout_file: str = ""
    """The log file of its stdout; empty: there is none."""

    def written_log(self) -> str:
        """Return `log_file`, or stdout's file if only that one has content.

        Blocks on the file system.
        """
        if self.stdout_file and not _size(self.log_file) and _size(self.stdout_file):
            return self.stdout_file
        return self.log_file

    def close(self) -> None:
        """Close the agent's copies of the descriptors, once the worker has its own.

        Call exactly once.
        """
        for fd in (self.stdout_fd, self.stderr_fd):
            if fd is not None:
                os.close(fd)


class WorkerOutputs(Struct, eq=False):
    """The opening of the workers' output in each round. `relay` may be None if none needs it."""

    settings: OutputSettings
    specs: Reifies
    relay: Relay | None
    _routes: dict[tuple[int, int, Std], Route] = field(default_factory=dict)

    def read_progress(self, round_number: int, shm: str) -> None:
        """Have the relay look for progress in the output of this round's workers, if configured.

        To be called before their streams are opened. `shm` is the path of their shared memory;
        without it nothing is done.
        """
        pattern = self.settings.progress_pattern
        if self.relay is not None and pattern and shm:
            self.relay.read_progress(round_number, shm, pattern)

    async def progress_read(self) -> None:
        """Wait until all output so far was searched for progress, for at most about 2 s."""
        if self.relay is not None and self.settings.progress_pattern:
            await self.relay.progress_read()

    def open_round(self, round_number: int, envs: Environs) -> list[WorkerOutput]:
        """Open the files and pipes of the workers about to be spawned, in the order of local ranks.

        `envs` are the workers' environments. Blocks on the log directory.

        Raises LogStorageError or UsageError, LogsSpecsError for a plug-in's mistake, or
        InfrastructureError or OSError when descriptors have run out; nothing stays open then.
        """
        ranks = {local_rank: int(envs[local_rank]["RANK"]) for local_rank in sorted(envs)}
        return self.open_files(self._reify(envs), round_number, ranks)

    def open_files(
        self, dest: LogsDest, round_number: int, ranks: Mapping[int, int]
    ) -> list[WorkerOutput]:
        """Open the streams of workers whose files are known; `ranks`: global ranks by local rank.

        Raises what `open_round` does, except a plug-in's errors.
        """
        self._routes = {k: r for k, r in self._routes.items() if k[0] >= round_number - 1}
        opened: list[WorkerOutput] = []
        try:
            for local_rank, rank in ranks.items():
                opened.append(self._open_worker(dest, round_number, local_rank, rank))
        except BaseException:
            for output in opened:
                output.close()
            raise
        return opened

    def _reify(self, envs: Environs) -> LogsDest:
        try:
            dest = self.specs.reify(envs)
            if not isinstance(self.specs, DefaultLogsSpecs):
                dest = checked(dest)
                # A place that is used again may hold what an earlier worker left.
                for path in dest.error_files.values():
                    set_aside(path)
            return dest
        except RallypointError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(self.specs, DefaultLogsSpecs) or out_of_files(error):
                raise
            name = type(self.specs).__name__
            failed = LogsSpecsError(f"{named.logs_specs}: {name}.reify failed: {raised(error)}")
            number = error.errno if isinstance(error, OSError) else None
            raise during("open log files", number, failed) from error

    def _open_worker(
        self, dest: LogsDest, round_number: int, local_rank: int, rank: int
    ) -> WorkerOutput:
        stdout, stderr = (self._route(dest, s, local_rank, rank) for s in (Std.OUT, Std.ERR))
        worker = round_number, local_rank
        stdout_fd = self._open(stdout, Std.OUT, worker, rank)
        try:
            stderr_fd = self._open(stderr, Std.ERR, worker, rank)
        except BaseException:
            if stdout_fd is not None:
                os.close(stdout_fd)
            raise
        self._routes[*worker, Std.OUT], self._routes[*worker, Std.ERR] = stdout, stderr
        error_file = dest.error_files.get(local_rank, "")
        log_file = _path(stderr) or _path(stdout)
        return WorkerOutput(stdout_fd, stderr_fd, error_file, log_file, _path(stdout))

    def _route(self, dest: LogsDest, stream: Std, local_rank: int, rank: int) -> Route:
        settings, is_out = self.settings, stream is Std.OUT
        paths = dest.stdouts if is_out else dest.stderrs
        tees = dest.tee_stdouts if is_out else dest.tee_stderrs
        copy_to = dest.filtered_stdout if is_out else dest.filtered_stderr
        texts = settings.stdout_filters if is_out else settings.stderr_filters
        wish = StreamWish(
            path=tees.get(local_rank) or paths.get(local_rank) or "",
            tee=local_rank in tees,
            hidden=not is_named(settings.local_ranks_filter, local_rank, rank),
            max_bytes=settings.log_max_bytes,
            copies=Copies(copy_to, texts) if copy_to and texts else None,
            is_read=bool(settings.progress_pattern),
        )
        return plan_stream(stream, wish, mode=settings.mode, inherits=settings.inherits)

    def _open(self, route: Route, stream: Std, worker: WorkerKey, rank: int) -> int | None:
        match route:
            case Inherit():
                return None
            case ToFile(path):
                return open_log(path)
            case ToRelay():
                only_file = route.path or route.console is ConsoleRoute.NONE
                if (self.relay is None or self.relay.is_lost) and only_file:
                    return open_log(route.path or NULL_DEVICE)
                if self.relay is None:
                    raise ValueError("this plan needs the relay, which was not started")
                prefix = self.settings.prefix.text(route.console, worker[1], rank)
                return self.relay.add(worker, stream, route, prefix, draws=self.settings.draws)

    def route_of(self, round_number: int, local_rank: int, stream: Std) -> Route | None:
        """Return the route of one stream of a worker in this round; None: not known.

        Routes are kept for the newest round and the one before it.
        """
        return self._routes.get((round_number, local_rank, stream))

    async def last_words(self, round_number: int, local_rank: int) -> LastWords:
        """Return the end of the output of a worker that has ended, and its tracebacks.

        Blocks on its log files. Empty for a stream that this agent can't read.
        """
        routes = [self.route_of(round_number, local_rank, each) for each in (Std.ERR, Std.OUT)]
        relayed = LastWords()
        if self.relay is not None and any(isinstance(route, ToRelay) for route in routes):
            relayed = await self.relay.last_words(round_number, local_rank)
        read = [
            read_remembered(route.path) if isinstance(route, ToFile) and _path(route) else found
            for route, found in zip(routes, (relayed.stderr, relayed.stdout), strict=True)
        ]
        return LastWords(*read)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _path(route: Route) -> str:
    """Return the log file of this route; empty: there is none."""
    return "" if isinstance(route, Inherit) or route.path == NULL_DEVICE else route.path
