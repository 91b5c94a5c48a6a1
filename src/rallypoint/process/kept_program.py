"""A program that ends when this process does, however that ends, and a temporary directory.

Between the two is a keeper, in a session of its own, which signals for this process do not reach.
It is this file, run by Python with the standard library alone. It makes the directory and starts
the program; when this process stops it, is killed, or has closed the pipe between them, it ends the
program and removes the directory. If the keeper itself is killed, the kernel kills the program.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

_PR_SET_PDEATHSIG = 1
_END_S = 5.0
"""The seconds that a program has from SIGTERM to SIGKILL."""


class KeptProgram:
    """A running program and its directory, which both end when this process does.

    For one thread at a time.
    """

    def __init__(self, argv: Sequence[str], directory: str, output: int | IO[bytes] | None) -> None:
        """Start the program `argv` under a keeper, a process that makes and removes `directory`.

        The parent of `directory` must exist. `output` gets all that the program and the keeper
        write. Raises OSError if the keeper can't be started.
        """
        keeper = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        self._keeper = subprocess.Popen(
            [*keeper, str(os.getpid()), directory, *argv],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def is_alive(self) -> bool:
        """Return whether the keeper runs: the program does, or its directory still exists."""
        return self._keeper.poll() is None

    def stop(self) -> None:
        """End the program by SIGTERM, and remove the directory.

        May be called again.

        Blocks until both are done; a program that runs on for 5 s is killed.
        """
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()


def keep(owner: int, directory: str, argv: Sequence[str]) -> int:
    """Make `directory`, run the program, and remove `directory`; return the program's exit code.

    -n: it was killed by signal n. The program is ended when the process `owner` ends or closes this
    process's stdin.
    """
    os.mkdir(directory, 0o700)
    try:
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=_with_keeper())
        end = threading.Thread(target=_end_with, args=(owner, program), daemon=True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: program.terminate())
        end.start()
        return program.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _end_with(owner: int, program: subprocess.Popen[bytes]) -> None:
    ends = [sys.stdin.fileno()]
    with suppress(AttributeError, OSError):
        # The pipe may be held by others that the owner has forked.
        ends.append(os.pidfd_open(owner))
    select.select(ends, [], [])
    program.terminate()
    try:
        program.wait(_END_S)
    except subprocess.TimeoutExpired:
        program.kill()


def _with_keeper() -> Callable[[], object]:
    """Return the function by which a child has itself killed when this process ends.

    Where there is no prctl the function does nothing.
    """
    import ctypes  # Before the fork: a child must not import.

    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)
    return partial(prctl, _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
