"""The stacks of all threads of this process, written to a file when the agent asks for them.

A thread waits for that at a named pipe. It writes while it holds the interpreter lock: then every
other thread is between two instructions or outside of Python, and its frames are whole. Python's
faulthandler at a signal may come upon a frame that is just being made, which ends the process by
SIGSEGV (seen with CPython 3.11.7, 3.12.1 and 3.13.0 in a loop that calls functions;
https://github.com/python/cpython/issues/116008). So the signal is for a process whose threads keep
the lock from this one, as code in C does: there the frames stand still.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from time import monotonic_ns

from rallypoint.files import make_pipe, safe_open
from rallypoint.wire.shm_words import ask_stacks_path

MOST_BYTES = 1024 * 1024
STACK_SIGNALS_BELOW_MAX = 3
"""Signals are tried from SIGRTMAX - 3 downwards: libraries count up from SIGRTMIN."""


def offer_stacks(path: str) -> int:
    """Have the stacks added to this file whenever the agent asks. The main thread calls this.

    Through the pipe beside it, or by the first real-time signal that this program does not use
    itself. Returns its number, 0 if the file can't be written.
    """
    number = _offer_at_signal(path)
    if number:
        with suppress(OSError, RuntimeError):  # The system has no pipe or thread left.
            _thread.start_new_thread(_write_when_asked, (path, _pipe(ask_stacks_path(path))))
    return number


def _offer_at_signal(path: str) -> int:
    for number in range(signal.SIGRTMAX - STACK_SIGNALS_BELOW_MAX, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is not signal.SIG_DFL:
            continue
        try:
            fd = safe_open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            faulthandler.register(number, fd, all_threads=True)
        except (OSError, RuntimeError, ValueError):
            return 0
        return number
    return 0


def _pipe(path: str) -> int:
    """Note that both of its ends, so that reading it never comes to an end. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # Of an owner before this one.
    pipe = make_pipe(path)
    os.set_blocking(pipe, True)
    return pipe


def _write_when_asked(path: str, pipe: int) -> None:
    """Until the program closes the descriptor, as some do with all that they find.

    A question is the time until which it holds: then the agent sends the signal.
    """
    with suppress(OSError):
        ours = os.fstat(pipe)
        while os.path.samestat(os.fstat(pipe), ours) and (asked := os.read(pipe, 4096)):
            with suppress(OSError):
                if monotonic_ns() < int.from_bytes(asked[-8:], sys.byteorder):
                    _write(path)


def _write(path: str) -> None:
    """At one go, so that who reads the file finds all or nothing."""
    text = os.memfd_create("stacks")
    try:
        faulthandler.dump_traceback(text, all_threads=True)
        stacks = os.pread(text, MOST_BYTES, 0)
    finally:
        os.close(text)
    fd = safe_open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, stacks)
    finally:
        os.close(fd)
