"""The connections that may stay open without having proven anything yet. Pure.

A connection is *unproven* until its peer has shown that it belongs to a job, and takes one of a
number of slots. While slots are free everybody gets one. When none is, whoever comes next waits
in the kernel's queue, refused by nobody, until one is free: honest nodes prove themselves within
some round trips, so that a thousand of them behind one address get through one after the other.
Those who hold slots and prove nothing make room: of the source that holds most slots the oldest
connection is dropped, once it has had its time. So a flood from one source costs that source its
slots, and nobody else theirs. Nobody stays unproven for longer than the limit.

Connections that have proven themselves count against the descriptors that there are for all.

Times are seconds of one clock that does not go back. Calls are O(1); finding who must go looks at
each source.
"""

from __future__ import annotations

from collections import OrderedDict

SLOTS_MAX = 2048
PATIENCE_S = 0.25
"""The least time that an unproven connection keeps its slot, in seconds: some round trips to a far
node."""


class AdmissionLimits:
    """The limits of the open connections of one listening program.

    `room` is the most connections that may be open. A connection is unproven until its peer has
    shown that it belongs to a job; `limit_s` is the time in seconds that it has for that.
    """

    def __init__(
        self,
        room: int,
        limit_s: float,
        *,
        slots_max: int = SLOTS_MAX,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._room, self._limit_s = room, limit_s
        self._slots_max, self._patience_s = slots_max, min(patience_s, limit_s)
        self._proven: set[int] = set()
        self._sources: dict[int, str] = {}
        self._unproven: OrderedDict[int, float] = OrderedDict()
        """The arrival time of each unproven connection, the oldest first."""
        self._by_source: dict[str, OrderedDict[int, float]] = {}

    @property
    def slots(self) -> int:
        """The number of connections that may be unproven now."""
        return max(0, min(self._slots_max, self._room - len(self._proven)))

    @property
    def count(self) -> int:
        """The number of open connections, proven and unproven."""
        return len(self._proven) + len(self._unproven)

    @property
    def has_free_slot(self) -> bool:
        """Whether one more connection may be accepted now."""
        return len(self._unproven) < self.slots

    def arrived(self, connection: int, source: str, now: float) -> None:
        """Note a new connection: its unique number, and its source, by which slots are counted."""
        self._sources[connection] = source
        self._unproven[connection] = now
        self._by_source.setdefault(source, OrderedDict())[connection] = now

    def proved(self, connection: int) -> None:
        """Note that the peer of this connection belongs to a job, so that its slot is free."""
        if self._free_slot(connection):
            self._proven.add(connection)

    def gone(self, connection: int) -> None:
        """Note that the connection is closed.

        May be repeated, and called for unknown connections.
        """
        self._free_slot(connection)
        self._proven.discard(connection)

    def victim(self, now: float) -> int | None:
        """Return the unproven connection to drop for a new one; None: the new one has to wait.

        It is the oldest one of the source that holds most slots, once it has been open for
        `patience_s`.
        """
        found = self._next_victim()
        if found is None or self._unproven[found] + self._patience_s > now:
            return None
        return found

    def next_victim_at(self) -> float | None:
        """Return when `victim` will have an answer, if no connection is proven or closed before.

        None: no connection is unproven.
        """
        found = self._next_victim()
        return None if found is None else self._unproven[found] + self._patience_s

    def overdue(self, now: float) -> list[int]:
        """Return the connections that have been unproven for `limit_s` or longer, oldest first."""
        found = []
        for connection, since in self._unproven.items():
            if since + self._limit_s > now:
                break
            found.append(connection)
        return found

    def next_overdue_at(self) -> float | None:
        """Return when `overdue` will have an answer; None: no connection is unproven."""
        oldest = next(iter(self._unproven.values()), None)
        return None if oldest is None else oldest + self._limit_s

    def _next_victim(self) -> int | None:
        if not self._by_source:
            return None
        largest = max(self._by_source.values(), key=_claim)
        return next(iter(largest))

    def _free_slot(self, connection: int) -> bool:
        if self._unproven.pop(connection, None) is None:
            return False
        source = self._sources.pop(connection)
        held = self._by_source[source]
        del held[connection]
        if not held:
            del self._by_source[source]
        return True


def _claim(held: OrderedDict[int, float]) -> tuple[int, float]:
    """Return the sort key of a source: its number of slots, then its oldest connection's age."""
    return len(held), -next(iter(held.values()))
