"""The difference in speed of two machines' clocks, and the margins that it needs. Pure.

No clock readings are compared, only how long something takes.
"""

from __future__ import annotations

MARGIN_S = 0.5
SLEW = 1 / 12
"""The largest share by which a clock may run too fast or too slow: chrony's limit by default. Other
programs correct by 0.05 % at most."""


def with_margin(seconds: float) -> float:
    """Return the sum of `seconds`, the most that two clocks differ meanwhile, and half a second.

    While this machine's clock advances by `seconds`, another one advances by no more than that sum.
    """
    return seconds * (1 + SLEW) / (1 - SLEW) + MARGIN_S


def own_lease_s(lease_s: float) -> float:
    """Return the lease of the leader's own node in seconds, which is shorter than `lease_s`.

    `lease_s` is the lease of all other nodes. The next leader waits for that and half a second on
    its own clock. By then the shorter lease has ended, however fast the two clocks run.
    """
    return lease_s * (1 - SLEW) / (1 + SLEW)
