"""The display of the kept files of an ended job (`core/watch/kept_jobs.py`).

A command asks the job's coordinator first. If it does not answer, the command looks for files on
this machine, or in a home that it shares with the job's nodes.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.agent.telemetry.keeping import meeting_place
from rallypoint.cli.machine import ThisHost, brief
from rallypoint.cli.render import duration_text, moment_text
from rallypoint.cli.values import Given
from rallypoint.cli.watch.asking.find import LOCAL_HOSTS, JobAt, NotOnThisMachineError, runs_here
from rallypoint.cli.watch.asking.reach import (
    JobEndedError,
    NoNextCoordinatorError,
    NotHostedError,
    UnreachedHereError,
)
from rallypoint.cli.watch.recorded import read_history, view_in
from rallypoint.cli.watch.status_text import (
    LINES_MAX,
    cause_detail,
    labelled,
    next_lines,
    state_word,
    status_lines,
)
from rallypoint.clocks import wall_time
from rallypoint.config import RendezvousConfig
from rallypoint.core.model import Outcome
from rallypoint.core.round_record import RoundRecord
from rallypoint.core.text import job_name, shown
from rallypoint.core.watch import kept_jobs as rules
from rallypoint.core.watch.advice import Advice, advice_after_the_end
from rallypoint.core.watch.history_file import Recorded, StatusLine
from rallypoint.core.watch.job_view import HowItEnded, JobLine, JobView
from rallypoint.core.watch.kept_jobs import NodeNote, is_logged_in
from rallypoint.core.watch.names import fold_names
from rallypoint.errors import AccessError, RallypointError, RendezvousConnectionError, UsageError
from rallypoint.machine_name import process_name
from rallypoint.observe.kept_jobs import directories, find, notes_in
from rallypoint.threads import run_in_thread

if TYPE_CHECKING:  # The commands import this module.
    from rallypoint.cli.watch.asking.question import Question

READ_S = 30.0
"""The time limit in seconds for reading kept files: the home may be on a dead file server."""
_ENDS_SHOWN = 6
NO_END = "no end is known"


def _is_of_job(note: NodeNote) -> bool:
    """Return whether the node saw the job end, and neither left nor was preempted before."""
    return note.ended > 0 and not note.left and note.outcome != Outcome.PREEMPTED.value


def _how_much_it_knows(note: NodeNote) -> tuple[bool, bool, bool, bool, float]:
    """Return a sort key by which the note with the most knowledge is the largest.

    A node that took part in no round does not know how many nodes the job has.
    """
    is_of_job, has_ended = _is_of_job(note), note.ended > 0
    return (is_of_job, has_ended, note.is_host, note.first_rank >= 0, note.ended)


SomeError = RendezvousConnectionError | JobEndedError | NotHostedError


class Kept(Struct):
    """The files that are kept of one job on this machine, as they were read."""

    path: str
    notes: list[NodeNote]
    recorded: Recorded | None = None
    """The history of the job; None: it is elsewhere, or can't be read."""
    living: list[str] = field(default_factory=list)
    """The nodes whose agents run on this machine."""
    trouble: str = ""
    """Why the history can't be read; empty: it can, or is not here."""

    @property
    def newest(self) -> NodeNote | None:
        """The node's note that knows most; None: there are no notes.

        That is one with the job's end, else with the end of its node's part. Of several such, that
        of the host is preferred, then one of a node with workers, then the one that ended last.
        """
        return max(self.notes, key=_how_much_it_knows, default=None)

    @property
    def last(self) -> StatusLine | None:
        """The last status in the history; None: there is none."""
        return None if self.recorded is None else self.recorded.status

    @property
    def view(self) -> JobView | None:
        """The last status, without nodes, with the job's end if it is known.

        The end is that of the history, or else that of a node's note. None: there is no history, or
        no status in it.
        """
        view = None if self.recorded is None else view_in(self.recorded)
        if view is None or self.last is None:
            return None
        note, now = self.newest, wall_time(0.0)
        since_s = view.since_s + max(now - self.last.time, 0.0)
        view = replace(view, nodes=(), nodes_left_out=0, since_s=since_s)
        if view.verdict is not None:
            return view
        view = replace(view, state=NO_END, waits_for="", world_nodes=0, world_workers=0)
        if note is None or not self.has_ended:
            return view
        how = "failure" if note.outcome == Outcome.FAILED.value else note.outcome
        size = (note.nodes, note.nodes * note.workers, "")
        ended = RoundRecord(note.round, *size, note.began, note.ended, how, note.text, note.cause)
        return replace(
            view,
            state=note.outcome,
            reason=note.text,
            since_s=max(now - note.ended, 0.0),
            past=(*view.past, ended),
            verdict=HowItEnded(note.outcome, note.text),
        )

    @property
    def has_verdict(self) -> bool:
        """Whether the end of the job is in its history."""
        return self.last is not None and self.last.view.verdict is not None

    @property
    def has_ended(self) -> bool:
        """Whether the job is known to have ended: by its verdict, or by the notes of its nodes."""
        if self.has_verdict or any(map(_is_of_job, self.notes)):
            return True
        # Where all others have left, the host that they have lost runs no workers any more.
        left = [note for note in self.notes if not note.is_host] or self.notes
        nodes = max((note.nodes for note in self.notes), default=1)
        return len(self.notes) >= nodes and all(note.ended for note in left)


def answer_or_kept(asked: Question, ask: Callable[[], int]) -> int:
    """Ask, or show the kept files if no coordinator answers, with a line that says so.

    Returns the exit code of the command `asked`. Blocks, and raises as `ask`, which asks. A command
    that can't show kept files needs a running job: its error says where the end is kept.
    """
    try:
        return ask()
    except NoNextCoordinatorError as error:
        kept = _kept_of(asked)
        more = f"; kept of it: rallypoint status {brief(kept.path)}" if kept else ""
        raise RendezvousConnectionError(f"{error}{more}") from error
    except AccessError as error:
        kept = _kept_of(asked, error)
        is_unnamed = bool(asked.jobs) and asked.jobs[0].run_id is None
        if not kept or not kept.newest or not is_unnamed or "--job ID" not in str(error):
            raise
        return _ask_for(kept.newest.job, asked, ask, error)
    except (RendezvousConnectionError, JobEndedError, NotHostedError) as error:
        if (kept := _kept_of(asked, error)) is None:
            if asked.shows_kept and type(error) is RendezvousConnectionError:
                raise RendezvousConnectionError(f"{error}{_where_else(asked)}") from error
            raise
        if isinstance(error, NotHostedError) and not kept.has_ended:
            raise
        if isinstance(error, RendezvousConnectionError) and kept.living and not kept.has_ended:
            who = f"agents on this machine look for the coordinator ({fold_names(kept.living)})"
            more = f"; {who}: rallypoint status {brief(kept.path)}"
            raise RendezvousConnectionError(f"{error}{more}") from error
        is_other = _is_of_another(kept, error)
        if asked.shows_kept and not is_other:
            return asked.show_kept(kept, _what_it_is(kept, error))
        is_other = is_other or isinstance(error, NotOnThisMachineError)
        more = "its end is kept" if kept.has_ended else "kept of it"
        more = "the newest that is kept" if is_other else more
        kind = UsageError if isinstance(error, UsageError) else RendezvousConnectionError
        raise kind(f"{error}; {more}: rallypoint status {brief(kept.path)}") from error


def _ask_for(name: str, asked: Question, ask: Callable[[], int], error: AccessError) -> int:
    """Ask again with a name, after the coordinator of one job refused a question without one.

    `name` is that of the last job at that endpoint.
    """
    asked.jobs = [replace(asked.jobs[0], run_id=name)]
    try:
        return answer_or_kept(asked, ask)
    except AccessError:
        raise AccessError(f"{error}; the last job there was --job {quote(name)}") from error


def _is_of_another(kept: Kept, error: SomeError) -> bool:
    """Return whether the asked job still runs, and these files are of an earlier one."""
    job = error.job if isinstance(error, UnreachedHereError) else None
    return job is not None and not kept.living and runs_here(job)


def _kept_of(asked: Question, failed: RallypointError | None = None) -> Kept | None:
    """Return the kept files of the named job; None: there are none. Blocks for `READ_S` at most.

    Raises UsageError, and RendezvousConnectionError for a disk that does not answer; its text
    begins with the earlier error `failed`.
    """

    def read() -> Kept | None:
        path = _path_of(asked)
        return read_kept(path) if path else None

    async def look() -> Kept | None:
        async with asyncio.timeout(READ_S):
            return await run_in_thread(read, "rallypoint-kept")

    try:
        return asyncio.run(look())
    except TimeoutError:
        why = f"{shown(ThisHost().kept_jobs())} does not answer: what is kept of it can't be read"
        raise RendezvousConnectionError(f"{failed}; {why}" if failed else why) from failed


def is_kept(where: Given | None) -> bool:
    """Return whether a word names a directory that stands for kept jobs, as `kept_at` finds them.

    Blocks on the file system.
    """
    return where is not None and bool(kept_at(where.text))


def kept_at(path: str) -> list[str]:
    """Return the directories of kept jobs that this path stands for, the newest first.

    It is the directory itself, those in it or in its `kept`, or those of jobs whose log files are
    in it. Blocks on the file system.
    """
    if "\0" in path or not os.path.isdir(path):
        return []
    if notes_in(path, 1) or os.path.isfile(os.path.join(path, rules.HISTORY)):
        return [path]
    for root in (path, os.path.join(path, "kept")):
        if found := [os.path.join(root, one.name) for one in directories(root)]:
            return found
    root, wanted = ThisHost().kept_jobs(), os.path.abspath(path)
    found = [os.path.join(root, one.name) for one in directories(root)] if root else []
    return [one for one in found if any(is_logged_in(note, wanted) for note in notes_in(one, 1))]


def lines_of(paths: Sequence[str]) -> list[JobLine]:
    """Return a line for each of these directories with a node's note. Blocks."""
    found = []
    for path in paths:
        kept = Kept(path, notes_in(path, 16))  # A large job has thousands.
        if (note := kept.newest) is not None:
            state, at = (note.outcome, note.ended) if kept.has_ended else (NO_END, note.began)
            since_s, workers = max(wall_time(0.0) - at, 0.0), note.nodes * note.workers
            sizes = (note.nodes, workers, note.round, -1, -1, None)
            found.append(JobLine(os.path.basename(path), state, since_s, *sizes, note.text))
    return found


def read_kept(path: str) -> Kept:
    """Read the kept files of the one job that this path stands for, as `kept_at` finds it.

    Blocks. Raises UsageError if there is none, or several, or only an unreadable history.
    """
    if len(found := kept_at(path)) > 1:
        several = f"{shown(path)}: {len(found)} jobs are kept there"
        raise UsageError(f"{several}: rallypoint status {brief(path)} lists them")
    path = found[0] if found else path
    notes = notes_in(path)
    if not notes and not os.path.isfile(os.path.join(path, rules.HISTORY)):
        raise UsageError(f"{shown(path)}: nothing is kept of a job there")
    living = [one.node for one in notes if one.process and one.process == process_name(one.pid)]
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
    """Return the status of a kept job, after the line `head`.

    It is cut to `most` lines, unless the ends of its nodes need more.
    """
    now, view, newest, where = wall_time(0.0), kept.view, kept.newest, brief(kept.path)
    kept_ranks = {line.rank for note in kept.notes for line in note.output}
    rows: list[str] = []
    if view is not None and (last := kept.last) is not None:
        rows = status_lines(view, width, most, where, kept_ranks=kept_ranks)
        said = f"at {moment_text(last.time, now)} it was {last.view.state}, in round {view.round}"
        if not kept.has_ended:
            rows = [row for row in rows if not row.startswith("  nodes ")]  # As of then.
            rows[0] = f"{job_name(view.job)}: {NO_END}; {said}"
        elif not kept.has_verdict:
            rows += labelled("last status", [said], width)
    elif newest is not None:
        rows = _of_note(newest, width, now)
        if found := advice_after_the_end(newest.outcome, newest.text, newest.cause, kept_ranks):
            rows += next_lines(found, where, width)
    told = rules.ended_lines(kept.notes, kept.living)
    ends = labelled("ends", told[: _ENDS_SHOWN if most <= LINES_MAX else None], width)
    lost = [note for note in kept.notes if not note.ended and note.node not in kept.living]
    if lost and not kept.has_verdict:
        machines = fold_names({note.machine for note in lost})
        why = f"look on {machines} for what killed them: dmesg -T, and what the scheduler says"
        ends += next_lines(Advice("ends", text=why), where, width)
    ends += labelled("history", [kept.trouble] if kept.trouble else [], width)
    if not kept.has_verdict and newest is not None and not newest.is_host:
        ends += labelled("elsewhere", [_elsewhere(newest)], width)
    room = max(most - len(ends) - 1, 1)
    if len(rows) > room:
        rows = [*rows[: room - 1], f"  ... {len(rows) - room + 1} more lines: --all"]
    return [head, *rows, *ends]


def events_of(kept: Kept) -> Recorded:
    """Return the kept history of the job, with its events.

    Raises RendezvousConnectionError where they are elsewhere, or can't be read.
    """
    if kept.recorded is None:
        where = "" if kept.newest is None else f": {kept.trouble or _elsewhere(kept.newest)}"
        raise RendezvousConnectionError(
            f"only this is kept of the job here: rallypoint status {brief(kept.path)}{where}"
        )
    return kept.recorded


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
    return lines + labelled(f"round {note.round}", told, width)


def _what_it_is(kept: Kept, error: SomeError) -> str:
    if isinstance(error, NotOnThisMachineError):
        head = str(error).partition(":")[0].partition(";")[0]
        return f"{head}; the newest that has ended is kept: {brief(kept.path)}"
    if isinstance(error, JobEndedError) and error.leader:
        last, nodes = error.leader, {note.node for note in kept.notes}
        if last not in nodes:
            more = f"the rest is on the machine of node {shown(last)}, which led it last"
            here = f"this is kept of it here: {brief(kept.path)}"
            return f"the job has ended: {shown(error.reason)}; {more}; {here}"
    if kept.has_ended:
        said = "the job has ended; this is kept of it"
    else:
        said = "the host of the job is lost, or all of its agents were killed; this is kept of it"
    return f"{said} on this machine: {brief(kept.path)}"


def _where_else(asked: Question) -> str:
    job = _meant(asked)
    said = "; nothing of it is kept on this machine"
    if job is None or job.is_here:
        return ""
    if job.register is not None or job.endpoint.host in (*LOCAL_HOSTS, socket.gethostname()):
        return said
    return f"{said}: ask on {job.endpoint.host}, if it ran there"


def _path_of(asked: Question) -> str:
    """Return the directory of the named job's kept files; empty: there is none."""
    if not (root := ThisHost().kept_jobs()):
        return ""
    job, scanned = _meant(asked), asked.scanned
    named = scanned.get("--job") or scanned.get("--rdzv-id")
    if job is None and (slurm := scanned.get("--slurm")) is not None:
        from rallypoint.cli.watch.asking.slurm_job import read_slurm_job

        return find(root, read_slurm_job(slurm).run_id, None)
    if job is None or job.is_here:
        run_id = named.text if named is not None else job.run_id if job is not None else None
        return find(root, run_id, None)
    where = meeting_place(RendezvousConfig(job.name, endpoint=job.endpoint, register=job.register))
    return find(root, job.run_id, where or None)


def _meant(asked: Question) -> JobAt | None:
    """Return the named job; None: it is not found, or several jobs are meant."""
    try:
        jobs = asked.jobs or asked.find()
    except RallypointError:
        return None
    return None if len(jobs) > 1 else jobs[0]
