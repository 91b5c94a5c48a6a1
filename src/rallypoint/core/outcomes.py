"""The table of outcomes: how a job ends, in words, exit codes and what may follow. Pure.

Exit codes, verdicts, texts, help, generated manifests and docs/settings.md read it. A new outcome
is a row here and the place where a job ends so.
"""

from __future__ import annotations

from enum import Enum
from signal import SIGINT, SIGTERM

from msgspec import Struct

from rallypoint.errors import ExitClass

SIGNALLED = 128
"""The exit code for signal N is this plus N."""
ALREADY_SUCCEEDED, NO_PROGRESS = "already-succeeded", "no-progress"
FINER = {
    ALREADY_SUCCEEDED: "0: nothing was started, because the job had succeeded before",
    NO_PROGRESS: "1: see --max-no-progress",
}
"""The parts of a class of exit codes that `--exit-code` can give a code of their own, each with the
usual code and the case."""


class Afterwards(Enum):
    """The thing to do after a job has ended, for a scheduler or an agent that comes later."""

    NOTHING = "an agent that comes later starts nothing"
    NOT_AGAIN = "the same again would end the same"
    BY_A_PERSON = "a person may start it again"
    AGAIN = "worth starting again"
    AT_NO_COST = "worth starting again, at no cost"


class Row(Struct, frozen=True):
    """A row of the table of outcomes."""

    verb: str
    """The verb of a sentence about the job: `the job was cancelled`."""
    exits: ExitClass | int | None
    """The class of the exit code. A number is a class of its own, named after the outcome, with
    this default code. None: the code is 128 plus the signal that ended the job."""
    then: Afterwards
    of_one: bool = False
    """Whether the outcome may be that of a single node; if not, all nodes of the job report the
    same."""
    planned: bool = False
    """Whether a person or a program wanted the job to end now."""
    stopped: bool = False
    """Whether workers get the signal of the verdict and `--shutdown-timeout`; otherwise SIGTERM and
    the grace of a restart."""
    help: str = ""
    """The words of the help about the exit code; empty: the verb."""
    state: str = ""
    """The words in a table of jobs; empty: the name."""


_SUCCESS, _FAILED, _USAGE, _INFRASTRUCTURE = ExitClass
_AGAIN, _AT_NO_COST = Afterwards.AGAIN, Afterwards.AT_NO_COST


class Outcome(Enum):
    """The outcome of a job. Where nodes report different ones, the first in this order counts."""

    _value_: str
    row: Row

    SUCCEEDED = "succeeded", Row("succeeded", _SUCCESS, Afterwards.NOTHING, planned=True)
    FAILED = "failed", Row("failed", _FAILED, Afterwards.NOT_AGAIN)
    CANCELLED = (
        "cancelled",
        Row("was cancelled", None, Afterwards.BY_A_PERSON, planned=True, stopped=True),
    )
    OUT_OF_TIME = (
        "out of time",
        Row(
            verb="ran out of time",
            exits=124,
            then=Afterwards.BY_A_PERSON,
            planned=True,
            stopped=True,
            help="it has run for --max-runtime",
        ),
    )
    """The job has run for as long as `--max-runtime` allows."""
    TIMED_OUT = "timed out", Row("timed out", _INFRASTRUCTURE, _AGAIN)
    """Too few nodes had joined for too long."""
    INFRASTRUCTURE = (
        "infrastructure",
        Row(
            verb="could not continue",
            exits=_INFRASTRUCTURE,
            then=_AGAIN,
            of_one=True,
            help="it is worth starting again",
            state="failed (infrastructure)",
        ),
    )
    """The machines failed, not the program: worth a requeue."""
    PREEMPTED = "preempted", Row("was preempted", None, _AT_NO_COST, of_one=True, stopped=True)
    USAGE = (
        "usage",
        Row("refused this node", _USAGE, Afterwards.NOT_AGAIN, of_one=True, help="wrong usage"),
    )
    """The agent was refused; only an agent reports this outcome, about itself."""

    def __new__(cls, name: str, row: Row | None = None) -> Outcome:
        if row is None:
            raise TypeError(f"the outcome {name} has no row")
        self = object.__new__(cls)
        self._value_, self.row = name, row
        return self

    @property
    def exit_class(self) -> str:
        """The class of exit code, as named in `--exit-code`; empty: a signal has ended the job."""
        exits = self.row.exits
        if isinstance(exits, ExitClass):
            return exits.name.lower()
        return "" if exits is None else self.value.replace(" ", "-")

    @property
    def is_error(self) -> bool:
        """Whether the exit code is neither that of success nor that of a signal."""
        return self.row.exits not in (None, ExitClass.SUCCESS)


BY_CLASS = {each.row.exits: each for each in Outcome if each.row.exits is not None}
"""The outcome for each class of exit code, or number that is a class of its own. Where several
outcomes share a class, it is the last of them."""
_BY_CODE = {
    exits if isinstance(exits, int) else exits.value: each for exits, each in BY_CLASS.items()
}
CODES = {_BY_CODE[code].exit_class: code for code in sorted(_BY_CODE)}
"""The default exit code of each class, by the class's name."""


def codes_of(then: Afterwards) -> list[int]:
    """Return the default exit codes after which `then` is the thing to do, sorted.

    For `AT_NO_COST` they include the code of SIGTERM, by which a node is asked to leave. For
    `BY_A_PERSON` they include that of SIGINT, by which a person ends a job.
    """
    signals = {Afterwards.AT_NO_COST: [SIGTERM], Afterwards.BY_A_PERSON: [SIGINT]}
    codes = [code for code, outcome in _BY_CODE.items() if outcome.row.then is then]
    return sorted([*codes, *(SIGNALLED + number for number in signals.get(then, ()))])


def of_word(word: str) -> Outcome | None:
    """Return the outcome of this name; None: this version does not know it."""
    return next((outcome for outcome in Outcome if outcome.value == word), None)


def classes_help() -> str:
    """Return the help text of the option `--exit-code`."""
    names, codes = ", ".join(CODES), ", ".join(map(str, CODES.values()))
    finer = (f"{name} ({when})" for name, when in FINER.items())
    return f"exit code for {', '.join((f'{names} ({codes})', *finer))}; repeatable"


def exit_codes_help(again: str = "") -> str:
    """Return the help text about exit codes. `again` replaces the words about code 75."""
    said = {code: each.row.help or f"it {each.row.verb}" for code, each in _BY_CODE.items()}
    if again:
        said[ExitClass.INFRASTRUCTURE.value] = again
    codes = [f"{code} {said[code]}" for code in sorted(said)]
    return f"Exit codes: {', '.join(codes)}, {SIGNALLED}+N ended by signal N."
