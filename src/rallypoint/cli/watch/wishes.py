"""The commands about a job whose answer is one sentence.

They request a checkpoint, another round, or the end of the job; `commands.py` has their texts.
"""

from __future__ import annotations

from typing import ClassVar

from rallypoint.cli import values
from rallypoint.cli.commands import Row
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.watch.asking import question
from rallypoint.cli.watch.asking.find import HOW_TO_FIND
from rallypoint.cli.watch.asking.question import DoubtError, Request, Words
from rallypoint.cli.watch.asking.reach import Asking, JobEndedError, decoded
from rallypoint.core.outcomes import Outcome
from rallypoint.core.settings import Setting
from rallypoint.core.text import job_name
from rallypoint.core.watch.questions import Ask, Said, Subject
from rallypoint.observe.printing import print_error

EXIT_CODES = """\
Exit codes:
  0   done
  1   not done: the line says why, or you did not answer y
  2   no such job, no workers that run, or wrong usage
  75  no coordinator answers, it went away, or --timeout expired
"""
_OPTIONS = (
    "Options",
    (
        Setting("--yes", "", "do not ask for confirmation", "switch"),
        Setting("--timeout", "S", "wait at most this long", "seconds", default="600"),
        Setting("--json", "", "print JSON", "switch"),
    ),
)


def command(row: Row) -> Command:
    """Return the definition of this command of the table of commands: its options and its help."""
    top = f"usage: rallypoint {row.name} [ENDPOINT] [options]\n\n{row.text}"
    return Command(row.name, top, (_OPTIONS, HOW_TO_FIND), EXIT_CODES, may_have=("ENDPOINT",))


class Wish(Request):
    """A request for a checkpoint, another round or the end of a job."""

    row: ClassVar[Row]

    def __init__(self, scanned: Scanned, words: Words) -> None:
        super().__init__(scanned, words)
        limit = scanned.get("--timeout")
        self.limit_s = 600.0 if limit is None else values.seconds(limit, positive=True)
        self.late = f"not done within {self.limit_s:g} s (--timeout)"

    async def ask(self) -> int:
        """Make the request, and return the exit code.

        For a job that no word or option names, which is the only one on this machine, say which it
        is. If its workers are to stop, DoubtError is raised in a terminal until the user has
        confirmed it; not with `--yes` or `--json`.
        """
        named = self.scanned.get("--job") or self.scanned.get("--rdzv-id")
        if self.jobs[0].is_here and not named:
            job = f"{job_name(self.jobs[0].name)} at {self.jobs[0].endpoint}"
            acts = f"{self.row.name} {job}, the only job of yours on this machine"
            if self.row.stops_workers and self.asks:
                raise DoubtError(f"{acts}?")
            if not self.was_confirmed:
                print_error("rallypoint", acts)
        return await super().ask()

    async def talk(self, asking: Asking) -> int:
        """Make the request, print the answer, and return the exit code."""
        return self.tell(decoded(await self.request(asking, Ask(Subject(self.row.name))), Said))

    def is_over(self, end: JobEndedError) -> int:
        """Report that the job has ended after the request; only a cancel is then done.

        Returns the exit code.
        """
        is_done = self.row.name == Subject.CANCEL.value
        return self.tell(Said(f"the job {Outcome(end.outcome).row.verb}: {end.reason}", is_done))


def run(row: Row, argv: list[str]) -> int:
    """Run this command of the table of commands, and return its exit code; see `question.run`."""
    return question.run(type("Wish", (Wish,), {"row": row, "command": command(row)}), argv)
