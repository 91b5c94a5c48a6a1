"""Events in few lines: many nodes that join or are lost one after the other are one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from rallypoint.core.text import count
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.names import fold_names

TOGETHER_S = 60.0
"""The time in seconds after an event in which events that differ only in the node are folded into
one line with it."""
_OF_A_NODE = re.compile(
    r"node (?P<node>\S+) (?P<deed>joined|was lost|is leaving)(?P<why>: .*)?", re.S
)
_PLURALS = {"joined": "joined", "was lost": "were lost", "is leaving": "are leaving"}


def fold_entries(entries: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """Fold nodes' events of one kind and reason, with no other event between them, into one.

    Such events are that a node joined, was lost, or is leaving, within `TOGETHER_S` of the first.
    The order is kept. A folded event has the number and the time of the first one, and no node.
    """
    found: list[HistoryEntry] = []
    together: list[tuple[HistoryEntry, str]] = []
    for entry in entries:
        node, _, _ = _parts(entry)
        if together and not _belongs(entry, together[0][0]):
            found.append(_one(together))
            together = []
        if node:
            together.append((entry, node))
        else:
            found.append(entry)
    return [*found, _one(together)] if together else found


def may_be_one_of_several(entry: HistoryEntry) -> bool:
    """Return whether the event is a node's join, loss or leave, which may be folded."""
    return bool(_parts(entry)[0])


def _belongs(entry: HistoryEntry, first: HistoryEntry) -> bool:
    node, deed, why = _parts(entry)
    is_equal = (deed, why) == _parts(first)[1:] and entry.is_wrong == first.is_wrong
    return bool(node) and is_equal and entry.time - first.time <= TOGETHER_S


def _one(together: list[tuple[HistoryEntry, str]]) -> HistoryEntry:
    first = together[0][0]
    if len(together) == 1:
        return first
    _, deed, why = _parts(first)
    nodes = fold_names(dict.fromkeys(node for _, node in together))
    which = f": {nodes}" if not why else f" ({nodes}){why}"
    return replace(first, text=f"{count(len(together), 'node')} {_PLURALS[deed]}{which}", node="")


def _parts(entry: HistoryEntry) -> tuple[str, str, str]:
    """Return the node that joined, was lost or is leaving, which of these, and why.

    The texts are empty for any other event.
    """
    found = _OF_A_NODE.fullmatch(entry.text)
    return ("", "", "") if found is None else (found["node"], found["deed"], found["why"] or "")
