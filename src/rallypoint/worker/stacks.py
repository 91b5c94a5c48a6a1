"""The stacks of all threads of this process, written to a file at the agent's request.

A thread waits for requests at a named pipe. It writes while it holds the interpreter lock: then
every other thread is between two instructions or outside of Python, and its frames are complete.
Python's faulthandler at a signal may find a frame that is just being made, which ends the process
by SIGSEGV (seen with CPython 3.11.7, 3.12.1 and 3.13.0 in a loop that calls functions;
https://github.com/python/cpython/issues/116008). So the signal is used only for a process whose
threads keep the lock from this thread, as code in C does: there the frames do not change.
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
    """Allow the agent to request stacks, which are appended to this file.

    Requests come through the pipe beside the file, or by a real-time signal that this program does
    not use itself. Returns the number of that signal; 0 if there is none, or the file can't be
    written: then nothing can be requested.
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
    """Make the named pipe and return both of its ends in one descriptor. Raises OSError.

    Reading it never meets an end of file.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)  # Of an owner before this one.
    pipe = make_pipe(path)
    os.set_blocking(pipe, True)
    return pipe


def _write_when_asked(path: str, pipe: int) -> None:
    """Write the stacks at each request, until the program closes the descriptor.

    Some programs close all descriptors. A request contains the time until which it is valid; after
    that the agent sends the signal.
    """
    with suppress(OSError):
        ours = os.fstat(pipe)
        while os.path.samestat(os.fstat(pipe), ours) and (asked := os.read(pipe, 4096)):
            with suppress(OSError):
                if monotonic_ns() < int.from_bytes(asked[-8:], sys.byteorder):
                    _write(path)


def _write(path: str) -> None:
    """Write the stacks by one write, so that a reader finds all of them or nothing."""
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
