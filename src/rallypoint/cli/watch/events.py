"""`rallypoint events`: what happened to a job, and with `-f` what happens to it."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import Struct

from rallypoint.cli import access, values
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.values import Given, word
from rallypoint.cli.watch.events_text import LINES_MAX, MOMENTS, event_lines, newest_of, since
from rallypoint.cli.watch.kept import Kept, answer_or_kept, events_of, is_kept, read_kept
from rallypoint.cli.watch.reach import (
    EXIT_CODES,
    HOW_TO_FIND,
    Asking,
    JobAt,
    again,
    decoded,
    named,
    only_one,
    open_to_follow,
    read_job,
    token_of,
)
from rallypoint.cli.watch.recorded import is_history, read_history, refuse_options
from rallypoint.cli.watch.terminal import COLOUR, print_lines, shows_colours
from rallypoint.clocks import wall_time
from rallypoint.coordinator.token import JobToken
from rallypoint.core.json_reader import UnreadableJsonError, read_as
from rallypoint.core.settings import MAX_GIVEN, Setting
from rallypoint.core.text import count, shown
from rallypoint.core.watch.event_groups import may_be_one_of_several
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.history_file import Recorded
from rallypoint.core.watch.job_view import JobView
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.errors import RendezvousConnectionError, UsageError
from rallypoint.observe.printing import JsonLine, json_text, print_error, say

HOLD_S = 0.5
"""How long `-f` waits whether other nodes join too."""

EVENTS = Command(
    "events",
    """\
usage: rallypoint events [ENDPOINT|FILE|DIR] [options]

Show what happened to a job: nodes that joined, left or were lost, rounds and
how they ended, restarts, checkpoints, hangs. Lines with ! tell of something
that went wrong. ENDPOINT is what its nodes have as --rdzv-endpoint; without
one, it is your job on this machine. FILE is one that --history has written, DIR
is what was kept of a job that has ended.

  rallypoint events
  rallypoint events node-0 --job digits -f
  rallypoint events node-0 --job digits --failed --since 12h
""",
    (
        (
            "Options",
            (
                Setting(
                    "--follow", "", "also what comes, until the job ends", "switch", short="-f"
                ),
                Setting(
                    "--since",
                    "AGE|TIME",
                    "only what is as young as 90s, 10m, 12h or 2d, or came after 22:30 or"
                    " 2030-12-31T18:30:00",
                ),
                Setting("--failed", "", "only what went wrong", "switch"),
                Setting(
                    "--last",
                    "N",
                    f"the newest N, not {LINES_MAX}",
                    "integer",
                    least=1,
                    most=MAX_GIVEN,
                ),
                Setting("--all", "", "all that is known", "switch"),
                Setting("--json", "", "print a line of JSON for each", "switch"),
                COLOUR,
            ),
        ),
        HOW_TO_FIND,
    ),
    EXIT_CODES,
    may_have=("ENDPOINT|FILE|DIR",),
)


class _Options(Struct, frozen=True):
    job: JobAt | None
    file: str
    """Of `--history`, where there is no job."""
    follow: bool
    since: float
    failed: bool
    most: int | None
    """None: all."""
    as_json: bool
    colour: bool


def run(argv: list[str]) -> int:
    """Returns 0. Blocks until it is answered, with `-f` until the job ends.

    Raises UsageError, AccessError, InfrastructureError, and HelpRequested.
    """
    return answer_or_kept(EVENTS, argv, partial(_run, argv), partial(_show_kept, argv))


def _run(argv: list[str]) -> int:
    options = with_hint(EVENTS, lambda: _parse(argv))
    if options.job is None:
        is_dir = is_kept(Given(options.file, ""))
        known = events_of(read_kept(options.file)) if is_dir else read_history(options.file)
        _show_recorded(known, options)
        return 0
    token = token_of(options.job)
    access.keep_secrets()
    asyncio.run(_Events(options, options.job, token).run())
    return 0


def _show_kept(argv: list[str], kept: Kept, head: str) -> int:
    say(head)
    _show_recorded(events_of(kept), _parse(argv, kept.path))
    return 0


def _show_recorded(recorded: Recorded, options: _Options) -> None:
    _show(recorded.entries, options)
    if recorded.lost:
        lost = count(recorded.lost, "line")
        print_error("rallypoint", f"{shown(options.file)}: {lost} could not be written to it")


def _parse(argv: list[str], kept: str = "") -> _Options:
    """`kept`: the directory that is read in place of asking a job."""
    scanned = parse(EVENTS, argv, {})
    where = word(scanned.words[0]) if scanned.words else None
    last = scanned.get("--last")
    most: int | None = LINES_MAX if last is None else values.integer_within(last, 1, MAX_GIVEN)
    if scanned.on("--all"):
        if last is not None:
            raise last.wrong("--all shows more than that: give one of the two")
        most = None
    age, job, file = scanned.get("--since"), None, kept
    if kept:
        pass
    elif where is not None and (is_kept(where) or is_history(where)):
        refuse_options(EVENTS, scanned, ["--follow"])
        file = where.text
    else:
        job = only_one(read_job(EVENTS, scanned, where))
    return _Options(
        job,
        file,
        scanned.on("--follow"),
        0.0 if age is None else _since(age),
        scanned.on("--failed"),
        most,
        scanned.on("--json"),
        shows_colours(scanned.read(EVENTS, "--color", "auto")),
    )


def _since(value: Given) -> float:
    try:
        return since(value.text, wall_time(0.0))
    except (ValueError, OverflowError):
        raise value.wrong(f"needs {MOMENTS}") from None


class _Events:
    def __init__(self, options: _Options, job: JobAt, token: JobToken | None) -> None:
        self._options, self._job, self._token = options, job, token
        self._last = 0
        """The number of the newest event that was printed, or passed over."""
        self._life = 0
        """Of the job, in which the events have these numbers."""

    async def run(self) -> None:
        self._job = await named(self._job, self._token)
        follow = self._options.follow
        asking = await (open_to_follow if follow else Asking.open)(self._job, self._token)
        try:
            if not _show(await self._known(asking), self._options) or not follow:
                return
            while not await self._followed(asking):
                asking.close()
                asking = await again(self._job, self._token)
        finally:
            asking.close()

    async def _known(self, asking: Asking) -> list[HistoryEntry]:
        """What has happened up to now."""
        found = [_entry(value) async for value in asking.ask(Ask(Subject.EVENTS))]
        known = [entry for entry in found if entry is not None]
        self._last = known[-1].number if known else 0
        return known

    async def _followed(self, asking: Asking) -> bool:
        """Show what comes until the job has ended. False: the coordinator went away before."""
        is_last = False
        held: list[HistoryEntry] = []
        try:
            await self._look_for_another_life(asking)
        except RendezvousConnectionError:
            return False
        asking.send(Ask(Subject.EVENTS, self._last, follow=True))
        while not is_last:
            try:
                async with asyncio.timeout(HOLD_S if held else None):
                    value, is_last = await asking.next_value()
            except TimeoutError:
                if not self._print(held):
                    return True
                continue
            except RendezvousConnectionError:
                self._print(held)
                return False
            if (entry := _entry(value)) is not None and entry.number > self._last:
                self._last = entry.number
                held.append(entry)
                if not may_be_one_of_several(entry) and not self._print(held):
                    return True
        self._print(held)
        return True

    def _print(self, held: list[HistoryEntry]) -> bool:
        """Print these events, and hold them no longer. False: the reader is gone."""
        wanted = _wanted(held, self._options)
        held.clear()
        return not wanted or print_lines(_lines(wanted, self._options), colour=self._options.colour)

    async def _look_for_another_life(self, asking: Asking) -> None:
        """A coordinator that knows nothing of the job's past counts events from 1 again."""
        life = decoded(await asking.answer(Ask(Subject.STATUS)), JobView).incarnation
        if self._life not in (0, life):
            say("the job has begun anew: the last events before that may be missing")
            self._last = 0
        self._life = life


def _wanted(entries: list[HistoryEntry], options: _Options) -> list[HistoryEntry]:
    return [
        entry
        for entry in entries
        if entry.time >= options.since and (entry.is_wrong or not options.failed)
    ]


def _show(known: list[HistoryEntry], options: _Options) -> bool:
    """False: the reader is gone."""
    wanted = _wanted(known, options)
    lines = newest_of(_lines(wanted, options), options.most, tell=not options.as_json)
    if not wanted and (not options.follow or options.file) and not options.as_json:
        lines = ["nothing of that kind has happened" if known else "nothing has happened yet"]
    return print_lines(lines, colour=options.colour)


def _lines(entries: list[HistoryEntry], options: _Options) -> list[str]:
    if options.as_json:
        return [JsonLine(json_text(entry)) for entry in entries]
    return event_lines(entries, wall_time(0.0))


def _entry(value: bytes) -> HistoryEntry | None:
    """None: there was nothing to tell. Raises UsageError for what this version can't read."""
    try:
        return None if value == b"null" else read_as(value, HistoryEntry)
    except UnreadableJsonError as error:
        raise UsageError(
            f"the coordinator there tells of events in another way ({shown(str(error))}): use the "
            "rallypoint of its version"
        ) from error
