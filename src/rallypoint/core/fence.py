"""When the guard of an agent ends its workers although the agent lives (behaviour F2). Pure.

An agent that is stopped (SIGSTOP, a frozen container) can't keep its own fence: its place is given
away while its workers run on. The guard is another process, and sees in memory that both share
until when the place is held. Times are nanoseconds on a clock that also counts suspend.
"""

from __future__ import annotations

from collections.abc import Collection

AGENT_FIRST_NS = 100_000_000
"""An agent that runs ends its workers itself, and tells why. Less than what others grant it."""


def overdue(
    held_until_ns: int, now_ns: int, workers: Collection[int], killed: Collection[int]
) -> set[int]:
    """The workers that must be killed now. `held_until_ns`: 0 for a node that has no fence."""
    if not held_until_ns or now_ns < held_until_ns + AGENT_FIRST_NS:
        return set()
    return set(workers).difference(killed)


def next_look_ns(
    held_until_ns: int, now_ns: int, workers: Collection[int], killed: Collection[int]
) -> int | None:
    """How long nobody can be overdue, unless the workers change; None: for ever. The lease may be
    renewed meanwhile, so that the look finds nothing but the time of the next one."""
    if not held_until_ns or not set(workers).difference(killed):
        return None
    return max(0, held_until_ns + AGENT_FIRST_NS - now_ns)
