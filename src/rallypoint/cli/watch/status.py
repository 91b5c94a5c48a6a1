"""`rallypoint status`: what a job does now, and what keeps it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from rallypoint.cli.machine import brief
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.render import clock_text, moment_text
from rallypoint.cli.values import word
from rallypoint.cli.watch.asking import question
from rallypoint.cli.watch.asking.find import (
    EXIT_CODES,
    HOW_TO_FIND,
    JobAt,
    as_noted,
    read_job,
    runs_here,
)
from rallypoint.cli.watch.asking.question import Question, Words
from rallypoint.cli.watch.asking.reach import (
    Asking,
    CoordinatorLostError,
    JobEndedError,
    UnreachedHereError,
    all_jobs,
    decoded,
    recorded_jobs,
)
from rallypoint.cli.watch.kept import Kept, is_kept, kept_at, lines_of, read_kept, status_of
from rallypoint.cli.watch.recorded import read_history, view_in
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
from rallypoint.coordinator.client.token import JobToken
from rallypoint.core.settings import Setting
from rallypoint.core.text import job_name, shown
from rallypoint.core.watch.job_view import JobLine, JobView
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.errors import AccessError, RallypointError, UsageError
from rallypoint.observe.printing import JsonLine, json_text, print_text, redraw, say

ANSWER_S = 5.0
"""The time limit in seconds of a coordinator's answer, in a table of several jobs or with
`--watch`."""
WATCH_S = 1.0
"""The interval of `--watch`, in seconds."""

STATUS = Command(
    "status",
    """\
usage: rallypoint status [ENDPOINT|FILE|DIR] [options]

Show a job's state and what is holding it up: progress, time spent, nodes,
the end of the last round, and the next command.

ENDPOINT is the --rdzv-endpoint of its nodes, a host or a directory; the default
is your job on this machine. For several jobs it prints a table. FILE was written
by --history: the last status in it is shown.

For a job that has ended, the record that this machine keeps is shown. DIR is a
copy of that record, the job's --log-dir, or a directory of jobs, to list them.

  rallypoint status
  rallypoint status node-0 --job digits --watch
  rallypoint status /shared/jobs
""",
    (
        (
            "Options",
            (
                Setting("--watch", "", "refresh each second until the job ends", "switch"),
                Setting("--all", "", f"show all, not only {LINES_MAX} lines", "switch"),
                Setting("--json", "", "print JSON, with all that is known", "switch"),
                COLOUR,
            ),
        ),
        HOW_TO_FIND,
    ),
    EXIT_CODES,
    may_have=("ENDPOINT|FILE|DIR",),
)


class Status(Question):
    """The command `rallypoint status`."""

    command = STATUS
    shows_kept = True
    not_of_files = "--watch"

    def __init__(self, scanned: Scanned, words: Words) -> None:
        super().__init__(scanned, words)
        self._watches = scanned.on("--watch")
        self._most = ALL_LINES if scanned.on("--all") else LINES_MAX
        self._colour = shows_colours(scanned.read(STATUS, "--color", "auto"))
        self._shown: tuple[JobView, float] | None = None
        """The newest view, and when it was shown in Unix seconds; None: none was."""

    def find(self) -> list[JobAt]:
        """Return the named job, or if no place is named, the user's jobs on this machine.

        Of these only those with the name, if one is given.
        """
        return read_job(STATUS, self.scanned, self.words.where)

    async def ask(self) -> int:
        """Ask, and print the status of the job, or a table of several jobs.

        Returns the exit code. Raises as `Question.ask`.
        """
        job, token = self.jobs[0], self.tokens[0]
        look: Callable[[], Coroutine[Any, Any, list[JobLine]]]
        if len(self.jobs) > 1:
            look = partial(_lines_of, list(zip(self.jobs, self.tokens, strict=True)))
        elif job.run_id is not None:
            return await super().ask()
        elif job.register is not None:
            look = partial(_recorded, job, job.register, token)
        else:
            look = partial(all_jobs, job, token)
            if len(jobs := await look()) == 1:
                self.jobs = [replace(job, run_id=jobs[0].job)]
                return await super().ask()
        return await self._show_tables(look)

    async def talk(self, asking: Asking) -> int:
        """Ask, and print the status, once or with `--watch` until the job has ended.

        Returns the exit code. Raises as `Asking.next_value`.
        """
        if not self._watches:
            self._show(decoded(await asking.answer(Ask(Subject.STATUS)), JobView))
            return 0
        try:
            await self._watch(asking)
        except CoordinatorLostError:
            self._show_stale()
            raise
        return 0

    async def _watch(self, asking: Asking) -> None:
        """Show the job's status each second until it has ended, or the reader is gone.

        Raises CoordinatorLostError if the coordinator is silent, so that an old view is not taken
        for news.
        """
        is_last = False
        while not is_last:
            asking.send(Ask(Subject.STATUS, follow=True))
            try:
                async with asyncio.timeout(ANSWER_S):
                    value, is_last = await asking.next_value()
            except TimeoutError:
                raise CoordinatorLostError("the coordinator does not answer") from None
            if not self._show(decoded(value, JobView)):
                return
            with suppress(TimeoutError):
                if not is_last:
                    # The end of the job is told at once, and not a second later.
                    async with asyncio.timeout(WATCH_S):
                        value, is_last = await asking.next_value()
                        self._show(decoded(value, JobView))

    def _show(self, view: JobView) -> bool:
        if self.as_json:
            return print_text(JsonLine(json_text(view)))
        now = wall_time(0.0)
        self._shown = view, now
        return self._show_lines(self._lines(view, clock_text(now)))

    def _show_stale(self) -> None:
        """Show the last view in the terminal again, marked as old.

        Nothing is shown elsewhere than in a terminal.
        """
        if self._shown is None or self.as_json or not can_redraw():
            return
        view, at = self._shown
        clock = f"as it was at {clock_text(at)}; no answer since then"
        self._show_lines(self._lines(view, clock))

    def _lines(self, view: JobView, clock: str) -> Callable[[int, int], Sequence[str]]:
        return partial(status_lines, view, where=self.jobs[0].words, clock=clock)

    async def _show_tables(self, look: Callable[[], Coroutine[Any, Any, list[JobLine]]]) -> int:
        """Show the table of jobs once, or with `--watch` each second until all jobs have ended.

        Returns the exit code. `look` asks for the jobs.
        """
        jobs = await look()
        while self._show_table(jobs) and self._watches and not all(map(has_ended, jobs)):
            await asyncio.sleep(WATCH_S)
            jobs = await look()
        return 0

    def _show_table(self, jobs: list[JobLine], *, whole_names: bool = False) -> bool:
        if self.as_json:
            return print_text(JsonLine(json_text(jobs)))
        if not jobs:
            return print_text("no jobs")
        clock = clock_text(wall_time(0.0))
        return self._show_lines(partial(table_lines, jobs, clock=clock, whole_names=whole_names))

    def _show_lines(self, lines: Callable[[int, int], Sequence[str]]) -> bool:
        """Print the lines, or with `--watch` in a terminal replace those before.

        False: the reader is gone. `lines` returns them for a width and a greatest number.
        """
        width, height = screen_size()
        if self._watches and can_redraw():
            # At least two: a terminal that does not know its size may say anything.
            return redraw(*lines(width, max(min(self._most, height - 1), 2)), colour=self._colour)
        return print_lines(lines(width, self._most), colour=self._colour)

    def show_kept(self, kept: Kept, head: str) -> int:
        """Show the status of a kept job, after the line `head`. Returns the exit code."""
        if self.as_json:
            print_text(JsonLine(json_text(kept.view or kept.notes)))
            return 0
        print_lines(status_of(kept, head, screen_size()[0], self._most), colour=self._colour)
        return 0

    def show_file(self) -> int:
        """Show the status in a file of `--history`, or of the jobs in a directory.

        Returns the exit code. Raises UsageError.
        """
        file = self.words.file
        if not is_kept(word(file)):
            return self._show_recorded(file)
        if len(paths := kept_at(file)) > 1:
            where = brief(os.path.dirname(paths[0]))
            say(f"kept in {where}; one of them: rallypoint status {where}/JOB")
            self._show_table(lines_of(paths), whole_names=True)  # They are to be typed.
            return 0
        kept = read_kept(paths[0])
        return self.show_kept(kept, f"kept in {brief(kept.path)}:")

    def _show_recorded(self, file: str) -> int:
        recorded = read_history(file)
        view, at = view_in(recorded), recorded.status.time if recorded.status else 0.0
        if view is None:
            raise UsageError(f"{shown(file)}: no status of the job is in it yet")
        if self.as_json:
            print_text(JsonLine(json_text(view)))
            return 0
        head = f"as {file} had it at {moment_text(at, wall_time(0.0))}:"
        lines = [head, *status_lines(view, screen_size()[0], self._most - 1)]
        print_lines(lines, colour=self._colour)
        return 0

    def has_ended(self, end: JobEndedError) -> int:
        """Print how a job ended of which nothing is kept on this machine.

        Returns the exit code. With `--json` the error is raised.
        """
        if self.as_json:
            raise end
        print_text(f"{job_name(self.jobs[0].name)}: {end}")
        return 0


run = partial(question.run, Status)


async def _recorded(job: JobAt, register: RegisterConfig, token: JobToken | None) -> list[JobLine]:
    """Ask all jobs with a record in this place at once, and return a line for each."""
    run_ids = await recorded_jobs(register)
    return await _lines_of([(replace(job, run_id=run_id), token) for run_id in run_ids])


async def _lines_of(jobs: list[tuple[JobAt, JobToken | None]]) -> list[JobLine]:
    """Ask all jobs at once, and return their lines.

    One that does not answer, a stopped process for example, holds up no other.
    """
    found = await asyncio.gather(*(_line_of(job, token) for job, token in jobs))
    return [line for lines in found for line in lines]


async def _line_of(job: JobAt, token: JobToken | None) -> list[JobLine]:
    job = as_noted(job)  # Another node may lead it since the last look.
    try:
        async with asyncio.timeout(ANSWER_S):
            return await all_jobs(job, token)
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
    """Return a line for a job whose status is unknown, with the reason `why`."""
    return JobLine(job.name, state, since_s, 0, 0, 0, -1, -1, None, why)
