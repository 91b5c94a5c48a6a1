"""How long a test waits."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable


def load() -> float:
    """How many times as long as on an idle machine things take, roughly: processes per core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def patience(seconds: float) -> float:
    """The limit for what must happen: `seconds` on an idle machine, more on a busy one. In whole
    seconds: torch's stores round a timeout to milliseconds."""
    return float(math.ceil(seconds * load()))


async def until(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    """Wait, while the loop goes on, until the condition is true."""
    async with asyncio.timeout(patience(limit_s)):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
