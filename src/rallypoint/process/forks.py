"""Helper processes of the agent: forked, never exec'd, so that they start in a millisecond.

The guard, the output relay and the round store are such helpers: what they do must not share a
process with the heartbeat. A helper holds no descriptor that it was not given.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable
from typing import NoReturn

from rallypoint.observe.printing import say_traceback
from rallypoint.process import signals, syscalls, titles


class ForkedProcess:
    """A child of this process that runs one function. The owner must `wait` for it at the end."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid, self.name = pid, name
        self._exit_code: int | None = None

    def alive(self) -> bool:
        """Return whether the child still runs. Does not reap it."""
        if self._exit_code is not None:
            return False
        try:
            return syscalls.peek_exit(self.pid) is None
        except ChildProcessError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to the child; harmless when it has exited or was reaped."""
        if self._exit_code is None:
            syscalls.signal_process(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Reap the child and return its exit code (-n: by signal n; 0 if others have reaped it).

        May be called again.

        Blocks until it exits: kill it first, unless its end is near for another reason.
        """
        if self._exit_code is None:
            try:
                status = os.waitpid(self.pid, 0)[1]
                self._exit_code = os.waitstatus_to_exitcode(status)
            except ChildProcessError:
                self._exit_code = 0  # Somebody else reaped it; all that matters is that it is gone.
        return self._exit_code


def fork_process(
    body: Callable[[], None],
    *,
    name: str,
    title: str = "",
    keep_fds: Iterable[int] = (),
    dies_with_parent: bool = True,
) -> ForkedProcess:
    """Fork a child that runs `body`, and exits 0 when it returns and 1 when it raises.

    The child leads its own session, dies (SIGKILL) with this process unless told otherwise, and has
    no descriptor above 2 but `keep_fds`. It ignores the signals that others send to every process
    of a job (`SENT_TO_EVERYBODY`); all other dispositions are Python's defaults. `name` (15 bytes
    of it count) shows in `ps -o comm`, `title`, if there is one, in `ps -f`. Works within a
    callback of a running event loop: the child never returns to it, and may run a loop of its own.

    Raises OSError when the system can't fork.
    """
    prctl = syscalls.load_prctl()
    titles.load()
    keep = frozenset(keep_fds)
    ignored = signals.IGNORED_BY_PYTHON | signals.SENT_TO_EVERYBODY
    changed = signals.changed_signals()
    parent_pid = os.getpid()
    signals.keep_exit_statuses()

    def begin() -> None:
        os.setsid()
        if dies_with_parent:
            syscalls.die_with_parent(prctl, parent_pid)
        signals.reset_in_child(changed, ignored)
        syscalls.close_fds_except(keep)
        titles.set_name(name)
        if title:
            titles.set_title(title)
        body()

    # Blocked, they can't end it before it ignores them.
    held = signals.SENT_TO_EVERYBODY.union(signals.handled_signals())
    with signals.blocked(held):
        pid = os.fork()
        if pid == 0:
            _run_and_exit(begin)
    return ForkedProcess(pid, name)


def _run_and_exit(begin: Callable[[], None]) -> NoReturn:
    try:
        # Sockets of the parent that are garbage must not be finalized here: they would close the
        # numbers of their closed descriptors, which by then are descriptors of the child.
        gc.freeze()
        begin()
        os._exit(0)
    except BaseException as error:
        say_traceback(error)
    finally:
        os._exit(1)
