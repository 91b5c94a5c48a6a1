"""The witness: a process that notes the signals which a scheduler sends to every process of a job.

Schedulers that signal the witness have signalled the workers too. Other helpers are no proof of
that: `pkill rallypoint` finds them by their names, and does not find the workers. So the name of
the witness is another one, and it leads a session of its own, as workers do.
"""

from __future__ import annotations

import os
import signal

from rallypoint.process import signals, syscalls
from rallypoint.process.forks import ForkedProcess, fork_process

NAME = "signal-witness"
TITLE = "signal witness"


class SignalWitness:
    """The agent's handle of it. `stop` leaves nothing behind; it dies with the agent, too."""

    def __init__(self, process: ForkedProcess, told: int) -> None:
        self._process, self._told = process, told

    @classmethod
    def start(cls) -> SignalWitness:
        """Fork it, best while the agent is small. Raises OSError when the system can't."""
        read_end, write_end = syscalls.pipe_above_standard_fds()
        try:
            process = fork_process(
                lambda: _tell_all(write_end), name=NAME, title=TITLE, keep_fds=(write_end,)
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        return cls(process, read_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Becomes readable when a signal has reached it, or it has died; -1: it was stopped."""
        return self._told

    def read(self) -> tuple[int, ...] | None:
        """The signals since the last call; None: the witness has died. Does not block."""
        try:
            return tuple(os.read(self._told, 4096)) or None
        except BlockingIOError:
            return ()

    def stop(self) -> None:
        """End and reap it. Safe to call again."""
        if self._told >= 0:
            self._process.kill()
            self._process.wait()
            os.close(self._told)
            self._told = -1


def _tell_all(write_end: int) -> None:
    """One byte for each signal, until somebody kills this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.SENT_TO_EVERYBODY)
    for number in signals.SENT_TO_EVERYBODY:  # An ignored signal need not become pending.
        signal.signal(number, signal.SIG_DFL)
    os.set_blocking(write_end, False)
    while True:
        got = signal.sigwait(signals.SENT_TO_EVERYBODY)
        try:
            os.write(write_end, bytes((got,)))
        except OSError:
            pass  # The agent has died, or has not read thousands of signals.
