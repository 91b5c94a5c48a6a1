"""Who has stopped counting: liveness by counters, on the observer's own clock (behaviour F5). Pure.

Every node has a counter that it raises now and then. Nobody's clock is compared with anybody
else's: an observer only notes *when it saw* a counter change. A counter that stood still for a
whole lease, over several reads that were apart from each other, belongs to a node that is gone.
An observer that did not look for a while has no opinion: it starts anew, because its own pause
(a stopped process, a store that could not be reached) says nothing about others.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rallypoint.core.model import NodeRef

READS = 3
"""A counter must have stood still over so many reads after the first."""
SPACING_SHARE = 0.2
"""Of the lease: reads that are closer to each other count as one."""
GAP_SHARE = 0.5
"""Of the lease: an observer that has not looked for so long starts anew."""


class Suspect(Struct, frozen=True):
    """A node that has stopped counting, and where."""

    ref: NodeRef
    beat: int
    silent_s: float


class _Sighting(Struct):
    beat: int
    first_at: float
    counted_at: float
    reads: int = 0


class BeatWatch:
    """What one observer has seen. Times are seconds on its monotonic clock."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[NodeRef, _Sighting] = {}
        self._read_at: float | None = None

    def read(self, beats: Mapping[NodeRef, int], now: float) -> None:
        """A successful read of the counters of those whom this observer watches."""
        if self._read_at is not None and now - self._read_at > self._lease_s * GAP_SHARE:
            self._seen.clear()
        self._read_at = now
        for ref in [ref for ref in self._seen if ref not in beats]:
            del self._seen[ref]
        for ref, beat in beats.items():
            sighting = self._seen.get(ref)
            if sighting is None or sighting.beat != beat:
                self._seen[ref] = _Sighting(beat, now, now)
            elif now - sighting.counted_at >= self._lease_s * SPACING_SHARE:
                sighting.counted_at = now
                sighting.reads += 1

    def suspects(self, patience_s: float = 0.0) -> list[Suspect]:
        """Those who stood still for the lease and `patience_s`, as of the last read."""
        if self._read_at is None:
            return []
        return [
            Suspect(ref, sighting.beat, self._read_at - sighting.first_at)
            for ref, sighting in self._seen.items()
            if sighting.reads >= READS
            and self._read_at - sighting.first_at >= self._lease_s + patience_s
        ]
