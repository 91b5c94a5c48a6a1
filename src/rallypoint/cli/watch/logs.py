"""`rallypoint logs`: what the workers of a job wrote last, and with `-f` what they write."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

from msgspec import Struct
from msgspec.structs import astuple, replace

from rallypoint.cli import values
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.values import Given
from rallypoint.cli.watch.asking import question
from rallypoint.cli.watch.asking.find import EXIT_CODES, HOW_TO_FIND
from rallypoint.cli.watch.asking.question import Words
from rallypoint.cli.watch.asking.reach import Asking, CoordinatorLostError
from rallypoint.cli.watch.kept import Kept, is_kept, read_kept
from rallypoint.cli.watch.status_text import LINES_MAX
from rallypoint.cli.watch.terminal import print_lines
from rallypoint.cli.watch.workers import OfWorkers, gather, next_part, read_workers, say_missing
from rallypoint.core.settings import MAX_GIVEN, Setting
from rallypoint.core.text import count, shown
from rallypoint.core.watch.collection_messages import ALL_LINES, Gathered, HowFar, RankTold
from rallypoint.core.watch.line_groups import WorkerLine, fold_lines, lines_of, log_lines
from rallypoint.core.watch.names import brief_ranks, fold_names
from rallypoint.core.watch.questions import READ_MAX, Ask, Subject
from rallypoint.errors import RendezvousConnectionError
from rallypoint.observe.printing import JsonLine, json_text, say

STREAMS = {1: "stdout", 2: "stderr"}
HOLD_S = 0.5
"""How long `-f` waits for the same line of other ranks, in seconds."""

LOGS = Command(
    "logs",
    """\
usage: rallypoint logs [RANK|NODE...] [HOST:PORT|DIR] [options]

Show the newest lines that workers wrote, from any machine. Give ranks (17, 0-7)
or names of nodes to see only theirs. The ranks that wrote a line stand before it:
[0-63] epoch 3 done. Lines come from the files of --log-dir, or else from the last
32 KiB of each stream, which nodes keep. A stream that goes straight to a terminal
is not kept.

HOST:PORT is the --rdzv-endpoint of the job's nodes, with its port, or the
directory; the default is your job on this machine. DIR may also be the kept
record of a job that has ended.

  rallypoint logs
  rallypoint logs 17 --last 200
  rallypoint logs node-3 node-0:29400 --job digits -f
""",
    (
        (
            "Options",
            (
                Setting("--follow", "", "show new lines until the job ends", "switch", short="-f"),
                Setting("--last", "N", "the newest N lines", "integer", default=str(LINES_MAX)),
                Setting("--json", "", "print one line of JSON for each rank's line", "switch"),
            ),
        ),
        HOW_TO_FIND,
    ),
    EXIT_CODES,
    may_have=("RANK|NODE", "HOST:PORT|DIR..."),
)


class LogLine(Struct, frozen=True):
    """One line of `rallypoint logs --json`."""

    rank: int
    node: str
    round: int
    stream: str
    time: float
    """The arrival time, in Unix seconds by the node's clock."""
    line: str


class Logs(OfWorkers):
    """The command `rallypoint logs`."""

    command = LOGS
    shows_kept = True

    def __init__(self, scanned: Scanned, words: Words) -> None:
        super().__init__(scanned, words)
        last = scanned.get("--last")
        self._newest = LINES_MAX if last is None else values.integer_within(last, 0, MAX_GIVEN)
        self._follows = scanned.on("--follow")
        self._begin()

    def _begin(self) -> None:
        self._held: list[tuple[float, WorkerLine]] = []
        """The lines that were not printed yet, each with the time when this command got it."""
        self._held_json: list[LogLine] = []
        """The lines for `--json` that were not printed yet."""
        self._unread: set[tuple[int, int]] = set()
        """The ranks and streams without kept output."""
        self._read = HowFar()
        self._life = 0
        """The number of the job's life; 0: not known yet."""
        self._left_in = -1
        """The round in which the coordinator went away, until it is known whether the round
        continues; -1: none."""
        self._has_begun = False
        """Whether the first lines were printed, if there were any."""

    @classmethod
    def read_words(cls, scanned: Scanned) -> Words:
        """Read the ranks, the nodes and the endpoint from the words, or a directory of a kept job.

        Raises UsageError.
        """
        kept = [word for word in scanned.words if is_kept(Given(word, word))]
        words = read_workers(scanned, [word for word in scanned.words if word not in kept])
        return replace(words, file=kept[0] if kept else "")

    def show_file(self) -> int:
        """Print the newest kept lines of the job in a directory. Returns the exit code."""
        return self.show_kept(read_kept(self.words.file), "")

    def show_kept(self, kept: Kept, head: str) -> int:
        """Print the newest kept lines of the named workers, or of all if none is named.

        With `--json` all of their kept lines are printed. Returns the exit code.
        """
        if head:
            say(head)
        ranks, nodes = self.words.ranks, self.words.nodes
        found: list[LogLine] = []
        for note in kept.notes:
            is_named = note.node in nodes
            for rank, stream, time, text in map(astuple, note.output):
                if is_named or not (ranks or nodes) or any(rank in one for one in ranks):
                    told = (note.node, note.round, STREAMS.get(stream, ""), time)
                    found += (LogLine(rank, *told, line) for line in lines_of(text))
        found.sort(key=lambda line: line.time)
        if self.as_json:
            print_lines([JsonLine(json_text(line)) for line in found])
            return 0
        groups = fold_lines(WorkerLine(one.time, one.rank, one.line) for one in found)
        lines = log_lines(groups)
        print_lines(lines[max(len(lines) - self._newest, 0) :])
        if not found:
            here = fold_names(note.node for note in kept.notes if note.output)
            which = "these workers" if ranks or nodes else "the workers"
            more = f"; nodes with kept output: {here}" if here else ""
            if strange := [name for name in nodes if all(note.node != name for note in kept.notes)]:
                name = shown(strange[0])
                more += f"; {name} was read as a node: for the host of a job, write {name}:PORT"
            say(f"no output of {which} is kept{more}")
        return 0

    async def talk(self, asking: Asking) -> int:
        """Print the newest lines, with `-f` also new ones until the job has ended.

        Returns the exit code. Nodes that have not answered within five seconds are named. Raises as
        `Asking.next_value`. Without `-f` it raises RendezvousConnectionError if nodes are missing
        and none has sent a line.
        """
        ranks, nodes = self.words.ranks, self.words.nodes
        wanted = Ask(Subject.LOGS, 0, self._follows, ranks=ranks, nodes=nodes, newest=self._newest)
        if not self._follows:
            self._begin()
            await self._show(asking, wanted)
            return 0
        try:
            await self._follow(asking, self._further(wanted) if self._has_begun else wanted)
        except CoordinatorLostError:
            self._print(float("inf"))
            raise
        return 0

    async def _show(self, asking: Asking, wanted: Ask) -> None:
        missing: dict[str, str] = {}
        async for part in gather(asking, wanted):
            missing |= part.missing
            self._take(part, 0.0)
        is_empty = not self._held and not self._held_json
        self._print(float("inf"))
        self._say_unread()
        say_missing(Gathered(missing=missing))
        if missing and is_empty and not self._unread:
            raise RendezvousConnectionError("no node sent a line")

    def _further(self, wanted: Ask) -> Ask:
        """Return the question for the lines after those that were read before.

        Of too many streams, only lines written from now on are asked for.
        """
        if len(read := self._read.all) <= READ_MAX:
            self._left_in = max((place.round for place in read), default=-1)
            return replace(wanted, newest=ALL_LINES, read=read, incarnation=self._life)
        say(f"the lines since then are not shown: {len(read)} streams are too many to resume")
        return replace(wanted, newest=0)

    async def _follow(self, asking: Asking, wanted: Ask) -> None:
        """Print new lines until the job has ended, or the reader is gone.

        Raises as `Asking.next_value`.
        """
        loop, is_last = asyncio.get_running_loop(), False
        asking.send(wanted)
        due = loop.time() + 2 * HOLD_S
        while not is_last:
            try:
                async with asyncio.timeout_at(due if self._held or not self._has_begun else None):
                    part, is_last = await next_part(asking)
            except TimeoutError:
                if not self._print(loop.time() - HOLD_S):
                    return
                due = loop.time() + HOLD_S / 2
                continue
            say_missing(part)
            if not self._held and not self._held_json:
                due = max(due, loop.time() + HOLD_S)
            self._take(part, loop.time())
            if self._held_json and self._has_begun and not self._print(float("inf")):
                return
        self._print(float("inf"))
        say("the job has ended")

    def _take(self, part: Gathered, now: float) -> None:
        """Keep the lines of a part for printing, and note how far each stream was read."""
        if part.told and part.incarnation != self._life:
            if self._life:
                say("the job was started anew: the last lines before that may be missing")
            self._life, self._left_in, self._read = part.incarnation, -1, HowFar()
        if part.told and self._left_in >= 0:
            if part.round > self._left_in:
                say(f"round {self._left_in} has ended: the last lines of it may be missing")
            self._left_in = -1
        self._read.note(part.round, part.told)
        for told in part.told:
            if not told.is_kept:
                self._unread.add((told.rank, told.stream))
                continue
            if self.as_json:
                self._take_json(part, told)
                continue
            if told.left_out:
                cut = left_out_text(told.left_out)
                self._held.append((now, WorkerLine(told.wall_time, told.rank, cut)))
            lines = (WorkerLine(told.wall_time, told.rank, text) for text in lines_of(told.text))
            self._held += ((now, line) for line in lines)

    def _take_json(self, part: Gathered, told: RankTold) -> None:
        if told.left_out:
            say(f"[{told.rank}] {left_out_text(told.left_out)}")
        stream = STREAMS.get(told.stream, "")
        for text in lines_of(told.text):
            line = LogLine(told.rank, part.node, part.round, stream, told.wall_time, text)
            self._held_json.append(line)

    def _print(self, ripe_at: float) -> bool:
        """Print the held lines that this command got before `ripe_at`, and equal ones.

        The first time only the newest of them, as many as `--last` says; with `--json` all that are
        held. False: the reader is gone.
        """
        newest, lines = self._newest, self._ripe(ripe_at)
        if not self._has_begun:
            self._has_begun = True
            if self._follows:
                self._say_unread()
            more = len(lines) - newest
            lines = lines[more:] if more > 0 else lines
        return print_lines(lines)

    def _ripe(self, ripe_at: float) -> list[str]:
        """Take the lines to print now from the held ones, and return them as texts."""
        if self.as_json:
            told = sorted(self._held_json, key=lambda line: line.time)
            self._held_json = []
            return [JsonLine(json_text(line)) for line in told]
        ripe = {line.text for at, line in self._held if at <= ripe_at}
        groups = fold_lines(line for _, line in self._held if line.text in ripe)
        self._held = [(at, line) for at, line in self._held if line.text not in ripe]
        return log_lines(groups)

    def _say_unread(self) -> None:
        say(*unread_lines(self._unread))


run = partial(question.run, Logs)


def unread_lines(unread: Collection[tuple[int, int]]) -> list[str]:
    """Return the messages about ranks and streams without kept output, and how to keep it."""
    lines = []
    for stream, name in STREAMS.items():
        ranks = [rank for rank, which in unread if which == stream]
        if ranks:
            label = "rank" if len(ranks) == 1 else "ranks"
            where = f"{name} of {label} {brief_ranks(ranks)}"
            lines.append(
                f"{where} is not kept, as it goes straight to the terminal of the agent: start the "
                f"job with --tee {stream}, or --output prefix"
            )
    return lines


def left_out_text(left_out: int) -> str:
    """Return the line that stands in place of output that came too fast to be sent."""
    return f"... {count(left_out, 'byte')} left out: the workers wrote more than can be sent"
