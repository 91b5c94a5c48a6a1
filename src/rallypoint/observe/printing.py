"""Print the lines of Rallypoint itself.

All of them are printed here, so that no text of a peer, a worker, a file or a command line can move
the cursor, hide text, or forge a line. Colours (`Painted`) are put around texts that were made
safe.

A text may be anything. What Python calls not printable is escaped: controls (C0, DEL, C1), marks
that turn the direction of text, line separators, bytes that are no UTF-8. A line break within a
text becomes ` | `. What workers write is theirs, and does not come here; neither do the colours
and cursor movements of `process/relay/sinks.py`, which are put around lines that did. What another
program is to read (`write_text`) is passed on as it is: whoever makes it keeps it printable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import Enum
from errno import EAGAIN
from typing import Any, TextIO

import msgspec

from rallypoint.errors import InfrastructureError

LINE_MAX = 4096
"""The longest printed line in characters; a longer one is cut, unless it is a `JsonLine`."""
REPORT_MAX = 64 * 1024
"""The most characters that are printed at once: a traceback has at most 8192 bytes, and an
escaped one fits too."""

_SPACES = "\xa0\u2009\u202f\u3000"  # not printable, says Python, but harmless and in use
_BREAKS = {"\t": "    ", "\n": " | ", "\u2028": " | ", "\u2029": " | "}


class Tint(Enum):
    """The colour of a part of a line, as an escape sequence."""

    BAD = "\x1b[31m"
    WARN = "\x1b[33m"
    GOOD = "\x1b[32m"
    BOLD = "\x1b[1m"


_PLAIN = "\x1b[0m"


class Painted(str):
    """A line with colours on a terminal that shows them; elsewhere plain text.

    The parts may be anything that `str` accepts.
    """

    parts: tuple[tuple[str, Tint | None], ...]

    def __new__(cls, *parts: tuple[str, Tint | None]) -> Painted:
        """Return a line of the parts in their order, each with its colour."""
        line = super().__new__(cls, "".join(text for text, _ in parts))
        line.parts = parts
        return line

    @property
    def with_colours(self) -> str:
        """The line for a terminal: the parts are made visible before colours are added."""
        return "".join(
            f"{tint.value}{visible(text)}{_PLAIN}" if tint and text else visible(text)
            for text, tint in self.parts
        )


class JsonLine(str):
    """A line that is one JSON value, from `json_line` or `json_text`: it is printed uncut."""


def visible(text: str) -> str:
    """Return `text` on one line of at most LINE_MAX characters, with unprintable ones escaped."""
    if not text.isprintable():
        text = text.rstrip().replace("\r\n", "\n")
        # The rest would be cut off below: an escape never makes a text shorter.
        text = "".join(map(_seen, text[: LINE_MAX + 1]))
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…"


def printed(*lines: str, colour: bool = False) -> str:
    """Return the lines as they are written, each with a line feed.

    If they have more than REPORT_MAX characters, the last lines are replaced by their number. A
    JSON line is never cut, nor counted, because a program reads it. `colour` shows the colours of
    `Painted` lines.
    """
    safe: list[str] = []
    room = REPORT_MAX
    for number, line in enumerate(lines):
        if isinstance(line, JsonLine):
            safe.append(line)
            continue
        shown = visible(line)
        room -= len(shown) + 1
        if room < 0 and safe:
            safe.append(f"... and {len(lines) - number} more lines")
            break
        is_whole = len(line) <= LINE_MAX
        safe.append(
            line.with_colours if colour and is_whole and isinstance(line, Painted) else shown
        )
    return "".join([line + "\n" for line in safe])


def json_text(value: object) -> str:
    """Return the value as JSON on one line, uncut, with unprintable characters escaped."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # of bytes that are no UTF-8
        import json

        text = json.dumps(msgspec.to_builtins(value))
    # All that is outside of strings is printable.
    return text if text.isprintable() else "".join(map(_json_seen, text))


def json_line(value: object) -> JsonLine:
    """Return a JSON line for printing, whose texts have at most REPORT_MAX characters in all.

    Further text is cut, and further items of lists are left out. Numbers, names of fields and
    escapes do not count, so the line may be longer.
    """
    return JsonLine(json_text(_Cutter().cut(msgspec.to_builtins(value))))


def say(*lines: str) -> None:
    """Write lines to stderr, or nothing where it is closed. May block."""
    try:
        if sys.stderr is not None:  # It is None where descriptor 2 is closed.
            sys.stderr.write(_encodable(sys.stderr, lines))
            sys.stderr.flush()
    except (OSError, ValueError):
        pass  # The console is gone, or closed.


def say_directly(*lines: str) -> None:
    """Print lines by one write to stderr's descriptor, for processes beside the agent.

    Lines of several processes do not mix.
    """
    try:
        os.write(2, printed(*lines).encode())
    except OSError:
        pass  # The console is gone.


def say_traceback(error: BaseException) -> None:
    """Write the traceback of a bug in Rallypoint to descriptor 2."""
    import traceback

    say_directly(*"".join(traceback.format_exception(error)).splitlines())


def print_error(who: str, text: str) -> None:
    """Write `who: text` to stderr. May block.

    Further lines of the text are indented, so that none looks like a line of Rallypoint's.
    """
    first, *more = text.rstrip().split("\n")
    say(f"{who}: {first}", *(f"  {line}" for line in more))


def answer(*lines: str, colour: bool = False) -> None:
    """Write lines to stdout; nothing if it is closed. Raises OSError when it can't. May block."""
    if sys.stdout is not None:
        sys.stdout.write(_encodable(sys.stdout, lines, colour=colour))
        sys.stdout.flush()


def print_text(*lines: str, colour: bool = False) -> bool:
    """Write lines to stdout at once. Returns False if the reader is gone (`| head`). May block.

    Nothing is written if stdout is closed. Raises InfrastructureError when the lines can't be
    written: the disk is full, say.
    """
    try:
        answer(*lines, colour=colour)
        return True
    except OSError as error:
        _give_up_stdout()
        if not isinstance(error, BrokenPipeError):
            raise InfrastructureError(f"stdout can't be written: {error.strerror}") from error
        return False


def write_text(text: str) -> None:
    """Write a text for another program to stdout, in UTF-8, complete and unchanged.

    May block.

    Raises InfrastructureError when not all of it was written: stdout is closed, its reader is gone,
    or the disk is full.
    """
    stream = sys.stdout
    if stream is None:
        raise InfrastructureError("stdout can't be written: it is closed")
    if not hasattr(stream, "buffer"):  # A program has put a stream of texts in its place.
        stream.write(text)
        return
    rest = memoryview(text.encode())
    try:
        stream.flush()
        while rest:
            # Without a buffer (python -u) a write may be a short one; None: it would block.
            if (written := stream.buffer.write(rest)) is None:
                raise BlockingIOError(EAGAIN, os.strerror(EAGAIN))
            rest = rest[written:]
        stream.buffer.flush()
    except OSError as error:
        _give_up_stdout()
        raise InfrastructureError(f"stdout can't be written: {error.strerror}") from error


def _give_up_stdout() -> None:
    """Point stdout at /dev/null, because Python would try again at its exit to write the rest."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def redraw(*lines: str, colour: bool = False) -> bool:
    """Clear the terminal and write these lines to stdout.

    Returns False if the reader is gone or the terminal can't be cleared; else as `print_text`.
    """
    if sys.stdout is not None:
        try:
            sys.stdout.write("\x1b[H\x1b[2J")
        except OSError:
            return False
    return print_text(*lines, colour=colour)


def _encodable(stream: TextIO, lines: Iterable[str], *, colour: bool = False) -> str:
    """Return the printed lines, with escapes for characters that the stream's encoding lacks.

    Lines of JSON get escapes of JSON.
    """
    encoding = stream.encoding or "utf-8"
    if encoding.lower().replace("-", "") != "utf8":
        lines = [_ascii_json(line) if isinstance(line, JsonLine) else line for line in lines]
    return printed(*lines, colour=colour).encode(encoding, "backslashreplace").decode(encoding)


def _ascii_json(line: JsonLine) -> JsonLine:
    """Return the JSON line in ASCII.

    Other characters occur only within strings, and are escaped.
    """
    return JsonLine("".join(one if one.isascii() else _json_escape(one) for one in line))


def _seen(letter: str) -> str:
    if letter.isprintable() or letter in _SPACES:
        return letter
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is no UTF-8
        number -= 0xDC00
    escape = f"\\x{number:02x}" if number < 0x100 else letter.encode("unicode_escape").decode()
    return _BREAKS.get(letter, escape)


def _json_seen(letter: str) -> str:
    return letter if letter.isprintable() else _json_escape(letter)


def _json_escape(letter: str) -> str:
    units = letter.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class _Cutter:
    """A helper that cuts texts to the rest of REPORT_MAX, and drops lists' items after that."""

    def __init__(self) -> None:
        self._room = REPORT_MAX

    def cut(self, value: Any) -> Any:
        match value:
            case str():
                kept = value[: max(0, self._room)]
                self._room -= len(kept) + 8  # what JSON puts around it
                return kept
            case dict():
                return {name: self.cut(one) for name, one in value.items()}
            case list() | tuple():
                return [self.cut(one) for one in value if self._room > 0]
        return value
