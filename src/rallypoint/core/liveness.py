"""Who is still there: leases, the reconnect grace, and mass silence (behaviours F2, F3).

A member that says nothing is lost after its lease and a little more; one whose connection broke
is lost after the reconnect grace. Two cases call for patience. When many vanish at once, the
network or this process is the more likely culprit than all of them. And when this process was
itself not running, silence proves nothing. In both cases everybody gets the lease once more.

Nobody is declared lost before the sockets have been polled once after the deadline: the
heartbeat that arrived meanwhile counts.

All times are seconds on one monotonic clock, given by the caller. Touching a member is O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from msgspec import Struct

SILENCE_SLACK_S = 0.5
"""A member's own fence falls at its lease: it has stopped before it is declared lost."""
MASS_MIN = 2
MASS_SHARE = 0.05
SILENT_SHARE = 2 / 3
"""Of the lease: who said nothing for so long counts as missing too, when one is overdue. Members
that went silent together were last heard up to a heartbeat apart."""


class Lost(Struct, frozen=True):
    """A member is to be declared lost."""

    member: str
    why: str
    last_heard_at: float


class Patience(Struct, frozen=True):
    """Everybody gets the lease once more, for a reason that a person should see."""

    why: str


class Liveness:
    """The last sign of life of every member."""

    def __init__(self, lease_s: float, reconnect_grace_s: float) -> None:
        self._lease_s = lease_s
        self._grace_s = reconnect_grace_s
        self._heard: OrderedDict[str, float] = OrderedDict()
        self._vanished: OrderedDict[str, float] = OrderedDict()
        self._overdue: set[str] = set()
        self._patient_until = 0.0
        self._mass_seen = False

    def __len__(self) -> int:
        return len(self._heard)

    def heard(self, member: str, now: float) -> None:
        """A sign of life: also the first one, and one on a new connection."""
        self._heard[member] = now
        self._heard.move_to_end(member)
        self._vanished.pop(member, None)
        self._overdue.discard(member)

    def vanished(self, member: str, now: float) -> None:
        """Its connection ended without a farewell."""
        if member in self._heard and member not in self._vanished:
            self._vanished[member] = now

    def forget(self, member: str) -> None:
        """It is no member any more."""
        self._heard.pop(member, None)
        self._vanished.pop(member, None)
        self._overdue.discard(member)

    def is_here(self, member: str, now: float) -> bool:
        """Connected, and heard so lately that nobody may take it for missing."""
        heard_at = self._heard.get(member)
        if heard_at is None or member in self._vanished:
            return False
        return now - heard_at <= self._lease_s * SILENT_SHARE

    def lagged(self, now: float, lag_s: float) -> Patience | None:
        """The caller did not run for `lag_s`: silence in that time proves nothing."""
        if lag_s < min(self._lease_s / 2, self._grace_s):
            return None
        self._patient_until = now + self._lease_s
        return Patience(f"this process did not run for {lag_s:.1f} s")

    def check(self, now: float) -> tuple[list[Lost], Patience | None]:
        """Who is lost now. Call it again at `next_check`."""
        due = self._due(now)
        if not due:
            self._mass_seen = self._mass_seen and bool(self._vanished)
            return [], None
        if now < self._patient_until:
            return [], None
        limit = max(MASS_MIN, int(len(self._heard) * MASS_SHARE))
        missing = len({*due, *self._vanished, *self._silent(now)})
        if missing > limit and not self._mass_seen:
            self._mass_seen = True
            self._patient_until = now + self._lease_s
            why = f"{missing} of {len(self._heard)} nodes went silent at once"
            return [], Patience(why)
        polled_since = [member for member in due if member in self._overdue]
        self._overdue.update(due)
        lost = [Lost(m, self._why(m), self._heard[m]) for m in polled_since]
        for member in polled_since:
            self.forget(member)
        return lost, None

    def next_check(self, now: float) -> float | None:
        """When to call `check` next, in seconds from `now`; None: there is nobody to watch."""
        if not self._heard:
            return None
        deadline = next(iter(self._heard.values())) + self._lease_s + SILENCE_SLACK_S
        if self._vanished:
            deadline = min(deadline, next(iter(self._vanished.values())) + self._grace_s)
        return max(0.0, max(deadline, self._patient_until) - now)

    def _due(self, now: float) -> list[str]:
        due: list[str] = []
        for member, heard_at in self._heard.items():
            if now < heard_at + self._lease_s + SILENCE_SLACK_S:
                break
            due.append(member)
        for member, eof_at in self._vanished.items():
            if now < eof_at + self._grace_s:
                break
            if member not in due:
                due.append(member)
        return due

    def _silent(self, now: float) -> list[str]:
        since = now - self._lease_s * SILENT_SHARE
        return list(takewhile(lambda member: self._heard[member] < since, self._heard))

    def _why(self, member: str) -> str:
        if member in self._vanished:
            return "its connection broke and did not come back"
        return f"it was silent for {self._lease_s:g} s"
