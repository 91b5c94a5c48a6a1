"""Countdown timers that end a worker which hangs, with torch's vocabulary and without torch.

    from rallypoint.elastic.timer import expires

    with expires(after=60, scope="all_reduce"):
        all_reduce(...)

In a worker of `rallypoint run` that is all: the agent keeps the time. Elsewhere `configure` says
which server does: `LocalTimerServer` over a queue between processes, or `FileTimerServer` over a
named pipe, which torch's clients can use as well.
"""

from __future__ import annotations

from rallypoint.elastic.timer.clients import (
    FileTimerClient as FileTimerClient,
)
from rallypoint.elastic.timer.clients import (
    FileTimerRequest as FileTimerRequest,
)
from rallypoint.elastic.timer.clients import (
    LocalTimerClient as LocalTimerClient,
)
from rallypoint.elastic.timer.clients import (
    TimerClient as TimerClient,
)
from rallypoint.elastic.timer.clients import (
    TimerRequest as TimerRequest,
)
from rallypoint.elastic.timer.scope import (
    configure as configure,
)
from rallypoint.elastic.timer.scope import (
    expires as expires,
)
from rallypoint.elastic.timer.servers import (
    FileTimerServer as FileTimerServer,
)
from rallypoint.elastic.timer.servers import (
    LocalTimerServer as LocalTimerServer,
)
from rallypoint.elastic.timer.servers import (
    MultiprocessingRequestQueue as MultiprocessingRequestQueue,
)
from rallypoint.elastic.timer.servers import (
    RequestQueue as RequestQueue,
)
from rallypoint.elastic.timer.servers import (
    TimerServer as TimerServer,
)

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "MultiprocessingRequestQueue",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]
