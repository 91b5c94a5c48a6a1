"""How long a test waits."""

from __future__ import annotations

import math
import os


def patience(seconds: float) -> float:
    """For what must happen: `seconds` on an idle machine, and as many times that as there are
    processes per core. In whole seconds: torch's stores round a timeout to milliseconds."""
    return float(math.ceil(seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))))
