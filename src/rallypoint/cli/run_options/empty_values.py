"""Options with an empty value, as of a shell variable that is not set.

If torchrun treats such an option as absent, so does this; all others are refused with one line.
Pure.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.cli.parser import Scanned
from rallypoint.core.settings import FLAGS
from rallypoint.errors import UsageError

_NOT_GIVEN = frozenset(flag for flag, row in FLAGS.items() if row.may_be_empty)
_OF_ONE_NODE = frozenset({"--master-addr", "--master-port"})
"""The options whose empty value counts as absent in a job of one node, and else is an error."""
_BLANKS_COUNT = frozenset({"--log-line-prefix-template"})
"""The options for which blanks alone are a value; for all others they are an empty value."""
_WHY = "as by a shell variable that is not set"


def without_empty(scanned: Scanned) -> Scanned:
    """Return the command line without the options whose value is empty.

    `Scanned.empty` of the result names them. Raises UsageError for options that need a value.
    """
    empty = {flag for flag, given in scanned.values.items() if is_empty(flag, given[-1].text)}
    refused = empty - _NOT_GIVEN - _OF_ONE_NODE
    if not refused and empty & _OF_ONE_NODE and scanned.nodes[1] > 1:
        refused = empty & _OF_ONE_NODE
    if refused:
        raise UsageError(needs_a_value(min(refused)))
    return replace(scanned.minus(empty), empty=frozenset(empty))


def is_empty(flag: str, text: str) -> bool:
    """Return whether the text is an empty value of the option; false if it takes no value."""
    row = FLAGS.get(flag)
    takes_value = row is None or bool(row.metavar)
    return takes_value and not (text if flag in _BLANKS_COUNT else text.strip())


def needs_a_value(flag: str) -> str:
    """Return the error line about an empty value."""
    return f"{flag} is empty, {_WHY}: give it a value, or leave it out"


def was_empty(scanned: Scanned, flag: str) -> str:
    """Return the beginning of an error about an option that is missing as its value was empty.

    Empty: its value was not empty.
    """
    return f"{flag} is empty, {_WHY}; " if flag in scanned.empty else ""


def refuse_empty(flag: str) -> None:
    """Raise UsageError, that this option is empty, unless an empty value may count as absent."""
    if flag not in _NOT_GIVEN | _OF_ONE_NODE:
        raise UsageError(needs_a_value(flag))
