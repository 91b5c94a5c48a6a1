"""The objects that the program has as `sys.stdout` and `sys.stderr`, if replaced.

Under `contextlib.redirect_stdout`, in a notebook, teed lines are meant for these objects, not for
descriptors 1 and 2. The relay writes them to a pipe, and a thread of the program passes them on: an
object that blocks or raises concerns that thread only, and slows the writers as any console does.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TextIO

log = logging.getLogger(__name__)


class StreamObjects:
    """The objects that the program has as `sys.stdout` and `sys.stderr` when this is made.

    Those that are the plain streams of descriptors 1 and 2 are left out. For one relay and those
    that replace it.
    """

    def __init__(self) -> None:
        streams = {1: sys.stdout, 2: sys.stderr}
        self._found = {
            fd: stream for fd, stream in streams.items() if not _is_descriptor(stream, fd)
        }
        self._passing: dict[threading.Thread, Future[None]] = {}

    @contextmanager
    def pipes(self) -> Iterator[dict[int, int]]:
        """Open a pipe to each object, and yield the write ends by descriptor, 1 or 2.

        A thread passes on the data of each until the relay, which inherits the write ends, has
        ended. Raises OSError.
        """
        writers: dict[int, int] = {}
        try:
            for fd, stream in self._found.items():
                reader, writers[fd] = os.pipe()
                self._start(reader, stream)
            yield writers
        finally:
            for writer in writers.values():
                os.close(writer)

    async def passed_on(self, timeout_s: float) -> None:
        """Wait until the objects have all data, but at most `timeout_s` seconds.

        To be called after the relay's end. The threads that have nothing more to do have ended
        then.
        """
        passing = self._passing.values()
        if waiting := [asyncio.wrap_future(one) for one in passing if not one.done()]:
            await asyncio.wait(waiting, timeout=timeout_s)
        for thread, done in self._passing.items():
            if done.done():
                thread.join()  # At its last line.

    def _start(self, reader: int, stream: TextIO) -> None:
        done: Future[None] = Future()
        thread = threading.Thread(target=_pass_on, args=(reader, stream, done), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # The system has no thread left.
            os.close(reader)
            raise OSError(str(error)) from error
        self._passing[thread] = done


def _is_descriptor(stream: TextIO | None, fd: int) -> bool:
    """Return whether `stream` is None, or the plain stream of the descriptor `fd`.

    A wrapper of the program may have its `fileno`, but another `write`.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream is None
    try:
        is_plain = stream.write == io.TextIOWrapper.write.__get__(stream)
        return is_plain and os.path.sameopenfile(stream.fileno(), fd)
    except (OSError, ValueError):
        return False


def _pass_on(reader: int, stream: TextIO, done: Future[None]) -> None:
    try:
        with open(reader, "rb") as lines:
            for line in lines:
                try:
                    stream.write(line.decode(errors="replace"))
                    stream.flush()
                except Exception as error:  # Of the program's object; the workers go on.
                    log.debug("a teed line could not be written to %r: %s", stream, error)
    finally:
        done.set_result(None)
