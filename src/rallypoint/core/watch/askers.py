"""The event for a person's reading of workers' output or stacks, or a request. Pure.

It names the host and the version. Repeated commands must not fill the history. So the same command
from one host has one event a minute, and the next such event says how often it was used in between.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.limits import is_name, sentence_of
from rallypoint.core.watch.questions import Ask, Subject

WINDOW_S = 60.0
KEPT_MAX = 64
"""The most pairs of a command and a host that have an event within one window."""
_SHOWN = 255
"""The longest command in an event, in characters."""
_COMMANDS = {
    Subject.STACKS: "stacks",
    Subject.LOGS: "logs",
    Subject.CHECKPOINT: "checkpoint",
    Subject.RESTART: "restart",
    Subject.CANCEL: "cancel",
    Subject.EXCLUDE: "nodes exclude",
    Subject.ALLOW: "nodes allow",
    Subject.DRAIN: "drain",
}
"""The command for each subject of a question that has an event. The other subjects change nothing,
and are asked for all the time."""
_OF_NODE = (Subject.EXCLUDE, Subject.ALLOW, Subject.DRAIN)


class _Use(Struct):
    """The last event for a command from one host."""

    told_at: float
    more: int = 0
    """The number of uses without an event since then."""


class Askers:
    """The recent commands of people about one job, so that repeated ones have few events.

    Times are seconds of any one monotonic clock.
    """

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], _Use] = {}
        """The last events by command and host, the oldest event at the front."""
        self._others = 0
        """The number of uses since the newest event that have none, and that `_uses` does not
        count."""

    def asked(self, question: Ask, peer: str, version: int, at: float) -> Record | None:
        """Return the event about this question; None: it has none.

        That is so for harmless subjects. It is also so within a minute of the last event for the
        same command from the same host, and while too many others have events: then the question is
        counted. `peer` is the address and the port of the person's command. `version` is that of
        the session protocol, shown if the question has no release.
        """
        host = peer.rpartition(":")[0]
        if not (command := _command(question)) or not self._is_told((command, host), at):
            return None
        more = self._uses.pop((command, host), _Use(at)).more
        self._uses[command, host] = _Use(at)
        left_out = f"; {more} times more since this was told last" if more else ""
        if self._others:
            left_out += f"; {self._others} uses of other commands, or at other hosts, are left out"
            self._others = 0
        node = _node(question)
        return kinds.ASKED(
            host=host,
            command=command,
            version=question.release or f"unknown: it speaks session protocol {version}",
            left_out=left_out,
            node_id=node if is_name(node) else "",
        )

    def _is_told(self, key: tuple[str, str], at: float) -> bool:
        """Return whether this use of a command has an event; else count it."""
        if (use := self._uses.get(key)) is not None:
            is_due = at >= use.told_at + WINDOW_S
            use.more += not is_due
            return is_due
        if len(self._uses) < KEPT_MAX:
            return True
        oldest = next(iter(self._uses))
        if at < self._uses[oldest].told_at + WINDOW_S:
            self._others += 1
            return False
        self._others += self._uses.pop(oldest).more
        return True


def _node(question: Ask) -> str:
    """Return the node that is to leave, or to be excluded or allowed; empty: none is."""
    return question.node if question.subject in _OF_NODE else ""


def _command(question: Ask) -> str:
    """Return the command as it is typed; empty: it has no event."""
    name = _COMMANDS.get(question.subject, "")
    return sentence_of(f"{name} {_node(question)}".rstrip(), _SHOWN)
