"""How long a test waits for what must happen: longer on a machine that has much else to do."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """`seconds` on an idle machine, and as many times that as there are processes per core."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
