"""The writer of timers' requests into a named pipe, in torch's format.

Imported when a program sets its first timer.
"""

from __future__ import annotations

import os
import signal
import time

from rallypoint.files import open_named
from rallypoint.wire.shm import MAX_LINE_BYTES
from rallypoint.wire.timer_lines import RELEASE, format_timer_line

TRIES, _PAUSE_S = 10, 0.1
AGENT_TRIES = 600
"""The number of tries, 0.1 s apart, while an agent does not read, since it may be paused.

So its workers fail only after a minute."""


class TimerPipe:
    """A writer of lines into the pipe at `path`, which a server has made.

    `tries_when_full` is how often a line is tried, 0.1 s apart, while the pipe is full.
    """

    def __init__(self, path: str, tries_when_full: int = TRIES) -> None:
        self._path, self._tries_when_full = path, tries_when_full

    def send(self, scope_id: str, text: str) -> None:
        """Write one line, and repeat it for a while if the pipe is full or has no reader.

        Raises BrokenPipeError if that does not help, RuntimeError for too long a scope.
        """
        line = text.encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise RuntimeError(
                f"the scope {scope_id[:40]!r}... makes a request of {len(line)} bytes: "
                f"at most {MAX_LINE_BYTES} are possible, use a shorter scope"
            )
        attempt = 0
        while True:
            try:
                fd = open_named(self._path, os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(fd, line)
                    return
                finally:
                    os.close(fd)
            except OSError as error:
                attempt += 1
                is_full = isinstance(error, BlockingIOError)
                if attempt >= (self._tries_when_full if is_full else TRIES):
                    where = f"no timer server can be reached at {self._path}"
                    raise BrokenPipeError(f"{where}: {error.strerror}") from error
            time.sleep(_PAUSE_S)


class AgentTimers:
    """A client that sets timers of this worker at its agent, with their lengths.

    A call blocks for at most a minute, and raises as `TimerPipe.send` does.
    """

    def __init__(self, path: str) -> None:
        self._pipe = TimerPipe(path, AGENT_TRIES)

    def begin(self, scope_id: str, after_s: float) -> None:
        """Have the agent start the timer of this scope of this process, for `after_s` seconds."""
        line = format_timer_line(
            os.getpid(), scope_id, time.time() + after_s, int(signal.SIGKILL), after_s
        )
        self._pipe.send(scope_id, line)

    def release(self, scope_id: str) -> None:
        """Have the agent release the timer of this scope of this process."""
        self._pipe.send(scope_id, format_timer_line(os.getpid(), scope_id, RELEASE, 0))
