"""The words of a shell's command line, each with its original text. Pure.

Variables and commands in a word (`$RANK`, `$(hostname)`) are left for the shell that will run the
line.
"""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

from rallypoint.errors import UsageError

_PIECE = re.compile(
    r"(?P<blank>[ \t\r]+)|'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\"|\\(?P<escaped>.)"
    r"|(?P<varies>\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}]*\}|`[^`]*`)|(?P<end>[\n;&|<>()]+)"
    r"|(?P<plain>[^\s'\"\\;&|<>()$`]+|\$\w*)",
    re.DOTALL,
)


class Word(Struct, frozen=True):
    """One word. A program gets `text`; if it `varies`, once the shell has replaced parts of it."""

    text: str
    raw: str
    """The word in the shell's notation."""
    varies: bool = False

    def after(self, start: str) -> Word:
        """Return the word without this beginning."""
        if self.raw.startswith(start):
            return Word(self.text[len(start) :], self.raw[len(start) :], self.varies)
        return quoted(self.text.removeprefix(start))

    def filled_in(self, template: str) -> Word:
        """Return a word with this one in place of the `{}` that ends the template."""
        start = template.removesuffix("{}")
        if self.varies:
            return Word(start + self.text, f'"{start}{self.text}"' if start else self.raw, True)
        return quoted(start + self.text)

    def assigned(self) -> Word:
        """Return `NAME=VALUE` in the form of a shell's variable: its name has no quotes."""
        name, _, value = self.text.partition("=")
        if self.raw.startswith(f"{name}="):
            return self
        return Word(
            self.text, f'{name}="{value}"' if self.varies else f"{name}={quoted(value).raw}"
        )


def quoted(text: str) -> Word:
    """Return a word with this text that no shell changes."""
    return Word(text, shlex.quote(text))


def split(line: str) -> tuple[list[Word], str]:
    """Return the words of the first command, and the rest of the line.

    The rest begins at a redirection, a pipe, a comment or a second command. Raises UsageError for a
    quote that is not closed.
    """
    line = line.replace("\\\r\n", " ").replace("\\\n", " ").strip()
    words: list[Word] = []
    text = raw = ""
    varies, at = False, 0
    while at < len(line):
        piece = _PIECE.match(line, at)
        if piece is None:
            raise UsageError(f"a quote is not closed: {line[at : at + 40]}")
        kind = str(piece.lastgroup)
        found = str(piece[kind])
        if kind == "end" or (kind == "plain" and not raw and found.startswith("#")):
            if raw.isdecimal() and found[0] in "<>":  # As in 2>&1.
                return words, raw + line[at:]
            break
        at = piece.end()
        if kind == "blank":
            words += [Word(text, raw, varies)] if raw else []
            text, raw, varies = "", "", False
            continue
        raw += piece[0]
        text += re.sub(r"\\([\\\"$`])", r"\1", found) if kind == "double" else found
        varies |= kind == "varies" or (kind in ("double", "plain") and "$" in found)
    words += [Word(text, raw, varies)] if raw else []
    return words, line[at:]
