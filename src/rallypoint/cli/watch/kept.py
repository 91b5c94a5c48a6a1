"""Commands show the files that are kept of a job that has ended (`core/watch/kept_jobs.py`).

A command asks the job's coordinator first. Where none answers, it looks for what this machine, or a
home that it shares with the job's nodes, has kept.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from textwrap import wrap

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.agent.telemetry.keeping import meeting_place
from rallypoint.cli.machine import Machine, brief
from rallypoint.cli.parser import Command, Scanned, parse
from rallypoint.cli.render import duration_text
from rallypoint.cli.values import Value, word
from rallypoint.cli.watch.events_text import moment_text
from rallypoint.cli.watch.reach import (
    JobAt,
    JobEndedError,
    LostWhileFollowedError,
    NotHostedError,
    NotOnThisMachineError,
    read_job,
)
from rallypoint.cli.watch.recorded import read_history, view_in
from rallypoint.cli.watch.slurm_job import read_slurm_job
from rallypoint.cli.watch.status_text import LINES_MAX, cause_detail, status_lines
from rallypoint.cli.watch.workers import is_endpoint
from rallypoint.config import RendezvousConfig
from rallypoint.coordinator.clocks import wall_time
from rallypoint.core.model import Outcome
from rallypoint.core.text import job_name, shown
from rallypoint.core.watch import kept_jobs as rules
from rallypoint.core.watch.history_file import Recorded
from rallypoint.core.watch.job_view import JobView
from rallypoint.core.watch.kept_jobs import NodeNote
from rallypoint.core.watch.node_names import fold_names
from rallypoint.errors import RallypointError, RendezvousConnectionError, UsageError
from rallypoint.observe.kept_jobs import find, notes_in
from rallypoint.process.scratch import lives

_NODES_SHOWN = 6


def _how_much_it_knows(note: NodeNote) -> tuple[bool, bool, float]:
    return note.ended > 0, note.is_host, note.ended


SomeError = RendezvousConnectionError | JobEndedError | NotHostedError


class Kept(Struct):
    """The files of one job, as they were read."""

    path: str
    notes: list[NodeNote]
    recorded: Recorded | None = None
    """The history of the job; None: it is elsewhere."""
    living: list[str] = field(default_factory=list)
    """Nodes whose agents run on this machine."""

    @property
    def newest(self) -> NodeNote | None:
        """The note that knows most."""
        return max(self.notes, key=_how_much_it_knows, default=None)

    @property
    def view(self) -> JobView | None:
        """The last status, without nodes: none runs any more."""
        view = None if self.recorded is None else view_in(self.recorded)
        if view is None:
            return None
        since_s = view.since_s + max(wall_time(0.0) - self.written_at, 0.0)
        waits_for = view.waits_for if view.verdict is not None else ""
        return replace(view, nodes=(), nodes_left_out=0, since_s=since_s, waits_for=waits_for)

    @property
    def written_at(self) -> float:
        """When the last status was."""
        status = None if self.recorded is None else self.recorded.status
        return 0.0 if status is None else status.time

    @property
    def has_ended(self) -> bool:
        """The end of the job is known."""
        view = self.view
        return (view is not None and view.verdict is not None) or any(
            note.ended for note in self.notes
        )


def answer_or_kept(
    command: Command, argv: Sequence[str], ask: Callable[[], int], show: Callable[[Kept, str], None]
) -> int:
    """Ask, or `show` what is kept, with a line on what this is. Raises as `ask`."""
    try:
        return ask()
    except LostWhileFollowedError as error:
        path = _path_of(command, argv)
        more = f"; kept of it: rallypoint status {brief(path)}" if path else ""
        raise _with(error, more) from error
    except (RendezvousConnectionError, JobEndedError, NotHostedError) as error:
        path = _path_of(command, argv)
        if not path:
            if type(error) is RendezvousConnectionError:
                raise _with(error, _where_else(command, argv)) from error
            raise
        kept = read_kept(path)
        if isinstance(error, NotHostedError) and not kept.has_ended:
            raise
        if isinstance(error, RendezvousConnectionError) and kept.living and not kept.has_ended:
            who = f"node {fold_names(kept.living)} runs on this machine, and looks for it"
            raise _with(error, f"; {who}: rallypoint status {brief(path)}") from error
        show(kept, _what_it_is(kept, error))
        return 0


def is_kept(where: Value | None) -> bool:
    """A person means a directory in which something of a job is kept."""
    if where is None or "\0" in where.text or not os.path.isdir(where.text):
        return False
    return bool(notes_in(where.text, 1)) or os.path.isfile(os.path.join(where.text, rules.HISTORY))


def read_kept(path: str) -> Kept:
    """Blocks. Raises UsageError."""
    notes = notes_in(path)
    if not notes and not os.path.isfile(os.path.join(path, rules.HISTORY)):
        raise UsageError(f"{shown(path)}: nothing is kept of a job there")
    machine = socket.gethostname()
    living = [one.node for one in notes if one.machine == machine and lives(one.pid)]
    files = [os.path.join(path, rules.HISTORY), *(note.history for note in notes)]
    recorded = None
    if known := [one for one in files if one and os.path.isfile(one)]:
        recorded = read_history(known[0])
    return Kept(path, notes, recorded, living)


def status_of(kept: Kept, head: str, width: int, most: int) -> list[str]:
    """At most so many lines for a person."""
    now, view, newest = wall_time(0.0), kept.view, kept.newest
    rows: list[str] = []
    if view is not None and (view.verdict is not None or newest is None or not newest.ended):
        rows = status_lines(view, width, most)
        if view.verdict is None:
            at = moment_text(kept.written_at, now)
            said = f"no end is known; at {at} it was {view.state}, in round {view.round}"
            rows[0] = f"{job_name(view.job)}: {said}"
    elif newest is not None:
        rows = _of_note(newest, width, now)
    told = rules.ended_lines(kept.notes, kept.living)
    more = len(told) - _NODES_SHOWN
    if more > 0 and most <= LINES_MAX:
        told = [*told[:_NODES_SHOWN], f"and {more} more nodes: --all"]
    ends = _labelled("ends", told, width)
    if kept.recorded is None and newest is not None and not newest.is_host:
        ends += _labelled("elsewhere", [_elsewhere(newest)], width)
    room = max(most - len(ends) - 1, 1)
    if len(rows) > room:
        rows = [*rows[: room - 1], f"  ... {len(rows) - room + 1} more lines: --all"]
    return [head, *rows, *ends]


def events_of(kept: Kept) -> Recorded:
    """Raises RendezvousConnectionError where the events are elsewhere."""
    if kept.recorded is None:
        where = "" if kept.newest is None else f": {_elsewhere(kept.newest)}"
        raise RendezvousConnectionError(
            f"only this is kept of the job here: rallypoint status {brief(kept.path)}{where}"
        )
    return kept.recorded


def _labelled(label: str, texts: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for text in texts:
        room = max(width - 14, 20)
        parts = [text[:room]] if text.startswith("| ") else wrap(text, room)
        lines += parts
    heads = [label, *[""] * len(lines)]
    return [f"  {head:<12}{line}" for head, line in zip(heads, lines, strict=False)]


def _elsewhere(note: NodeNote) -> str:
    where = f"{note.host}:{note.history}" if note.history else note.host
    return f"the whole history is kept where the job was hosted ({where})"


def _of_note(note: NodeNote, width: int, now: float) -> list[str]:
    name = job_name(note.job)
    if not note.ended:
        begun = f"{duration_text(max(now - note.began, 0.0))} ago"
        return [f"{name}: began {begun}, in round {note.round}; no end is known"]
    when = duration_text(max(now - note.ended, 0.0))
    infrastructure = str(Outcome.INFRASTRUCTURE.value)
    how = "failed (infrastructure)" if note.outcome == infrastructure else note.outcome
    lines = [f"{name}: {how} {when} ago, round {note.round}: {note.text}"]
    told = [f"| {line}" for line in cause_detail(note.cause)]
    return lines + _labelled(f"round {note.round}", told, width)


def _what_it_is(kept: Kept, error: SomeError) -> str:
    if isinstance(error, NotOnThisMachineError):
        head = str(error).partition(":")[0].partition(";")[0]
        return f"{head}; the newest that has ended is kept: {brief(kept.path)}"
    if kept.has_ended:
        said = "the job has ended; this is kept of it"
    else:
        said = "the host of the job is lost, or all of its agents were killed; this is kept of it"
    return f"{said} on this machine: {brief(kept.path)}"


def _where_else(command: Command, argv: Sequence[str]) -> str:
    job = _meant(command, argv)
    if job is None or job.register is not None:
        return "; nothing of it is kept on this machine"
    return f"; nothing of it is kept on this machine: ask on {job.endpoint.host}, if it ran there"


def _path_of(command: Command, argv: Sequence[str]) -> str:
    """Where the job is kept that the command line means; empty: nowhere."""
    if not (root := Machine().kept_jobs()):
        return ""
    job, scanned = _meant(command, argv), parse(command, argv, {})
    named = scanned.get("--job") or scanned.get("--rdzv-id")
    if job is None and (slurm := scanned.get("--slurm")) is not None:
        return find(root, read_slurm_job(slurm).run_id, None)
    if job is None:
        return find(root, None if named is None else named.text, None)
    where = meeting_place(RendezvousConfig(job.name, endpoint=job.endpoint, register=job.register))
    return find(root, job.run_id, where or None)


def _meant(command: Command, argv: Sequence[str]) -> JobAt | None:
    """None: one on this machine."""
    scanned: Scanned = parse(command, argv, {})
    is_word = bool(scanned.words) and "ENDPOINT" in command.may_have[0]
    if is_word:
        where: Value | None = word(scanned.words[0])
    else:
        where = next((word(each) for each in scanned.words if is_endpoint(each)), None)
    try:
        jobs = read_job(command, scanned, where)
    except RallypointError:
        return None
    return None if jobs[0].secret or len(jobs) > 1 else jobs[0]


def _with(error: RendezvousConnectionError, more: str) -> RendezvousConnectionError:
    return RendezvousConnectionError(f"{error}{more}")
