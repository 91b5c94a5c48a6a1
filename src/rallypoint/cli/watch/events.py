"""`rallypoint events`: what happened to a job, and with `-f` what happens to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial

from rallypoint.cli import values
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.render import clock_text, moment_text
from rallypoint.cli.values import Given
from rallypoint.cli.watch.asking import question
from rallypoint.cli.watch.asking.find import EXIT_CODES, HOW_TO_FIND
from rallypoint.cli.watch.asking.question import Question, Words
from rallypoint.cli.watch.asking.reach import Asking, CoordinatorLostError, decoded
from rallypoint.cli.watch.kept import Kept, events_of, is_kept, read_kept
from rallypoint.cli.watch.recorded import read_history
from rallypoint.cli.watch.terminal import COLOUR, print_lines, shows_colours
from rallypoint.clocks import wall_time
from rallypoint.core.json_reader import UnreadableJsonError, read_as
from rallypoint.core.settings import MAX_GIVEN, Setting
from rallypoint.core.text import count, shown
from rallypoint.core.watch.event_groups import fold_entries, may_be_one_of_several
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.history_file import Recorded
from rallypoint.core.watch.job_view import JobView
from rallypoint.core.watch.questions import Ask, Subject
from rallypoint.errors import UsageError
from rallypoint.observe.printing import JsonLine, Painted, Tint, json_text, print_error, say

HOLD_S = 0.5
"""How long `-f` waits for like events of other nodes before it prints an event, in seconds."""
LINES_MAX = 24
NEAR_S = 5.0
"""The largest gap, in seconds, between two successive events that share a line."""
SPAN_S = 2.0
"""The least time span in seconds of a folded line that shows the time of its last event, too."""
MOMENTS = "an age like 90s, 10m, 12h or 2d, or a time like 22:30 or 2030-12-31T18:30:00"
"""A description of the times that `since` parses, for an error's text."""
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|min|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")

EVENTS = Command(
    "events",
    """\
usage: rallypoint events [ENDPOINT|FILE|DIR] [options]

Show what happened to a job: nodes that joined, left or were lost, rounds and
how they ended, restarts, checkpoints, hangs. Lines with ! show problems.
ENDPOINT is the --rdzv-endpoint of its nodes; the default is your job on this
machine. FILE was written by --history. DIR is the kept record of a job that has
ended.

  rallypoint events
  rallypoint events node-0 --job digits -f
  rallypoint events node-0 --job digits --failed --since 12h
""",
    (
        (
            "Options",
            (
                Setting("--follow", "", "show new events until the job ends", "switch", short="-f"),
                Setting(
                    "--since",
                    "AGE|TIME",
                    "only events of the last 90s, 10m, 12h or 2d, or since 22:30 or"
                    " 2030-12-31T18:30:00",
                ),
                Setting("--failed", "", "only failures and other problems", "switch"),
                Setting(
                    "--last",
                    "N",
                    f"the newest N events, not {LINES_MAX}",
                    "integer",
                    least=1,
                    most=MAX_GIVEN,
                ),
                Setting("--all", "", "all known events", "switch"),
                Setting("--json", "", "print one line of JSON for each event", "switch"),
                COLOUR,
            ),
        ),
        HOW_TO_FIND,
    ),
    EXIT_CODES,
    may_have=("ENDPOINT|FILE|DIR",),
)


class Events(Question):
    """The command `rallypoint events`."""

    command = EVENTS
    shows_kept = True
    not_of_files = "--follow"

    def __init__(self, scanned: Scanned, words: Words) -> None:
        super().__init__(scanned, words)
        last, age = scanned.get("--last"), scanned.get("--since")
        self._most: int | None = LINES_MAX
        """The most lines of events from before the command began; None: all."""
        if last is not None:
            self._most = values.integer_within(last, 1, MAX_GIVEN)
        if scanned.on("--all"):
            if last is not None:
                raise last.wrong("--all shows more than that: give one of the two")
            self._most = None
        self._since = 0.0 if age is None else _since(age)
        self._follows, self._fails = scanned.on("--follow"), scanned.on("--failed")
        self._colour = shows_colours(scanned.read(EVENTS, "--color", "auto"))
        self._has_begun = False
        """Whether the events before the command began were printed."""
        self._last = 0
        """The number of the newest event that was printed or skipped."""
        self._life = 0
        """The number of the life of the job to which `_last` belongs; 0: not known yet."""

    def show_file(self) -> int:
        """Show the events of a file of `--history`, or of a kept job. Returns the exit code."""
        file = self.words.file
        is_dir = is_kept(Given(file, ""))
        self._show_recorded(events_of(read_kept(file)) if is_dir else read_history(file), file)
        return 0

    def show_kept(self, kept: Kept, head: str) -> int:
        """Show the events of a kept job, after the line `head`. Returns the exit code."""
        say(head)
        self._show_recorded(events_of(kept), kept.path)
        return 0

    def _show_recorded(self, recorded: Recorded, where: str) -> None:
        self._follows = False
        self._show(recorded.entries)
        if recorded.lost:
            lost = count(recorded.lost, "line")
            print_error("rallypoint", f"{shown(where)}: {lost} could not be written to it")

    async def talk(self, asking: Asking) -> int:
        """Print the events, with `-f` until the job has ended, or the reader is gone.

        Returns the exit code. Raises as `Asking.next_value`.
        """
        if not self._has_begun:
            known = await self._known(asking)
            self._has_begun = True
            if not self._show(known):
                return 0
        if self._follows:
            await self._follow(asking)
        return 0

    async def _known(self, asking: Asking) -> list[HistoryEntry]:
        """Ask for the events up to now, and return them. Raises as `Asking.next_value`."""
        asking.send(Ask(Subject.EVENTS))
        known, is_last = list[HistoryEntry](), False
        while not is_last:
            value, is_last = await asking.next_value()
            known += filter(None, [_entry(value)])
        self._last = known[-1].number if known else 0
        return known

    async def _follow(self, asking: Asking) -> None:
        is_last = False
        held: list[HistoryEntry] = []
        await self._look_for_another_life(asking)
        asking.send(Ask(Subject.EVENTS, self._last, follow=True))
        while not is_last:
            try:
                async with asyncio.timeout(HOLD_S if held else None):
                    value, is_last = await asking.next_value()
            except TimeoutError:
                if not self._print(held):
                    return
                continue
            except CoordinatorLostError:
                self._print(held)
                raise
            if (entry := _entry(value)) is not None and entry.number > self._last:
                self._last = entry.number
                held.append(entry)
                if not may_be_one_of_several(entry) and not self._print(held):
                    return
        self._print(held)

    def _print(self, held: list[HistoryEntry]) -> bool:
        """Print those of the held events that are wanted, and empty the list.

        False: the reader is gone.
        """
        wanted = self._wanted(held)
        held.clear()
        return not wanted or print_lines(self._lines(wanted), colour=self._colour)

    async def _look_for_another_life(self, asking: Asking) -> None:
        """Ask for the life of the job; if it is a new one, follow its events from the first.

        Then a line says that the last events of the life before may be missing.
        """
        life = decoded(await asking.answer(Ask(Subject.STATUS)), JobView).incarnation
        if self._life not in (0, life):
            say("the job was started anew: the last events before that may be missing")
            self._last = 0
        self._life = life

    def _wanted(self, entries: list[HistoryEntry]) -> list[HistoryEntry]:
        return [
            entry
            for entry in entries
            if entry.time >= self._since and (entry.is_wrong or not self._fails)
        ]

    def _show(self, known: list[HistoryEntry]) -> bool:
        """Print the last lines of those of the events that are wanted, `_most` at most.

        False: the reader is gone.
        """
        wanted = self._wanted(known)
        lines = newest_of(self._lines(wanted), self._most, tell=not self.as_json)
        if not wanted and not self._follows and not self.as_json:
            lines = ["nothing of that kind has happened" if known else "nothing has happened yet"]
        return print_lines(lines, colour=self._colour)

    def _lines(self, entries: list[HistoryEntry]) -> list[str]:
        if self.as_json:
            return [JsonLine(json_text(entry)) for entry in entries]
        return event_lines(entries, wall_time(0.0))


run = partial(question.run, Events)


def _since(value: Given) -> float:
    try:
        return since(value.text, wall_time(0.0))
    except (ValueError, OverflowError):
        raise value.wrong(f"needs {MOMENTS}") from None


def _entry(value: bytes) -> HistoryEntry | None:
    """Parse an event; None: there is no event. Raises UsageError for an unreadable one."""
    try:
        return None if value == b"null" else read_as(value, HistoryEntry)
    except UnreadableJsonError as error:
        raise UsageError(
            f"the coordinator there sends events in another format ({shown(str(error))}): use the "
            "rallypoint of its version"
        ) from error


def event_lines(
    entries: Sequence[HistoryEntry], now: float, zone: tzinfo | None = None
) -> list[str]:
    """Return the lines of events, in their order.

    Events of several nodes share one only if each follows the one before it within `NEAR_S`: a late
    node keeps its own time.
    """
    lines: list[str] = []
    start = 0
    for end in range(1, len(entries) + 1):
        if end == len(entries) or entries[end].time - entries[end - 1].time > NEAR_S:
            lines += _near_lines(entries[start:end], now, zone)
            start = end
    return lines


def _near_lines(entries: Sequence[HistoryEntry], now: float, zone: tzinfo | None) -> list[str]:
    folded = fold_entries(entries)
    # Each is of one or more events that follow each other, and has the number of the first.
    rest = enumerate((entry.number, entry.time) for entry in entries)
    firsts = [
        next(place for place, known in rest if known == (one.number, one.time)) for one in folded
    ]
    lasts = [*(entries[place - 1].time for place in firsts[1:]), entries[-1].time]
    return [event_line(one, now, zone, last) for one, last in zip(folded, lasts, strict=True)]


def event_line(
    entry: HistoryEntry, now: float, zone: tzinfo | None = None, last: float = 0.0
) -> str:
    """Return the line of an event: `12:04:05 ! node b was lost: ...`.

    It has the date as well, unless that is today's. `zone`: None is the local one. `last` is the
    time of the last of several events in this line; it is shown if it is later by `SPAN_S`.
    """
    mark = "!" if entry.is_wrong else " "
    name = re.escape(entry.node)
    is_named = re.search(rf"(node|drain|exclude|allow) {name}(?![\w.-])", entry.text)
    node = f" (node {entry.node})" if entry.node and not is_named else ""
    told = f"{mark} {entry.text}{node}"
    tint = Tint.BAD if entry.is_wrong else None
    when = moment_text(entry.time, now, zone)
    if last - entry.time >= SPAN_S:
        when += f"-{clock_text(last, zone)}"
    return Painted((f"{when} ", None), (told, tint))


def newest_of(lines: list[str], most: int | None, *, tell: bool) -> list[str]:
    """Return the last `most` lines (None: all).

    `tell`: if some are left out and `most` is at least 2, the first of these lines says how many.
    """
    if most is None or len(lines) <= most:
        return lines
    if not tell or most < 2:
        return lines[-most:]
    shown = lines[1 - most :]
    left_out = count(len(lines) - len(shown), "earlier event")
    return [f"... {left_out}: --all, or --last N", *shown]


def since(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Return the time, in Unix seconds, of an age or a time in words.

    `now` is the present in Unix seconds. A time of day without a date is the last one before it.
    Raises ValueError, and OverflowError for a date that no clock has.
    """
    text = text.strip()
    if (found := _AGE.fullmatch(text)) is not None:
        return now - float(found[1]) * _SECONDS[found[2]]
    local = datetime.fromtimestamp(now, UTC).astimezone(zone)
    if _CLOCK.fullmatch(text):
        hour, minute, *rest = map(int, text.split(":"))
        second = rest[0] if rest else 0
        moment = local.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (moment if moment <= local else moment - timedelta(days=1)).timestamp()
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
    return moment.timestamp()
