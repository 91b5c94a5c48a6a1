"""A worker that is a fork of its agent, and execs nothing."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn, TextIO

from rallypoint.process import dispositions, secrecy, syscalls


def run_forked(
    body: Callable[[], None], changed: Iterable[int], keep_fds: frozenset[int]
) -> NoReturn:
    """In a forked worker that is set up: run `body` as Python's main program would be, and exit.

    No descriptor above 2 but `keep_fds` stays open. What the caller has registered to be run at its
    exit is not run; what the worker registers is, and what `multiprocessing` does at the end of a
    child (it flushes queues).
    """
    # Sockets of the agent that are garbage must not be finalized here; see `forks`.
    gc.freeze()
    secrecy.show_again()
    dispositions.reset_in_child(changed, dispositions.IGNORED_BY_PYTHON)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    syscalls.close_fds_except(keep_fds)
    # To be closed for a child of `multiprocessing`; a worker reads what any other would.
    stdin, sys.stdin = sys.stdin, None
    interrupts: list[BaseException] = []
    code = 1
    try:
        from multiprocessing import get_context

        child = get_context("fork").Process(target=_shown, args=(body, stdin, interrupts))
        code = child._bootstrap()  # type: ignore[attr-defined]
        if interrupts:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(code)


def _shown(body: Callable[[], None], stdin: TextIO | None, interrupts: list[BaseException]) -> None:
    sys.stdin = stdin
    atexit._clear()
    try:
        body()
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        if isinstance(error, KeyboardInterrupt):
            interrupts.append(error)
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
