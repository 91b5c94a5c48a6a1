"""Who has been silent for too long in the middle of saying something. Pure: time is an argument."""

from __future__ import annotations


class SilenceWatch:
    """Deadlines for ids, all equally far away when they are set: so a dict keeps them in order."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadlines: dict[int, float] = {}

    def expect(self, id_: int, now_s: float) -> None:
        """More must come from this one until `timeout_s` from now; said again, it counts anew."""
        self._deadlines.pop(id_, None)
        self._deadlines[id_] = now_s + self._timeout_s

    def forget(self, id_: int) -> None:
        """It has said all, or is gone."""
        self._deadlines.pop(id_, None)

    def expire(self, now_s: float) -> list[int]:
        """Those whose time is over; they are forgotten."""
        silent = []
        for id_, deadline_s in self._deadlines.items():
            if deadline_s > now_s:
                break
            silent.append(id_)
        for id_ in silent:
            del self._deadlines[id_]
        return silent

    def next_deadline_s(self) -> float | None:
        """When to call `expire`; None while nobody is expected to say anything."""
        return next(iter(self._deadlines.values()), None)
