"""Commands show the files that are kept of a job that has ended (`core/watch/kept_jobs.py`).

A command asks the job's coordinator first. Where none answers, it looks for what this machine, or a
home that it shares with the job's nodes, has kept.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from queue import Empty, Queue
from shlex import quote
from textwrap import wrap
from threading import Thread
from typing import TypeVar

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
from rallypoint.cli.watch.status_text import (
    LINES_MAX,
    cause_detail,
    next_lines,
    state_word,
    status_lines,
)
from rallypoint.cli.watch.workers import is_endpoint
from rallypoint.config import RendezvousConfig
from rallypoint.coordinator.clocks import wall_time
from rallypoint.core.model import Outcome
from rallypoint.core.text import job_name, shown
from rallypoint.core.watch import kept_jobs as rules
from rallypoint.core.watch.advice import Advice, advice_after_the_end
from rallypoint.core.watch.history_file import Recorded
from rallypoint.core.watch.job_view import HowItEnded, JobLine, JobView
from rallypoint.core.watch.kept_jobs import NodeNote, is_logged_in
from rallypoint.core.watch.node_names import fold_names
from rallypoint.errors import AccessError, RallypointError, RendezvousConnectionError, UsageError
from rallypoint.observe.kept_jobs import directories, find, notes_in
from rallypoint.process.scratch import lives

T = TypeVar("T")
READ_S = 30.0
"""How long reading what is kept may take: the home may be on a file server that is gone."""
_NODES_SHOWN = 6
NO_END = "no end is known"
_NOTES_READ = 16
"""The most notes that are read of a job in a list."""


def _is_of_job(note: NodeNote) -> bool:
    """Return whether the node saw the job end, and did not leave before."""
    return note.ended > 0 and note.outcome != Outcome.PREEMPTED.value


def _how_much_it_knows(note: NodeNote) -> tuple[bool, bool, float]:
    return _is_of_job(note), note.is_host, note.ended


SomeError = RendezvousConnectionError | JobEndedError | NotHostedError


class Kept(Struct):
    """The files of one job, as they were read."""

    path: str
    notes: list[NodeNote]
    recorded: Recorded | None = None
    """The history of the job; None: it is elsewhere."""
    living: list[str] = field(default_factory=list)
    """Nodes whose agents run on this machine."""
    trouble: str = ""
    """Why the history can't be read."""

    @property
    def newest(self) -> NodeNote | None:
        """The note that knows most."""
        return max(self.notes, key=_how_much_it_knows, default=None)

    @property
    def view(self) -> JobView | None:
        """The last status, without nodes: none runs any more. The end of the job is that of the
        history, or else of a node."""
        view, note, now = self._recorded_view, self.newest, wall_time(0.0)
        if view is None:
            return None
        since_s = view.since_s + max(now - self.written_at, 0.0)
        view = replace(view, nodes=(), nodes_left_out=0, since_s=since_s)
        if self.has_verdict:
            return view
        view = replace(view, state=NO_END, waits_for="", world_nodes=0, world_workers=0)
        if note is None or not self.has_ended:
            return view
        verdict = HowItEnded(note.outcome, note.text)
        since_s = max(now - note.ended, 0.0)
        return replace(view, state=note.outcome, reason=note.text, verdict=verdict, since_s=since_s)

    @property
    def _recorded_view(self) -> JobView | None:
        return None if self.recorded is None else view_in(self.recorded)

    @property
    def state(self) -> str:
        """The state of the job in the last status."""
        return "" if self._recorded_view is None else self._recorded_view.state

    @property
    def has_verdict(self) -> bool:
        """The end of the job is in its history."""
        return self._recorded_view is not None and self._recorded_view.verdict is not None

    @property
    def written_at(self) -> float:
        """When the last status was."""
        status = None if self.recorded is None else self.recorded.status
        return 0.0 if status is None else status.time

    @property
    def has_ended(self) -> bool:
        """The end of the job is known."""
        if self.has_verdict or any(map(_is_of_job, self.notes)):
            return True
        return bool(self.notes) and all(note.ended for note in self.notes)


def answer_or_kept(
    command: Command, argv: Sequence[str], ask: Callable[[], int], show: Callable[[Kept, str], None]
) -> int:
    """Ask, or `show` what is kept, with a line on what this is. Raises as `ask`."""
    try:
        return ask()
    except LostWhileFollowedError as error:
        kept = _kept_of(command, argv)
        more = f"; kept of it: rallypoint status {brief(kept.path)}" if kept else ""
        raise _with(error, more) from error
    except AccessError as error:
        kept = _kept_of(command, argv, error)
        if not kept or not kept.newest or "--job ID" not in str(error):
            raise
        job = quote(kept.newest.job)
        raise AccessError(f"{error}; the last job there was --job {job}") from error
    except (RendezvousConnectionError, JobEndedError, NotHostedError) as error:
        if (kept := _kept_of(command, argv, error)) is None:
            if type(error) is RendezvousConnectionError:
                raise _with(error, _where_else(command, argv)) from error
            raise
        if isinstance(error, NotHostedError) and not kept.has_ended:
            raise
        if isinstance(error, RendezvousConnectionError) and kept.living and not kept.has_ended:
            names = fold_names(kept.living)
            who = f"nodes {names} run on this machine, and look for it"
            if len(kept.living) == 1:
                who = f"node {names} runs on this machine, and looks for it"
            raise _with(error, f"; {who}: rallypoint status {brief(kept.path)}") from error
        show(kept, _what_it_is(kept, error))
        return 0


def answer_or_say_where_kept(command: Command, argv: Sequence[str], ask: Callable[[], T]) -> T:
    """Ask a job that must run for this. Where it has ended, the error says where its end is kept.
    Blocks and raises as `ask`."""
    try:
        return ask()
    except (RendezvousConnectionError, JobEndedError) as error:
        is_unnamed = isinstance(error, NotOnThisMachineError) and "--job" not in " ".join(argv)
        kept = None if is_unnamed else _kept_of(command, argv, error)
        if kept is None or (kept.living and not kept.has_ended):
            raise
        more = "its end is kept" if kept.has_ended else "kept of it"
        kind = UsageError if isinstance(error, JobEndedError) else RendezvousConnectionError
        raise kind(f"{error}; {more}: rallypoint status {brief(kept.path)}") from error


def _kept_of(
    command: Command, argv: Sequence[str], asked: RallypointError | None = None
) -> Kept | None:
    """Find what is kept of the job that the command line means; None: nothing. Blocks for
    `READ_S` at most. Raises RendezvousConnectionError, with what was `asked`, where the disk hangs
    for longer, and UsageError for a history that is damaged."""
    found: Queue[Kept | RallypointError | None] = Queue()

    def read() -> None:
        try:
            path = _path_of(command, argv)
            found.put(read_kept(path) if path else None)
        except RallypointError as error:
            found.put(error)

    Thread(target=read, daemon=True).start()
    try:
        kept = found.get(timeout=READ_S)
    except Empty:
        why = f"{shown(Machine().kept_jobs())} does not answer: what is kept of it can't be read"
        raise RendezvousConnectionError(f"{asked}; {why}" if asked else why) from asked
    if isinstance(kept, RallypointError):
        raise kept
    return kept


def is_kept(where: Value | None) -> bool:
    """A person means a directory in which something of a job is kept, or of several."""
    return where is not None and bool(kept_at(where.text))


def kept_at(path: str) -> list[str]:
    """Find the directories of jobs that a person means by this one, the newest first: itself, those
    in it, or those of jobs that have their log files in it."""
    if "\0" in path or not os.path.isdir(path):
        return []
    if notes_in(path, 1) or os.path.isfile(os.path.join(path, rules.HISTORY)):
        return [path]
    for root in (path, os.path.join(path, "kept")):
        if found := [os.path.join(root, one.name) for one in directories(root)]:
            return found
    root, wanted = Machine().kept_jobs(), os.path.abspath(path)
    found = [os.path.join(root, one.name) for one in directories(root)] if root else []
    return [one for one in found if any(is_logged_in(note, wanted) for note in notes_in(one, 1))]


def read_meant(path: str) -> Kept:
    """Read the one that `kept_at` finds. Blocks. Raises UsageError."""
    found = kept_at(path)
    if len(found) > 1:
        several = f"{shown(path)}: {len(found)} jobs are kept there"
        raise UsageError(f"{several}: rallypoint status {brief(path)} lists them")
    return read_kept(found[0] if found else path)


def lines_of(paths: Sequence[str]) -> list[JobLine]:
    """Read a line for each of these directories. Blocks."""
    found = []
    for path in paths:
        kept = Kept(path, notes_in(path, _NOTES_READ))
        if (note := kept.newest) is not None:
            state, at = (note.outcome, note.ended) if kept.has_ended else (NO_END, note.began)
            since_s, workers = max(wall_time(0.0) - at, 0.0), note.nodes * note.workers
            sizes = (note.nodes, workers, note.round, -1, -1, None)
            found.append(JobLine(os.path.basename(path), state, since_s, *sizes, note.text))
    return found


def read_kept(path: str) -> Kept:
    """Blocks. Raises UsageError."""
    notes = notes_in(path)
    if not notes and not os.path.isfile(os.path.join(path, rules.HISTORY)):
        raise UsageError(f"{shown(path)}: nothing is kept of a job there")
    machine = socket.gethostname()
    living = [one.node for one in notes if one.machine == machine and lives(one.pid)]
    files = [os.path.join(path, rules.HISTORY), *(note.history for note in notes)]
    recorded, trouble = None, ""
    if known := [one for one in files if one and os.path.isfile(one)]:
        try:
            recorded = read_history(known[0])
        except UsageError as error:
            if not notes:
                raise
            trouble = str(error)
    return Kept(path, notes, recorded, living, trouble)


def status_of(kept: Kept, head: str, width: int, most: int) -> list[str]:
    """At most so many lines for a person."""
    now, view, newest = wall_time(0.0), kept.view, kept.newest
    where = brief(kept.path)
    kept_ranks = {line.rank for note in kept.notes for line in note.output}
    rows: list[str] = []
    if view is not None:
        rows = status_lines(view, width, most, where, kept_ranks=kept_ranks)
        if not kept.has_verdict:
            # Which nodes were in the round is told below.
            rows = [row for row in rows if not row.startswith("  nodes ")]
            at = moment_text(kept.written_at, now)
            said = f"at {at} it was {kept.state}, in round {view.round}"
            if kept.has_ended:
                rows[1:1] = _labelled("last status", [said], width)
            else:
                rows[0] = f"{job_name(view.job)}: {NO_END}; {said}"
    elif newest is not None:
        rows = _of_note(newest, width, now)
        if found := advice_after_the_end(newest.outcome, newest.text, newest.cause, kept_ranks):
            rows += next_lines(found, where, width)
    told = rules.ended_lines(kept.notes, kept.living)
    more = len(told) - _NODES_SHOWN
    if more > 0 and most <= LINES_MAX:
        told = [*told[:_NODES_SHOWN], f"and {more} more lines: --all"]
    ends = _labelled("ends", told, width)
    lost = [note for note in kept.notes if not note.ended and note.node not in kept.living]
    if lost and not kept.has_verdict:
        machines = fold_names({note.machine for note in lost})
        why = f"look on {machines} for what killed them: dmesg -T, and what the scheduler says"
        ends += next_lines(Advice("ends", text=why), where, width)
    ends += _labelled("history", [kept.trouble] if kept.trouble else [], width)
    if kept.recorded is None and newest is not None and not newest.is_host:
        ends += _labelled("elsewhere", [_elsewhere(newest)], width)
    room = max(most - len(ends) - 1, 1)
    if len(rows) > room:
        rows = [*rows[: room - 1], f"  ... {len(rows) - room + 1} more lines: --all"]
    return [head, *rows, *ends]


def events_of(kept: Kept) -> Recorded:
    """Raises RendezvousConnectionError where the events are elsewhere."""
    if kept.recorded is None:
        where = "" if kept.newest is None else f": {kept.trouble or _elsewhere(kept.newest)}"
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
        return [f"{name}: began {begun}, in round {note.round}; {NO_END}"]
    when = duration_text(max(now - note.ended, 0.0))
    said = f"{name}: {state_word(note.outcome)} {when} ago, round {note.round}: {note.text}"
    lines = wrap(said, width, subsequent_indent=" " * 14, break_on_hyphens=False)
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
    words = scanned.words[len(command.words) :]
    if words and words[0] in ("exclude", "allow"):
        words = words[2:]
    if words and command.may_have[0].startswith("ENDPOINT"):
        where: Value | None = word(words[0])
    else:
        where = next((word(each) for each in words if is_endpoint(each)), None)
    try:
        jobs = read_job(command, scanned, where)
    except RallypointError:
        return None
    return None if jobs[0].secret or len(jobs) > 1 else jobs[0]


def _with(error: RendezvousConnectionError, more: str) -> RendezvousConnectionError:
    return RendezvousConnectionError(f"{error}{more}")
