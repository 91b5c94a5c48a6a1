"""`rallypoint status`: what a job does now, and what keeps it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli import access
from rallypoint.cli.machine import brief
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.render import clock_text
from rallypoint.cli.values import word
from rallypoint.cli.watch.events_text import moment_text
from rallypoint.cli.watch.kept import (
    Kept,
    answer_or_kept,
    is_kept,
    kept_at,
    lines_of,
    read_kept,
    status_of,
)
from rallypoint.cli.watch.reach import (
    EXIT_CODES,
    HOW_TO_FIND,
    Asking,
    JobAt,
    JobEndedError,
    UnreachedHereError,
    again,
    as_noted,
    ask_for_all,
    decoded,
    jobs_of,
    open_to_follow,
    read_job,
    recorded_jobs,
    runs_here,
    token_of,
)
from rallypoint.cli.watch.recorded import is_history, read_history, refuse_options, view_in
from rallypoint.cli.watch.status_text import LINES_MAX, has_ended, status_lines, table_lines
from rallypoint.cli.watch.terminal import (
    ALL_LINES,
    COLOUR,
    can_redraw,
    print_lines,
    screen_size,
    shows_colours,
)
from rallypoint.clocks import wall_time
from rallypoint.config import RegisterConfig
from rallypoint.coordinator.token import JobToken
from rallypoint.core.settings import Setting
from rallypoint.core.text import job_name, shown
from rallypoint.core.watch.job_view import JobLine, JobView
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.errors import AccessError, RallypointError, RendezvousConnectionError, UsageError
from rallypoint.observe.printing import JsonLine, json_text, print_text, redraw, say

ANSWER_S = 5.0
"""So long a coordinator may take to answer, of several jobs or to `--watch`."""
WATCH_S = 1.0
"""Between two looks of `--watch`."""

STATUS = Command(
    "status",
    """\
usage: rallypoint status [ENDPOINT|FILE|DIR] [options]

Show a job's state and what is holding it up: progress, where its time went,
nodes, the end of its last round, and the command to type next. ENDPOINT is what
its nodes have as --rdzv-endpoint, a host or a directory; without one, it is
your job on this machine. Of several jobs it prints a table. FILE is one that
--history has written: its last status. Of a job that has ended it shows what is
kept on this machine; DIR is a copy of that, the job's --log-dir, or the
directory in which jobs are kept: they are listed.

  rallypoint status
  rallypoint status node-0 --job digits --watch
  rallypoint status /shared/jobs
""",
    (
        (
            "Options",
            (
                Setting("--watch", "", "show it again each second until the job ends", "switch"),
                Setting("--all", "", f"also what does not fit into {LINES_MAX} lines", "switch"),
                Setting("--json", "", "print JSON, with all that is known", "switch"),
                COLOUR,
            ),
        ),
        HOW_TO_FIND,
    ),
    EXIT_CODES,
    may_have=("ENDPOINT|FILE|DIR",),
)


class _Options(Struct, frozen=True):
    jobs: list[JobAt]
    watch: bool
    is_whole: bool
    as_json: bool
    colour: bool
    file: str = ""
    """Of `--history`, in place of jobs."""


def run(argv: list[str]) -> int:
    """Returns 0. Blocks until it is answered, with `--watch` until the job ends.

    Raises UsageError, AccessError, InfrastructureError, and HelpRequested.
    """
    try:
        return answer_or_kept(STATUS, argv, partial(_run, argv), partial(_show_kept, argv))
    except JobEndedError as end:
        options = _parse(argv)
        if options.as_json:
            raise
        print_text(f"{job_name(options.jobs[0].name)}: {end}")
        return 0


def _run(argv: list[str]) -> int:
    options = with_hint(STATUS, lambda: _parse(argv))
    if options.file and is_kept(word(options.file)):
        if len(paths := kept_at(options.file)) > 1:
            where = brief(os.path.dirname(paths[0]))
            say(f"kept in {where}; one of them: rallypoint status {where}/JOB")
            _show_table(lines_of(paths), options, whole_names=True)  # They are to be typed.
            return 0
        kept = read_kept(paths[0])
        return _show_kept(argv, kept, f"kept in {brief(kept.path)}:")
    if options.file:
        _show_recorded(options)
        return 0
    tokens = [token_of(job) for job in options.jobs]
    access.keep_secrets()
    first = options.jobs[0]
    if first.register is not None and first.run_id is None:
        look = partial(_recorded, first, first.register, tokens[0])
        asyncio.run(_show_tables(look, options))
        return 0
    if len(options.jobs) > 1:
        pairs = list(zip(options.jobs, tokens, strict=True))
        asyncio.run(_show_tables(partial(_lines_of, pairs), options))
        return 0
    asyncio.run(_Status(options, tokens[0]).run())
    return 0


def _parse(argv: list[str]) -> _Options:
    scanned = parse(STATUS, argv, {})
    where = word(scanned.words[0]) if scanned.words else None
    is_whole, as_json = scanned.on("--all"), scanned.on("--json")
    colour = shows_colours(scanned.read(STATUS, "--color", "auto"))
    if where is not None and (is_kept(where) or is_history(where)):
        refuse_options(STATUS, scanned, ["--watch"])
        return _Options([], False, is_whole, as_json, colour, where.text)
    jobs = read_job(STATUS, scanned, where)
    return _Options(jobs, scanned.on("--watch"), is_whole, as_json, colour)


async def _recorded(job: JobAt, register: RegisterConfig, token: JobToken | None) -> list[JobLine]:
    """All jobs that have a record in this place."""
    run_ids = await recorded_jobs(register)
    return await _lines_of([(replace(job, run_id=run_id), token) for run_id in run_ids])


async def _lines_of(jobs: list[tuple[JobAt, JobToken | None]]) -> list[JobLine]:
    """Of all at once: one that does not answer, a stopped process say, holds up no other."""
    found = await asyncio.gather(*(_line_of(job, token) for job, token in jobs))
    return [line for lines in found for line in lines]


async def _line_of(job: JobAt, token: JobToken | None) -> list[JobLine]:
    job = as_noted(job)  # Another node may lead it since the last look.
    try:
        async with asyncio.timeout(ANSWER_S):
            asking, lines = await ask_for_all(job, token)
            asking.close()
            return lines
    except TimeoutError:
        where = "" if job.register is not None else f" at {job.endpoint}"
        why = f"its coordinator{where} did not answer within {ANSWER_S:g} s"
        return [_unknown(job, "no answer", why, ANSWER_S)]
    except JobEndedError as end:
        return [_unknown(job, end.outcome, end.reason)]
    except AccessError as error:
        return [_unknown(job, "no access", str(error))]
    except RallypointError as error:
        if job.is_here and not runs_here(job):
            return []  # It has ended by now.
        why = error.why if isinstance(error, UnreachedHereError) else str(error)
        return [_unknown(job, "no answer", why)]


def _unknown(job: JobAt, state: str, why: str, since_s: float = 0.0) -> JobLine:
    """A line for a job that can't be asked."""
    return JobLine(job.name, state, since_s, 0, 0, 0, -1, -1, None, why)


class _Status:
    def __init__(self, options: _Options, token: JobToken | None) -> None:
        self._options, self._job, self._token = options, options.jobs[0], token
        self._shown: tuple[JobView, float] | None = None
        """The newest view, and when it came."""

    async def run(self) -> None:
        jobs: list[JobLine] = []
        if self._job.run_id is None:
            asking, jobs = await ask_for_all(self._job, self._token)
        else:
            find = open_to_follow if self._options.watch else Asking.open
            asking = await find(self._job, self._token)
        try:
            if self._job.run_id is None:
                if len(jobs) != 1:
                    await _show_tables(partial(jobs_of, asking), self._options)
                    return
                asking.close()
                self._job = replace(self._job, run_id=jobs[0].job)
                asking = await Asking.open(self._job, self._token)
            if not self._options.watch:
                self._show(_view(await asking.answer(Ask(Subject.STATUS))))
                return
            while not await self._watch(asking):
                asking.close()
                self._show_stale()
                asking = await again(self._job, self._token)
        finally:
            asking.close()

    async def _watch(self, asking: Asking) -> bool:
        """Show the job until it has ended, or nobody reads. False: the coordinator went away
        before, or is silent: what is shown must not be taken for news."""
        while True:
            asking.send(Ask(Subject.STATUS, follow=True))
            try:
                async with asyncio.timeout(ANSWER_S):
                    value, is_last = await asking.next_value()
            except (TimeoutError, RendezvousConnectionError):
                return False
            try:
                if not self._show(_view(value)):
                    return True
                if not is_last:
                    # The end of the job is told at once, and not a second later.
                    async with asyncio.timeout(WATCH_S):
                        value, is_last = await asking.next_value()
                        self._show(_view(value))
            except TimeoutError:
                continue
            except RendezvousConnectionError:
                return False
            if is_last:
                return True

    def _show(self, view: JobView) -> bool:
        if self._options.as_json:
            return print_text(JsonLine(json_text(view)))
        now = wall_time(0.0)
        self._shown = view, now
        return _show_lines(self._lines(view, clock_text(now)), self._options)

    def _show_stale(self) -> None:
        """Mark the view that a terminal shows as old."""
        if self._shown is None or self._options.as_json or not can_redraw():
            return
        view, at = self._shown
        clock = f"as it was at {clock_text(at)}; no answer since then"
        _show_lines(self._lines(view, clock), self._options)

    def _lines(self, view: JobView, clock: str) -> Callable[[int, int], Sequence[str]]:
        return partial(status_lines, view, where=self._job.words, clock=clock)


def _show_kept(argv: list[str], kept: Kept, head: str) -> int:
    scanned = parse(STATUS, argv, {})
    if scanned.on("--json"):
        print_text(JsonLine(json_text(kept.view or kept.notes)))
        return 0
    most = ALL_LINES if scanned.on("--all") else LINES_MAX
    colour = shows_colours(scanned.read(STATUS, "--color", "auto"))
    print_lines(status_of(kept, head, screen_size()[0], most), colour=colour)
    return 0


def _show_recorded(options: _Options) -> None:
    recorded = read_history(options.file)
    view, at = view_in(recorded), recorded.status.time if recorded.status else 0.0
    if view is None:
        raise UsageError(f"{shown(options.file)}: no status of the job is in it yet")
    if options.as_json:
        print_text(JsonLine(json_text(view)))
        return
    most = ALL_LINES if options.is_whole else LINES_MAX
    head = f"as {options.file} had it at {moment_text(at, wall_time(0.0))}:"
    print_lines([head, *status_lines(view, screen_size()[0], most - 1)], colour=options.colour)


def _view(value: bytes) -> JobView:
    return decoded(value, JobView)


async def _show_tables(
    look: Callable[[], Coroutine[Any, Any, list[JobLine]]], options: _Options
) -> None:
    """Once, or with `--watch` each second until all jobs have ended, or nobody reads."""
    jobs = await look()
    while _show_table(jobs, options) and options.watch and not all(map(has_ended, jobs)):
        await asyncio.sleep(WATCH_S)
        jobs = await look()


def _show_table(jobs: list[JobLine], options: _Options, *, whole_names: bool = False) -> bool:
    if options.as_json:
        return print_text(JsonLine(json_text(jobs)))
    if not jobs:
        return print_text("no jobs")
    clock = clock_text(wall_time(0.0))
    return _show_lines(partial(table_lines, jobs, clock=clock, whole_names=whole_names), options)


def _show_lines(lines: Callable[[int, int], Sequence[str]], options: _Options) -> bool:
    """Whether anybody may read more. `lines`: of at most such a width, and so many."""
    width, height = screen_size()
    most = ALL_LINES if options.is_whole else LINES_MAX
    if options.watch and can_redraw():
        # At least two: a terminal that does not know its size may say anything.
        return redraw(*lines(width, max(min(most, height - 1), 2)), colour=options.colour)
    return print_lines(lines(width, most), colour=options.colour)
