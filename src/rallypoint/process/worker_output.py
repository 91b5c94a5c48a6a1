"""The output of this node's workers, put together: plan, files and relay."""

from __future__ import annotations

import os

from msgspec import Struct, field

from rallypoint.config import OutputMode
from rallypoint.process.log_dir import LogDir, open_log, read_tail
from rallypoint.process.relay_client import Relay
from rallypoint.process.streams import (
    Inherit,
    Route,
    Std,
    ToFile,
    ToRelay,
    WorkerFiles,
    WorkerStreams,
    line_prefix,
    plan_streams,
)


class OutputSettings(Struct, frozen=True):
    """What was asked for. `mode` is settled; the tuples have one entry per local rank."""

    mode: OutputMode
    role: str
    redirects: tuple[Std, ...]
    tee: tuple[Std, ...]
    stderr_is_terminal: bool
    colour: bool = False
    prefix_template: str | None = None

    def plan(self, local_rank: int, files: WorkerFiles) -> WorkerStreams:
        return plan_streams(
            mode=self.mode,
            redirects=self.redirects[local_rank],
            tee=self.tee[local_rank],
            stderr_is_terminal=self.stderr_is_terminal,
            files=files,
        )

    @property
    def keeps_files(self) -> bool:
        """Whether a person asked for files: then a temporary log directory stays."""
        return any(self.redirects) or any(self.tee)

    @property
    def needs_relay(self) -> bool:
        """Whether a worker's stream goes through the relay. (The agent's own lines are a reason
        of their own to start it: a console that takes nothing must not stop the agent.)"""
        nothing = WorkerFiles("", "", "")
        return any(self.plan(rank, nothing).needs_relay for rank in range(len(self.tee)))


class WorkerOutput(Struct, frozen=True):
    """One worker's descriptors (None: the agent's own) and the files to be told about it."""

    stdout_fd: int | None
    stderr_fd: int | None
    error_file: str
    """For TORCHELASTIC_ERROR_FILE; empty without files."""
    log_file: str
    """Where its last lines are to be found: stderr's file, else stdout's, else empty."""

    def close(self) -> None:
        """Close our copies, once the worker has its own. Call exactly once."""
        for fd in (self.stdout_fd, self.stderr_fd):
            if fd is not None:
                os.close(fd)


class WorkerOutputs(Struct, eq=False):
    """Opens the output of each worker of each round. `relay` may be None if none needs it."""

    settings: OutputSettings
    log_dir: LogDir
    relay: Relay | None
    _stderr: dict[tuple[int, int], Route] = field(default_factory=dict)

    def open(self, *, round_number: int, local_rank: int, rank: int) -> WorkerOutput:
        """Make files and pipes of a worker about to be spawned; blocks on the log directory.

        Raises LogStorageError or UsageError; nothing stays open then.
        """
        files = self.log_dir.attempt(round_number, local_rank)
        streams = self.settings.plan(local_rank, files)
        stdout_fd = self._open(streams.stdout, Std.OUT, round_number, local_rank, rank)
        try:
            stderr_fd = self._open(streams.stderr, Std.ERR, round_number, local_rank, rank)
        except BaseException:
            if stdout_fd is not None:
                os.close(stdout_fd)
            raise
        self._stderr = {k: r for k, r in self._stderr.items() if k[0] >= round_number - 1}
        self._stderr[round_number, local_rank] = streams.stderr
        log_file = _path(streams.stderr) or _path(streams.stdout)
        return WorkerOutput(stdout_fd, stderr_fd, files.error, log_file)

    def _open(
        self, route: Route, stream: Std, round_number: int, local_rank: int, rank: int
    ) -> int | None:
        match route:
            case Inherit():
                return None
            case ToFile(path):
                return open_log(path)
            case ToRelay():
                if self.relay is None:
                    raise ValueError("this plan needs the relay, which was not started")
                prefix = line_prefix(
                    route.console,
                    role=self.settings.role,
                    local_rank=local_rank,
                    rank=rank,
                    colour=self.settings.colour,
                    template=self.settings.prefix_template,
                )
                return self.relay.add(
                    round_number=round_number,
                    local_rank=local_rank,
                    stream=stream,
                    route=route,
                    prefix=prefix,
                )

    async def tail(self, round_number: int, local_rank: int) -> tuple[str, ...]:
        """The last lines on stderr of a worker that has ended; empty if they went elsewhere."""
        match self._stderr.get((round_number, local_rank)):
            case ToRelay() if self.relay is not None:
                data = await self.relay.tail(round_number, local_rank)
            case ToFile(path):
                data = read_tail(path)
            case _:
                return ()
        return tuple(data.decode(errors="replace").splitlines())


def _path(route: Route) -> str:
    return "" if isinstance(route, Inherit) else route.path
