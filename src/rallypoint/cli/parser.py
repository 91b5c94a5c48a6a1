"""The command lines of all commands: options, their twins in the environment, and the help.

Options of `run` end at the first word that is not one: that is the script, and everything after it
belongs to the script, whatever it looks like. Dashes and underscores are the same; a prefix may
stand for the one option that it fits (torchrun's options first, so that new ones break no old
command line); the last of several wins. Written out, not argparse: that package gives up on a
prefix of an option with two spellings, treats `--` differently from version to version, and takes
10 ms to import. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.cli import values as reading
from rallypoint.cli.values import Given, given, nearest, nodes, truth
from rallypoint.config import SECTIONS, default_of
from rallypoint.core.settings import Setting, is_torchrun
from rallypoint.core.text import is_number, shown
from rallypoint.errors import UsageError

_ALIKE = len("--nproc")
_COLUMN, _WIDTH = 29, 79

T = TypeVar("T")


class Command(Struct, frozen=True):
    """One command: its options and its help."""

    name: str
    top: str
    """The help before the options."""
    groups: tuple[tuple[str, tuple[Setting, ...]], ...]
    bottom: str = ""
    words: tuple[str, ...] = ()
    """The names of the required words besides options."""
    may_have: tuple[str, ...] = ()
    """The names of optional words, one each; the last may be repeated if its name ends with
    dots."""
    runs_a_script: bool = False
    """Whether the first word that is not an option begins the command line of a script."""
    elsewhere: bool = False
    """Whether paths in options are those of other machines, except files that the command reads."""
    ignored: Callable[[str], Setting | None] = lambda flag: None
    """The function that returns the option of a name, if that has no effect here, else None."""

    @property
    def options(self) -> dict[str, Setting]:
        """The options by flag."""
        return {row.flag: row for _, rows in self.groups for row in rows}


class HelpRequested(Exception):
    """The exception that `--help` stood on the command line; `args[0]` is the `Command`."""


class ExplainRequested(Exception):
    """The exception that `run --explain` was given; `args[0]` has the lines of the explanation."""


class UnknownOptionError(UsageError):
    """The command line has an option that the command does not have."""

    def __init__(self, option: str, hint: str = "") -> None:
        super().__init__(f"{shown(option)}: unknown option{hint}")
        self.option = option


class CompletionRequested(Exception):
    """The exception that `--print-completion` was given; `args[0]` is the name of the shell."""


class Scanned(Struct, frozen=True):
    """The options of a command line: `values[flag]` has the values in order.

    `words` are the words besides options. `empty` has the flags that were left out because their
    value was empty.
    """

    words: tuple[str, ...]
    values: dict[str, list[Given]] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()

    def get(self, name: str) -> Given | None:
        """Return the last value of an option, which counts; None: none was given."""
        given = self.values.get(name)
        return given[-1] if given else None

    def all(self, name: str) -> list[Given]:
        """Return every value of a repeatable option, in order."""
        return self.values.get(name, [])

    def read(self, command: Command, name: str, default: object = None) -> Any:
        """Return the last given value of an option, parsed as its kind says, or the default.

        Raises UsageError.
        """
        given = self.get(name)
        return default if given is None else reading.read(command.options[name], given)

    def on(self, name: str) -> bool:
        """Return whether the switch is on. Raises UsageError.

        Its value may be a word or a number, as in `PET_STANDALONE=true`.
        """
        value = self.get(name)
        return value is not None and truth(value)

    @property
    def nodes(self) -> tuple[int, int]:
        """The least and the largest number of nodes in `--nnodes`; both 1 if not given.

        Spares are among them until `with_placement` takes them off. Raises UsageError.
        """
        given = self.get("--nnodes")
        return nodes(given) if given else (1, 1)

    def conf(self) -> Iterator[tuple[str, Given]]:
        """Yield the keys and values of `--rdzv-conf`, and those given for its keys in other ways.

        Raises UsageError.
        """
        given = self.get("--rdzv-conf")
        for key, text in reading.conf_words(given) if given is not None else ():
            yield key, Given(text, f"--rdzv-conf {key}={text}")
        yield from ((name, one[-1]) for name, one in self.values.items() if name[:2] != "--")

    def plus(self, values: Mapping[str, Given]) -> Scanned:
        """Return the command line with these values in place of others of their names."""
        return replace(self, values=self.values | {name: [one] for name, one in values.items()})

    def minus(self, names: Collection[str]) -> Scanned:
        """Return the command line without all values of the options of these names."""
        rest = {name: given for name, given in self.values.items() if name not in names}
        return replace(self, values=rest)

    def fields(self, rows: Mapping[str, Setting]) -> dict[str, dict[str, Any]]:
        """Parse all given values, as the rows of these option names define them. Raises UsageError.

        The result is by section of `AgentConfig`, and by field; fields that were not given are
        left out. A choice whose default is an enum becomes one. Values without a field are only
        checked; those without a row, or of a kind outside `PLAIN`, are skipped.
        """
        found: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        for name, values in self.values.items():
            row = rows.get(name)
            if row is None or row.kind not in reading.PLAIN:
                continue
            value = reading.read(row, values[-1])
            if row.repeatable:
                value = tuple(one for each in values for one in reading.read(row, each))
            if row.target:
                default = default_of(row)
                value = type(default)(value) if isinstance(default, Enum) else value
                found[row.section][row.field] = value
        return found


def with_hint(command: Command, read: Callable[[], T]) -> T:
    """Return the result of `read`; its UsageError also says where the help is."""
    try:
        return read()
    except UsageError as error:
        gap = "\n" if "\n" in str(error) else " "
        raise UsageError(f"{error}{gap}(see rallypoint {command.name} --help)") from None


def parse(command: Command, argv: Sequence[str], environ: Mapping[str, str]) -> Scanned:
    """Read `argv` (without the program's and the command's name), and return its options and words.

    For options that it lacks, environment variables count. Raises UsageError for a wrong command
    line, as with an unknown option, and HelpRequested for --help.
    """
    return _Parse(command, argv).run(environ)


class _Parse:
    """One pass over a command line."""

    def __init__(self, command: Command, argv: Sequence[str]) -> None:
        self._command, self._options = command, command.options
        self._rest, self._words = list(argv), list[str]()
        self._values: dict[str, list[Given]] = {}

    def run(self, environ: Mapping[str, str]) -> Scanned:
        """Parse the command line; see `parse`."""
        while self._rest:
            word = self._rest.pop(0)
            if word == "--":
                self._words += self._rest
                break
            if not word.startswith("-") or word == "-":
                self._words.append(word)
                if self._command.runs_a_script:
                    self._words += self._rest
                    break
            elif word.startswith("--"):
                self._long(word)
            else:
                self._short(word)
        if not self._command.runs_a_script:
            self._count_words()
        self._twins(environ)
        return Scanned(tuple(self._words), self._values)

    def _count_words(self) -> None:
        wanted = self._command.words
        required = [flag for flag, row in self._options.items() if row.required]
        missing = [flag for flag in required if flag not in self._values]
        missing += wanted[len(self._words) :]
        if missing:
            raise UsageError(f"the following arguments are required: {', '.join(missing)}")
        may_have = self._command.may_have
        if may_have and may_have[-1].endswith("..."):
            return
        if further := self._words[len(wanted) + len(may_have) :]:
            raise UsageError(f"{shown(further[0])}: unexpected; {self._takes()}")

    def _takes(self) -> str:
        wanted = (*self._command.words, *self._command.may_have)
        return f"it takes {', '.join(wanted)} and options" if wanted else "it takes options only"

    def _give(self, row: Setting, value: Given) -> None:
        self._values.setdefault(row.flag, []).append(value)

    def _long(self, word: str) -> None:
        name, equals, text = word.partition("=")
        row = self._find(name)
        if row.metavar:
            self._take(row, name, text if equals else None)
        elif equals:
            raise UsageError(f"{shown(word)}: {row.flag} is a switch, it takes no value")
        else:
            self._give(row, Given("1", row.flag))

    def _short(self, word: str) -> None:
        short = {row.short: row for row in self._options.values() if row.short}
        letters = word[1:]
        while letters:
            name, letters = "-" + letters[0], letters[1:]
            if name == "-h":
                raise HelpRequested(self._command)
            row = short.get(name)
            if row is None:
                near = self._nearest("--" + word[1:].replace("_", "-"))
                raise UnknownOptionError(word, near)
            if row.metavar:
                self._take(row, name, letters.removeprefix("=") or None)
                return
            self._give(row, Given("1", row.flag))

    def _take(self, row: Setting, spelled: str, text: str | None) -> None:
        if text is None:
            if self._rest and (not self._rest[0].startswith("-") or is_number(self._rest[0])):
                text = self._rest.pop(0)
            elif row.implied:
                text = row.implied
            else:
                raise UsageError(f"{spelled}: needs a value: {row.flag} {row.metavar}")
        self._give(row, given(row, text, elsewhere=self._command.elsewhere))

    def _find(self, spelled: str) -> Setting:
        name = spelled.replace("_", "-")
        if name in self._options:
            return self._options[name]
        fits = [row for flag, row in self._options.items() if flag.startswith(name)]
        if name == "--help" or ("--help".startswith(name) and not fits):
            raise HelpRequested(self._command)
        fits = [row for row in fits if is_torchrun(row)] or fits
        if len(fits) > 1:
            choices = ", ".join(row.flag for row in fits)
            raise UsageError(f"{shown(spelled)}: could be any of {choices}")
        if not fits and (ignored := self._command.ignored(name)):
            return ignored
        if not fits:
            raise UnknownOptionError(spelled, self._nearest(name))
        return fits[0]

    def _nearest(self, name: str) -> str:
        # A person who writes --nprocs means the option that begins alike, though the name of
        # another one is closer in length.
        alike = [known for known in self._options if known[:_ALIKE] == name[:_ALIKE]]
        return f"; did you mean {alike[0]}?" if len(alike) == 1 else nearest(name, self._options)

    def _twins(self, environ: Mapping[str, str]) -> None:
        """Fill in the variables for options that the command line left out.

        An empty variable counts as absent. Within a worker the variables of options of one agent
        (`of_one_agent`) do not count. Its RALLYPOINT_NODE_ID describes the outer job, not a job
        that the worker starts itself. And two agents can't have the same port or summary.
        """
        inside_a_worker = "RALLYPOINT_INCARNATION" in environ
        for flag, row in self._options.items():
            if flag in self._values or not row.twin or (inside_a_worker and row.of_one_agent):
                continue
            if text := environ.get(row.env_name, ""):
                words = text.split(",") if row.repeatable else [text]
                elsewhere = self._command.elsewhere
                self._values[flag] = [
                    given(row, word, by_variable=True, elsewhere=elsewhere) for word in words
                ]


def help_text(command: Command, default_of: Callable[[Setting], str]) -> str:
    """Return the whole help of a command.

    `default_of` returns the default of an option in words; empty: there is none.
    """
    parts = [command.top]
    for title, rows in command.groups:
        lines = [f"{title}:"]
        for row in rows:
            default = default_of(row)
            head = f"  {row.short + ', ' if row.short else ''}{row.flag} {row.metavar}".rstrip()
            lines += entry(f"{row.about} ({default})" if default else row.about, head)
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, command.bottom])


def paragraph(text: str) -> str:
    """Return the text in lines of at most 79 characters."""
    return "\n".join([*entry(text, "", column=0), ""])


def entry(about: str, head: str, *, column: int = _COLUMN) -> Iterable[str]:
    """Return lines with `head`, and `about` from `column` on; at most 79 characters wide.

    A long head has its own line.
    """
    lines = [head] if head and len(head) > column - 2 else []
    line = "" if lines else head
    for word in about.split():
        if not line or len(line) < column:
            line = line.ljust(column) + word
        elif len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = " " * column + word
        else:
            line += " " + word
    return [*lines, line]
