"""The way of every command about a job: read, find the job, ask its coordinator, show.

A command's own are its words and options, what it asks, and how the answer is shown.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli import access
from rallypoint.cli.parser import Command, Scanned, parse, with_hint
from rallypoint.cli.values import Given, word
from rallypoint.cli.watch.asking.find import JobAt, only_one, read_job, token_of
from rallypoint.cli.watch.asking.reach import (
    REPEATS_SINCE,
    Asking,
    JobEndedError,
    converse,
    decoded,
    named,
)
from rallypoint.cli.watch.kept import Kept, answer_or_kept, is_kept
from rallypoint.cli.watch.recorded import is_history, refuse_options
from rallypoint.cli.watch.terminal import can_ask, says_yes
from rallypoint.coordinator.client.token import JobToken
from rallypoint.core.watch.job_view import JobView
from rallypoint.core.watch.questions import Ask, RankRange, Said, Subject
from rallypoint.errors import RendezvousConnectionError
from rallypoint.observe.printing import JsonLine, json_text, print_text

NOT_DONE = 1


class Words(Struct, frozen=True):
    """The words of a command line that are not options."""

    where: Given | None = None
    """The endpoint of the job; None: it is said by options, or the job is on this machine."""
    nodes: tuple[str, ...] = ()
    ranks: tuple[RankRange, ...] = ()
    file: str = ""
    """A file of `--history`, or a directory of a kept job, instead of a running job."""
    deed: str = ""
    """The word `exclude` or `allow` of `rallypoint nodes`; empty: neither was given."""


class DoubtError(Exception):
    """The error when the user has to confirm the command first; `args[0]` is the question."""


class Question:
    """One use of a command about a job.

    Making it raises UsageError for a wrong command line.
    """

    command: ClassVar[Command]
    not_of_files: ClassVar[str] = ""
    """The option that has no meaning for a file; empty: `read_words` takes no word for a file."""
    limit_s: float | None = None
    """How many seconds the answer may take; None: any number."""
    late = ""
    """The text of the error when the answer takes longer than `limit_s`."""
    shows_kept: ClassVar[bool] = False
    """Whether the command can show the kept files of an ended job; otherwise the job must run."""

    def __init__(self, scanned: Scanned, words: Words) -> None:
        self.scanned, self.words = scanned, words
        self.as_json = scanned.on("--json")
        self.was_confirmed = False
        """Whether the user has confirmed the command."""
        self.jobs: list[JobAt] = []
        """The jobs that the command is about, once they were looked for: the named one, or those on
        this machine."""
        self.tokens: list[JobToken | None] = []

    @classmethod
    def read_words(cls, scanned: Scanned) -> Words:
        """Return the endpoint of the job, or the file to read instead, which the words name.

        Raises UsageError, also for an option without a meaning for a file.
        """
        where = word(scanned.words[0]) if scanned.words else None
        if where is None or not cls.not_of_files or not (is_kept(where) or is_history(where)):
            return Words(where)
        refuse_options(cls.command, scanned, [cls.not_of_files])
        return Words(where, file=where.text)

    def find(self) -> list[JobAt]:
        """Return the named job, or the user's only one on this machine, as a list of one.

        Raises as `read_job`, and UsageError for several jobs.
        """
        return [only_one(read_job(self.command, self.scanned, self.words.where))]

    @property
    def asks(self) -> bool:
        """Whether to ask the user for confirmation where a command needs it.

        Only in a terminal, without `--yes` and `--json`, and before the user has confirmed it.
        """
        return can_ask() and not (self.was_confirmed or self.as_json or self.scanned.on("--yes"))

    def show_file(self) -> int:
        """Show the file that is read instead of asking. Returns the exit code."""
        raise NotImplementedError

    def show_kept(self, kept: Kept, head: str) -> int:
        """Show the kept files, after the line `head`. Returns the exit code."""
        raise NotImplementedError

    async def ask(self) -> int:
        """Ask the job's coordinator, show the answer, and return the exit code.

        Raises as `named`, `converse` and `talk`.
        """
        self.jobs[:1] = [await named(self.jobs[0], self.tokens[0])]
        return await converse(self.jobs[0], self.tokens[0], self.talk)

    async def talk(self, asking: Asking) -> int:
        """Ask on this connection, show the answer, and return the exit code.

        Called again on the next connection when the coordinator goes away.
        """
        raise NotImplementedError

    def has_ended(self, end: JobEndedError) -> int:
        """Raise the error that a job has ended, of which nothing is kept on this machine.

        A command may show the end in place of that, and return the exit code.
        """
        raise end

    def look_for_it(self) -> None:
        """Find the job and the token, once, and hide the token from other processes.

        Raises as `find` and `token_of`.
        """
        if not self.jobs:
            self.jobs = with_hint(self.command, self.find)
            self.tokens = [token_of(job) for job in self.jobs]
            access.keep_secrets()

    def tell(self, said: Said) -> int:
        """Print the sentence, and return the exit code: 0 if the request was done, else 1."""
        print_text(JsonLine(json_text(said)) if self.as_json else said.text)
        return 0 if said.is_done else NOT_DONE


def run(kind: type[Question], argv: list[str]) -> int:
    """Run a command about a job, and return its exit code.

    Blocks until it is answered, or the followed job has ended. Raises UsageError, AccessError,
    InfrastructureError, and HelpRequested.
    """
    command = kind.command
    scanned = with_hint(command, lambda: parse(command, argv, {}))
    question = with_hint(command, lambda: kind(scanned, kind.read_words(scanned)))
    if question.words.file:
        return question.show_file()
    while True:
        try:
            return answer_or_kept(question, lambda: _ask(question))
        except DoubtError as doubt:
            if not says_yes(str(doubt)):
                return NOT_DONE
            question.was_confirmed = True
        except JobEndedError as end:
            return question.has_ended(end)


def _ask(question: Question) -> int:
    question.look_for_it()
    return asyncio.run(_within(question))


async def _within(question: Question) -> int:
    try:
        async with asyncio.timeout(question.limit_s):
            return await question.ask()
    except TimeoutError:
        text = f"{question.late}; rallypoint status shows what the job waits for"
        raise RendezvousConnectionError(text) from None


class Request(Question):
    """A command that has something done to a job.

    It is done once, also where the coordinator goes away before it has answered. Then the request
    is made again, with the life of the job and the round in which it was made before
    (`Ask.asked_in`).
    """

    _made_in: tuple[int, int] | None = None
    """The job's life and round when the request was first made; None: it was not made, or the
    coordinator runs an older version, which ignores them."""
    was_made = False

    async def request(self, asking: Asking, wanted: Ask) -> bytes:
        """Make the request, and return the last answer to it.

        Raises as `make` and `Asking.answer`.
        """
        await self.make(asking, wanted)
        return await asking.last_value()

    async def make(self, asking: Asking, wanted: Ask) -> None:
        """Send the request; its answers are read by `Asking.next_value`. Raises as `Asking.answer`.

        If it was sent before, and a coordinator of an older version may carry it out twice, it is
        not sent: RendezvousConnectionError is raised.
        """
        is_new = asking.version >= REPEATS_SINCE
        if self.was_made and wanted.subject is not Subject.DRAIN and not (is_new and self._made_in):
            raise RendezvousConnectionError(
                "the coordinator went away before it had answered, and it or the next one runs an "
                "older version of Rallypoint. See the result in rallypoint status"
            )
        if self.was_made and self._made_in is not None:
            life, round_ = self._made_in
            wanted = replace(wanted, incarnation=life, asked_in=round_)
        elif is_new:
            view = decoded(await asking.answer(Ask(Subject.STATUS)), JobView)
            self._made_in = view.incarnation, max(view.round, 0)
        asking.send(wanted)
        self.was_made = True

    async def ask(self) -> int:
        """Ask as any question does, and show the end of a job that ends after the request."""
        try:
            return await super().ask()
        except JobEndedError as end:
            if not self.was_made:
                raise
            return self.is_over(end)

    def is_over(self, end: JobEndedError) -> int:
        """Report that the job has ended after the request was made. Returns the exit code."""
        raise NotImplementedError
