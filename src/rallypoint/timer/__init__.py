"""Countdown timers that end a worker which hangs, with torch's vocabulary and without torch.

    from rallypoint.timer import expires

    with expires(after=60, scope="all_reduce"):
        all_reduce(...)

In a worker of `rallypoint run` that is all: the agent keeps the time. Elsewhere `configure` says
which server does: `LocalTimerServer` over a queue between processes, or `FileTimerServer` over a
named pipe, which torch's clients can use as well.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from rallypoint.lazy import exports

TYPE_CHECKING = False  # That of `typing` would cost a worker several ms.
if TYPE_CHECKING:
    from rallypoint.timer.clients import (
        FileTimerClient,
        FileTimerRequest,
        LocalTimerClient,
        TimerClient,
        TimerRequest,
    )
    from rallypoint.timer.scope import configure, expires
    from rallypoint.timer.servers import (
        FileTimerServer,
        LocalTimerServer,
        MultiprocessingRequestQueue,
        RequestQueue,
        TimerServer,
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

__getattr__, __dir__ = exports(
    globals(),
    {
        ".clients": (
            "FileTimerClient",
            "FileTimerRequest",
            "LocalTimerClient",
            "TimerClient",
            "TimerRequest",
        ),
        ".scope": ("configure", "expires"),
        ".servers": (
            "FileTimerServer",
            "LocalTimerServer",
            "MultiprocessingRequestQueue",
            "RequestQueue",
            "TimerServer",
        ),
    },
)
