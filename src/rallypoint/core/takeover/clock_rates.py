"""The difference in speed of two machines' clocks, and the margins that it needs. Pure.

No clock readings are compared, only how long something takes.
"""

from __future__ import annotations

MARGIN_S = 0.5
SLEW = 1 / 12
"""The largest deviation of a clock's rate from true time: chrony's limit by default. Other programs
correct by 0.05 %."""


def with_margin(seconds: float) -> float:
    """Return the longest that another clock may show while this one shows `seconds`."""
    return seconds * (1 + SLEW) / (1 - SLEW) + MARGIN_S


def own_lease_s(lease_s: float) -> float:
    """Return the lease of a leader's own node.

    It is shorter than that of the others, so that who leads next has waited for its end after a
    lease and half a second, whatever the two clocks do.
    """
    return lease_s * (1 - SLEW) / (1 + SLEW)
