"""The output of this node's workers: settings, files, and the message about a pattern."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import cast

from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.config import AgentConfig
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Assignment, Outcome
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.core.ranks import id_of_rank
from rallypoint.core.text import named, shown
from rallypoint.process.logs.log_dir import path_text
from rallypoint.process.logs.plan import (
    LinePrefix,
    Std,
    is_named,
    parse_std_map,
    resolve_mode,
)
from rallypoint.process.logs.specs import CommandLogsSpecs, DefaultLogsSpecs, LogsSpecs
from rallypoint.process.logs.worker_output import OutputSettings
from rallypoint.process.relay.messages import NothingMatched, PatternOff, PatternReport
from rallypoint.process.scratch import Scratch, remove_at_exit

LINE_CHARACTERS = 200
"""The most characters of a worker's line, or of a pattern, that a message quotes."""


class OutputFiles:
    """The object that chooses the workers' log files, and their temporary directory.

    The directory is kept if a person asked for files but named no directory, unless `succeeded` is
    set at the end.
    """

    def __init__(self, specs: LogsSpecs) -> None:
        self.specs = specs
        self.succeeded = False
        self.are_needed = False
        """Whether the files stay until the program around the agent ends, because its job has
        failed."""

    @classmethod
    def open(cls, config: AgentConfig, scratch: str) -> OutputFiles:
        """Make the files that are needed before any worker starts. Blocks on the file system.

        Default files are in `scratch`, if there is one. Then a directory that may stay is made
        later, with the first round, so that a start that is killed leaves none. Raises
        LogStorageError or UsageError for an unusable directory, or a plug-in's mistake.
        """
        files = cls(logs_specs(config))
        if isinstance(files.specs, DefaultLogsSpecs):
            may_stay = files.specs.may_stay
            if not (may_stay and scratch):
                files.specs.open(config.rendezvous.run_id, "" if may_stay else scratch)
        return files

    @property
    def kept_dir(self) -> str:
        """The temporary directory, if it is kept; else empty."""
        stays = isinstance(self.specs, DefaultLogsSpecs) and self.specs.may_stay
        return (self.specs.root_log_dir or "") if stays and not self.succeeded else ""

    def tell_kept(self, say: Callable[[Record, tuple[tuple[str, str], ...]], None]) -> None:
        """Tell the user the path of the kept directory, if there is one.

        `say` gets a record and fields.
        """
        if self.kept_dir:
            path = path_text(self.kept_dir)
            say(kinds.LOGS_KEPT(path=path), (("path", path),))

    def hand_over(self, scratch: Scratch) -> None:
        """Have the files stay until the program around the agent ends, if `are_needed` is set.

        Never raises.
        """
        if not self.are_needed or not isinstance(self.specs, DefaultLogsSpecs):
            return
        directory = self.specs.directory or ""
        if scratch.path and os.path.dirname(directory) == scratch.path:
            scratch.keep(directory)
        elif directory and self.specs.is_temporary and not self.kept_dir:
            remove_at_exit(directory)
        self.specs.close(keep=True)

    def close(self) -> None:
        """Close the files, and remove a temporary directory that is not kept. Never raises."""
        if isinstance(self.specs, DefaultLogsSpecs):
            self.specs.close(keep=bool(self.kept_dir))


def logs_specs(config: AgentConfig) -> LogsSpecs:
    """Return the object that chooses the workers' files. Raises UsageError, and LogsSpecsError."""
    output, count = config.output, config.workers.count
    if not isinstance(output.logs_specs, str):
        return cast(LogsSpecs, output.logs_specs)
    redirects = parse_std_map(output.redirects, count, flag=named.redirects)
    tee = parse_std_map(output.tee, count, flag=named.tee)
    if output.logs_specs == "default":
        # That of a job of one node is named as by torchrun.
        names_node = output.log_layout == "rounds" or config.rendezvous.max_nodes > 1
        return CommandLogsSpecs(
            output.log_dir,
            redirects,
            tee,
            output.local_ranks_filter,
            layout=output.log_layout,
            node=_node(config) if names_node else "",
            temp_dir=output.temp_dir,
        )
    from rallypoint.process.logs.specs import make_logs_specs

    return make_logs_specs(
        output.logs_specs,
        log_dir=output.log_dir,
        redirects=redirects,
        tee=tee,
        local_ranks_filter=output.local_ranks_filter,
    )


def output_settings(config: AgentConfig) -> OutputSettings:
    """Return the settings of the console and the relay.

    Looks at this process's stdout and stderr.
    """
    output, workers = config.output, config.workers
    stdout_tty, stderr_tty = os.isatty(1), os.isatty(2)
    mode = resolve_mode(
        output.mode,
        stdout_is_terminal=stdout_tty,
        stderr_is_terminal=stderr_tty,
        workers=shown_workers(config),
    )
    return OutputSettings(
        mode=mode,
        prefix=LinePrefix(
            workers.role,
            stdout_tty and stderr_tty and output.colour,
            output.prefix_template,
            host=_short_host_name(),
        ),
        inherits=(Std.OUT if stdout_tty else Std.NONE) | (Std.ERR if stderr_tty else Std.NONE),
        draws=output.draws,
        local_ranks_filter=output.local_ranks_filter,
        stdout_filters=output.duplicate_stdout_filters,
        stderr_filters=output.duplicate_stderr_filters,
        log_max_bytes=output.log_max_bytes,
        progress_pattern=output.progress_pattern,
    )


def shown_workers(config: AgentConfig) -> int:
    """Return how many workers of the world may write to consoles.

    Of a job of one node those that `--local-ranks-filter` hides do not count: the output of one
    worker alone needs no prefix.
    """
    count, nodes = config.workers.count, config.rendezvous.max_nodes
    if nodes > 1:
        return count * nodes
    return sum(is_named(config.output.local_ranks_filter, rank, rank) for rank in range(count))


def succeeded(finish: Finish) -> bool:
    """Return whether the whole job has succeeded."""
    verdict = finish.verdict if finish.kind is FinishKind.VERDICT else None
    return verdict is not None and verdict.outcome is Outcome.SUCCEEDED


def _node(config: AgentConfig) -> str:
    """Return this node's name in its log directory: its given id or that of its fixed rank.

    Without either it is the short host name, which other agents may share.
    """
    rendezvous = config.rendezvous
    if rendezvous.node_id:
        return rendezvous.node_id
    if rendezvous.static:
        return id_of_rank(rendezvous.node_rank or 0)
    return _short_host_name() or "node"


def _short_host_name() -> str:
    return socket.gethostname().partition(".")[0]


class PatternLines:
    """The receiver of the reports that `--progress-pattern` was turned off, or matches nothing."""

    def __init__(
        self, config: AgentConfig, dispatcher: EventDispatcher, say: Callable[[Record], None]
    ) -> None:
        self._config, self._dispatcher, self._say = config, dispatcher, say

    def __call__(self, report: PatternReport) -> None:
        """Show that the pattern was turned off, or note that nothing matches it."""
        line = _clipped(report.line)
        match report:
            case PatternOff():
                pattern = shown(self._config.output.progress_pattern)
                self._say(kinds.PATTERN_OFF(pattern=pattern, line=line))
            case NothingMatched():
                self._dispatcher.unmatched = line


def unmatched(config: AgentConfig, line: str | None, place: Assignment) -> str:
    """Return the message about a pattern that has matched no line of this node's workers.

    `line` is their newest line; None: the relay has not reported that none matches. Then the result
    is empty. It is empty as well if no worker of this node is expected to print matching lines:
    usually one rank of a job does, the first or the last.
    """
    pattern, ranks = config.output.progress_pattern, _ranks(place.base_rank, config.workers.count)
    if line is None or not _is_expected_of(pattern, place):
        return ""
    wrote = f"the newest of {ranks}: {line}" if line else f"{ranks} wrote nothing"
    return f"{_clipped(pattern)} for 2 minutes; {wrote}"


def _is_expected_of(pattern: str, place: Assignment) -> bool:
    from rallypoint.process.relay.pattern import printed_by_last_rank

    if printed_by_last_rank(pattern):
        return place.group_rank == place.group_world_size - 1
    return place.group_rank == 0


def _ranks(first: int, count: int) -> str:
    return f"rank {first}" if count == 1 else f"ranks {first}-{first + count - 1}"


def _clipped(line: str) -> str:
    text = shown(line.strip())
    return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 3]}..."
