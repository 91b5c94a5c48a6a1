"""Countdown timers that end a hanging worker, with torch's vocabulary and without torch.

    from rallypoint.elastic.timer import expires

    with expires(after=60, scope="all_reduce"):
        all_reduce(...)

In a worker of `rallypoint run` this suffices: the agent keeps the timers. Elsewhere `configure`
sets the server: `LocalTimerServer` over a queue between processes, or `FileTimerServer` over a
named pipe, which torch's clients can use as well.
"""

from __future__ import annotations

from rallypoint.elastic.timer.api import (
    RequestQueue as RequestQueue,
    TimerClient as TimerClient,
    TimerRequest as TimerRequest,
    TimerServer as TimerServer,
    configure as configure,
    expires as expires,
)
from rallypoint.elastic.timer.file_based_local_timer import (
    FileTimerClient as FileTimerClient,
    FileTimerRequest as FileTimerRequest,
    FileTimerServer as FileTimerServer,
)
from rallypoint.elastic.timer.local_timer import (
    LocalTimerClient as LocalTimerClient,
    LocalTimerServer as LocalTimerServer,
    MultiprocessingRequestQueue as MultiprocessingRequestQueue,
)
