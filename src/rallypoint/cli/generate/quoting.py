"""Templates of generated scripts and manifests, and quoting of words and values for them.

bash, YAML and JSON give back exactly the words that were quoted. Characters that move a cursor or
change the direction of text are escaped, so that a terminal shows the text as it is.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pkgutil import get_data
from textwrap import indent

from msgspec import json

from rallypoint.core.text import shown
from rallypoint.errors import UsageError

_CHANGED = re.compile(r"\$\$|\$\([A-Z_][A-Z0-9_]*\)")
"""The parts of a container's command that Kubernetes changes: references to variables, and double
dollars, which it halves."""
_PLANES = 0x10000
_NAME = re.compile(r"\$\{([a-z_]+)\}| +\$\{([a-z_]+)\?\}$")


def fill(template: str, values: Mapping[str, object]) -> str:
    """Return the text of a file in `templates`, with the values filled in (`filled`)."""
    source = get_data(__package__, f"templates/{template}")
    assert source is not None
    return filled(source.decode(), values)


def filled(source: str, values: Mapping[str, object]) -> str:
    """Return the text of a template, with the values in the place of its `${names}`.

    A line that names a value which is None is left out; `${name?}` at the end of a line is there
    for this alone. A text in a line of its own gets the indentation of its name.
    """
    lines = []
    for line in source.splitlines():
        if any(values[plain or asked] is None for plain, asked in _NAME.findall(line)):
            continue
        if alone := re.fullmatch(rf"( *){_NAME.pattern}", line):
            lines.append(indent(str(values[alone[2]]), alone[1]))
        else:
            lines.append(_NAME.sub(lambda found: str(values[found[1]]) if found[1] else "", line))
    return "\n".join(lines) + "\n"


def bash_word(word: str) -> str:
    """Return the word quoted for bash, in any locale.

    Raises UsageError for a word with a NUL.
    """
    raw = os.fsencode(_without_nul(word))
    if word.isprintable() and raw == word.encode():
        return shlex.quote(word)
    return "$'" + "".join(map(_bash_seen, raw)) + "'"


def container_word(word: str) -> str:
    """Return the word escaped for a container's command, whose process gets the original.

    Raises UsageError for a word with a NUL, or that is not UTF-8.
    """
    try:
        _without_nul(word).encode()
    except UnicodeEncodeError:
        raise _not_unicode(word) from None
    return word.replace("$", "$$") if _CHANGED.search(word) else word


def yaml_value(value: object) -> str:
    """Return texts, numbers, lists and mappings on one line that is YAML, and JSON too.

    Raises UsageError for a text that is not valid Unicode.
    """
    try:
        text = json.encode(value).decode()
    except UnicodeEncodeError:
        raise _not_unicode(str(value)) from None
    # What is not printable stands within strings only.
    return text if text.isprintable() else "".join(map(_yaml_seen, text))


def _not_unicode(text: str) -> UsageError:
    return UsageError(f"{shown(text)}: needs UTF-8: YAML takes nothing else")


def _without_nul(word: str) -> str:
    if "\0" in word:
        raise UsageError(f"{shown(word)}: has a NUL, which no word of a command line can have")
    return word


def _bash_seen(byte: int) -> str:
    letter = chr(byte)
    if letter in "\\'":
        return "\\" + letter
    return letter if byte < 0x7F and letter.isprintable() else f"\\x{byte:02x}"


def _yaml_seen(letter: str) -> str:
    # JSON has two escapes for a character of another plane, which YAML takes for two characters.
    if letter.isprintable() or ord(letter) >= _PLANES:
        return letter
    return f"\\u{ord(letter):04x}"
