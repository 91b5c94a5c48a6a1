"""Who wants which node of a job to leave, and who waits for that (`rallypoint drain`)."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field

from rallypoint.coordinator.connection import Connection
from rallypoint.core import messages as m
from rallypoint.core.model import NodeRef
from rallypoint.core.text import names


class _Wish(Struct):
    why: str
    waiting: list[Connection] = field(default_factory=list)


class DrainRequests:
    """For the thread of the loop. Nothing here blocks."""

    def __init__(self) -> None:
        self._wishes: dict[str, _Wish] = {}
        """By the incarnation of the node that is to leave."""

    def refuse(self, connection: Connection, node_id: str, known: Collection[str]) -> None:
        """There is no such node."""
        there_are = f"there are {names(tuple(sorted(known)))}" if known else "nobody is in the job"
        _end(connection, f"there is no node {node_id!r} in the job; {there_are}", found=False)

    def want(
        self, connection: Connection, ref: NodeRef, why: str, *, is_leaving: bool, is_here: bool
    ) -> None:
        """Somebody wants this node to leave, and is told when it has."""
        wish = self._wishes.setdefault(ref.incarnation, _Wish(why))
        wish.waiting = [one for one in wish.waiting if not one.is_closed] + [connection]
        if is_leaving:
            text = f"node {ref} is leaving already"
        elif is_here:
            text = f"node {ref} was asked to leave"
        else:
            text = f"node {ref} is not connected now, and will be asked to leave when it is"
        connection.send(m.DrainAnswer(text, done=False))

    def why(self, ref: NodeRef) -> str | None:
        """Why this node is to leave; None: nobody wants it to."""
        wish = self._wishes.get(ref.incarnation)
        return wish.why if wish is not None else None

    def gone(self, ref: NodeRef, how: str) -> None:
        """A node is no longer part of the job."""
        wish = self._wishes.pop(ref.incarnation, None)
        for connection in wish.waiting if wish is not None else ():
            _end(connection, how)

    def close(self) -> None:
        """Nobody can be told any more."""
        for wish in self._wishes.values():
            for connection in wish.waiting:
                connection.close()
        self._wishes.clear()


def no_job(connection: Connection, text: str) -> None:
    """There is no such job here."""
    _end(connection, text, found=False)


def _end(connection: Connection, text: str, *, found: bool = True) -> None:
    connection.send(m.DrainAnswer(text, done=True, found=found))
    connection.close()
