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

TYPE_CHECKING = False  # That of `typing` would cost a worker several ms.
if TYPE_CHECKING:
    from rallypoint.timer.file_timer import FileTimerClient, FileTimerRequest, FileTimerServer
    from rallypoint.timer.local_timer import (
        LocalTimerClient,
        LocalTimerServer,
        MultiprocessingRequestQueue,
    )
    from rallypoint.timer.scope import TimerClient, configure, expires
    from rallypoint.timer.server import RequestQueue, TimerRequest, TimerServer

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

_MODULES = {
    "FileTimerClient": "file_timer",
    "FileTimerRequest": "file_timer",
    "FileTimerServer": "file_timer",
    "LocalTimerClient": "local_timer",
    "LocalTimerServer": "local_timer",
    "MultiprocessingRequestQueue": "local_timer",
    "RequestQueue": "server",
    "TimerClient": "scope",
    "TimerRequest": "server",
    "TimerServer": "server",
    "configure": "scope",
    "expires": "scope",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
