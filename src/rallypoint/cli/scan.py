"""Splits a command line into options and the worker's own command, as torchrun's users write it.

Options end at the first word that is not one: that is the script, and everything after it belongs
to the script, whatever it looks like. Dashes and underscores are the same; a prefix may stand for
the one option that it fits (torchrun's options first, so that new ones break no old command line);
the last of several wins. Written out, not argparse: that package gives up on a prefix of an option
with two spellings, treats `--` differently from version to version, and takes 10 ms to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from rallypoint.cli.flags import FLAGS, SHORT, Flag, is_torchrun
from rallypoint.core.wording import quoted, shown
from rallypoint.errors import UsageError

_TRUE = frozenset({"true", "t", "yes", "y", "on"})
_FALSE = frozenset({"false", "f", "no", "n", "off"})
_ALIKE = len("--nproc")
_OF_ONE_AGENT = ("--node-id", "--json-summary", "--metrics-port", "--token-fd")


class HelpRequested(Exception):
    """`--help` stood before the script."""


class Value(Struct, frozen=True):
    """One given value and where it came from, ready to start an error message with."""

    text: str
    origin: str

    def wrong(self, why: str) -> UsageError:
        """The error that names this value as it was written, and the fix."""
        origin = self.origin
        if not origin.isprintable():
            option = origin.removesuffix(self.text)
            text = origin[len(option) :]
            origin = f"{option}{quoted(text)}" if option.isprintable() else quoted(origin)
        return UsageError(f"{origin}: {why}")


class Scanned(Struct, frozen=True):
    """`values[name]` holds what was given, last first for single options; all for repeatable."""

    command: tuple[str, ...]
    values: dict[str, list[Value]] = field(default_factory=dict)

    def get(self, name: str) -> Value | None:
        """The value that counts, or None when none was given."""
        given = self.values.get(name)
        return given[-1] if given else None

    def all(self, name: str) -> list[Value]:
        """Every value of a repeatable option, in order."""
        return self.values.get(name, [])

    def on(self, name: str) -> bool:
        """Is the switch on? Words and numbers count, as `PET_STANDALONE=true`."""
        value = self.get(name)
        return value is not None and truth(value)


def truth(value: Value) -> bool:
    """Reads a boolean word or number. Raises UsageError."""
    word = value.text.strip().lower()
    if word in _TRUE or (word.isdecimal() and int(word) != 0):
        return True
    if word in _FALSE or word.isdecimal():
        return False
    raise value.wrong("needs 1 or 0, true or false")


def scan(argv: Sequence[str], environ: Mapping[str, str]) -> Scanned:
    """Reads options from `argv` (without the program's name), then their twins in `environ`.

    Raises UsageError for an unknown option or a missing value, HelpRequested for --help.
    """
    values: dict[str, list[Value]] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            _long(word, rest, values)
        else:
            _short(word, rest, values)
    _twins(environ, values)
    return Scanned(tuple(rest), values)


def _long(word: str, rest: list[str], values: dict[str, list[Value]]) -> None:
    name, equals, text = word.partition("=")
    flag = _find(name)
    if flag.metavar:
        _take(flag, name, text if equals else None, rest, values)
    elif equals:
        raise UsageError(f"{shown(word)}: {flag.name} is a switch, it takes no value")
    else:
        values.setdefault(flag.name, []).append(Value("1", flag.name))


def _short(word: str, rest: list[str], values: dict[str, list[Value]]) -> None:
    letters = word[1:]
    while letters:
        name, letters = "-" + letters[0], letters[1:]
        if name == "-h":
            raise HelpRequested
        flag = SHORT.get(name)
        if flag is None:
            nearest = _nearest("--" + word[1:].replace("_", "-"))
            raise UsageError(f"{shown(word)}: unknown option{nearest}")
        if flag.metavar:
            _take(flag, name, letters.removeprefix("=") or None, rest, values)
            return
        values.setdefault(flag.name, []).append(Value("1", flag.name))


def _take(
    flag: Flag, spelled: str, text: str | None, rest: list[str], values: dict[str, list[Value]]
) -> None:
    if text is None:
        if not rest or (rest[0].startswith("-") and not _is_number(rest[0])):
            raise UsageError(f"{spelled}: needs a value: {flag.name} {flag.metavar}")
        text = rest.pop(0)
    values.setdefault(flag.name, []).append(Value(text, f"{flag.name} {text}".rstrip()))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _find(spelled: str) -> Flag:
    name = spelled.replace("_", "-")
    if name in FLAGS:
        return FLAGS[name]
    if name == "--help":
        raise HelpRequested
    fits = [flag for flag in FLAGS.values() if flag.name.startswith(name)]
    if "--help".startswith(name) and not fits:
        raise HelpRequested
    fits = [flag for flag in fits if is_torchrun(flag)] or fits
    if len(fits) > 1:
        choices = ", ".join(flag.name for flag in fits)
        raise UsageError(f"{shown(spelled)}: could be any of {choices}")
    if not fits:
        raise UsageError(f"{shown(spelled)}: unknown option{_nearest(name)}")
    return fits[0]


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    # Who writes --nprocs means what begins alike, though another name is closer in length.
    alike = [known for known in FLAGS if known[:_ALIKE] == name[:_ALIKE]]
    close = get_close_matches(name, FLAGS, n=1) if len(alike) != 1 else alike
    return f"; did you mean {close[0]}?" if close else ""


def _twins(environ: Mapping[str, str], values: dict[str, list[Value]]) -> None:
    """Fills in what the command line left out. An empty variable counts as absent.

    A worker is told its node's id in a variable of the same name as the twin of --node-id; in
    there it is a fact about the outer job, not a wish for a job that the worker starts itself. And
    two agents can't have the same port, or the same summary, or read the same descriptor.
    """
    inside_a_worker = "RALLYPOINT_INCARNATION" in environ
    for flag in FLAGS.values():
        if (
            flag.name in values
            or not flag.env_name
            or (inside_a_worker and flag.name in _OF_ONE_AGENT)
        ):
            continue
        text = environ.get(flag.env_name, "")
        if text:
            words = text.split(",") if flag.repeatable else [text]
            values[flag.name] = [Value(word, f"{flag.env_name}={word}") for word in words]
