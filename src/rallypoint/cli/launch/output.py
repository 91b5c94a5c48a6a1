"""The combined output of all hosts.

The lines of agents have the names of their hosts, and those of workers their ranks (--output
prefix); other lines get the name of their host. The last lines of an agent say how the job ended,
and are much the same on all hosts: those of one are shown.

The console may be slow, or stopped by Ctrl-S: a thread writes to it, so that the links continue.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import time
from collections.abc import Callable
from functools import partial

from rallypoint.cli.render import render_event
from rallypoint.core import event_kinds as kinds
from rallypoint.observe.printing import printed
from rallypoint.observe.records import event_now
from rallypoint.process.relay.lines import LineAssembler
from rallypoint.threads import run_in_thread

_STDOUT, _STDERR = 1, 2
_FULL_BYTES = 1024 * 1024
"""The most bytes that wait for the console before the hosts have to wait."""
_DATED = re.compile(rb"rallypoint \d\d:\d\d:\d\d")
_LAST = (b"rallypoint: ", b'{"event":"verdict"')


class _Stream:
    """One stream of one host."""

    def __init__(self) -> None:
        self.lines = LineAssembler(b"")
        self.holds = False
        """Whether the previous line was one in which the agent says how the job ended."""


class OutputWriter:
    """The writer of the combined output of all hosts. For one loop. `run` writes until `close`."""

    def __init__(self, names: tuple[str, ...], mode: str) -> None:
        """`names`: the hosts'. `mode`: the value of --output.

        With one host all is shown as it is.
        """
        self._is_alone, self._mode = len(names) == 1, mode
        self._streams = {(name, fd): _Stream() for name in names for fd in (_STDOUT, _STDERR)}
        self._last: dict[str, list[bytes]] = {name: [] for name in names}
        self._remarks: dict[bytes, str] = {}
        self._waiting: list[tuple[int, bytes]] = []
        self._size = 0
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._gone: set[int] = set()
        self._writer: asyncio.Task[None] | None = None
        self._is_closed = self._is_given_up = False

    def say(self, text: str) -> None:
        """Print a line of this command to stderr, with the time."""
        self._put(_STDERR, printed(render_event(event_now(kinds.NOTICE(text)))).encode())

    def lines(self, *lines: str) -> None:
        """Print lines unchanged to stderr."""
        self._put(_STDERR, printed(*lines).encode())

    async def take(self, name: str, fd: int, data: bytes) -> None:
        """Print a host's output. Waits while the console is slow."""
        if fd not in (_STDOUT, _STDERR):
            return
        if self._is_alone or (self._mode == "inherit" and fd == _STDOUT):
            self._put(fd, data)
        else:
            self._each(name, fd, lambda lines: lines.feed(data, time.monotonic()))
        await self._room.wait()

    def settle(self) -> None:
        """Show rows that workers drew without a line feed, and have not redrawn since."""
        for name, fd in self._streams:
            self._each(name, fd, lambda lines: lines.settle(time.monotonic()))

    def ended(self, name: str) -> None:
        """Show the rest of this host's output, which has ended."""
        for fd in (_STDOUT, _STDERR):
            self._each(name, fd, LineAssembler.finish)

    def show_last(self, name: str, *, as_one_host: bool) -> None:
        """Show the lines in which this host's agent says how the job ended, once.

        `as_one_host`: with the host's name before each.
        """
        lines, self._last[name] = self._last[name], []
        prefix = f"{name}: ".encode() if as_one_host else b""
        self._put(_STDERR, b"".join(prefix + line + b"\n" for line in lines))

    def last_size(self, name: str) -> int:
        """Return the number of held lines in which this host's agent says how the job ended."""
        return len(self._last[name])

    async def run(self) -> None:
        """Write what is queued, until `close` was called and all is written.

        Cancelled when both `give_up` and `close` were called.
        """
        self._writer = asyncio.current_task()
        while self._waiting or not self._is_closed:
            await self._changed.wait()
            self._changed.clear()
            batch, self._waiting = self._waiting, []
            if batch:
                await run_in_thread(partial(self._write, batch), "rallypoint-output")
            self._size -= sum(len(data) for _, data in batch)
            if self._size < _FULL_BYTES:
                self._room.set()
            if self._waiting or self._is_closed:
                self._changed.set()

    def close(self) -> None:
        """Have `run` return when all is written, or at once after `give_up`."""
        self._is_closed = True
        self._changed.set()
        self._cancel_if_due()

    def give_up(self) -> None:
        """Stop waiting for the console; output that it takes until `close` is still shown."""
        self._is_given_up = True
        self._room.set()
        self._cancel_if_due()

    def _cancel_if_due(self) -> None:
        if self._is_given_up and self._is_closed and self._writer is not None:
            self._writer.cancel()

    def _each(self, name: str, fd: int, cut: Callable[[LineAssembler], bytes]) -> None:
        stream = self._streams[name, fd]
        if lines := cut(stream.lines):
            shown = [self._line(name, fd, stream, line) for line in lines[:-1].split(b"\n")]
            self._put(fd, b"".join(shown))

    def _line(self, name: str, fd: int, stream: _Stream, line: bytes) -> bytes:
        """Return the line to show, with a line feed.

        Empty: it is kept for `show_last`, or is a remark that another host's agent has made, too.
        """
        if fd == _STDERR:
            if line.startswith(_LAST) or (stream.holds and line.startswith(b"    ")):
                stream.holds = True
                self._last[name].append(line)
                return b""
            stream.holds = False
            if dated := _DATED.match(line):
                return self._of_agent(name, dated[0], line[dated.end() :])
            if line.startswith(b'{"event":'):  # --log-format json, where it has the name
                return line + b"\n"
        has_rank = self._mode == "inherit" or line.startswith(b"[")
        return (b"" if has_rank else f"{name}: ".encode()) + line + b"\n"

    def _of_agent(self, name: str, dated: bytes, rest: bytes) -> bytes:
        own = f" {name}: ".encode()
        if rest.startswith(b": "):
            # Remarks on the command line, which all hosts have: once is enough.
            if self._remarks.setdefault(rest, name) != name:
                return b""
            rest = own + rest[2:]
        return dated + rest + b"\n"

    def _put(self, fd: int, data: bytes) -> None:
        if data and fd not in self._gone:
            self._waiting.append((fd, data))
            self._size += len(data)
            self._changed.set()
            if self._size >= _FULL_BYTES and not self._is_given_up:
                self._room.clear()

    def _write(self, batch: list[tuple[int, bytes]]) -> None:
        """Write the queued pieces; called in a thread, since it blocks."""
        for fd, data in batch:
            if fd in self._gone:
                continue
            try:
                _write_all(fd, data)
            except OSError:
                self._gone.add(fd)
                if fd == _STDOUT:
                    self._waiting.append((_STDERR, _STDOUT_GONE))
                    self._size += len(_STDOUT_GONE)


_STDOUT_GONE = (
    b"rallypoint: nobody reads stdout any more: what the workers write there is dropped, and the "
    b"job goes on (Ctrl-C ends it)\n"
)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # Whoever has this terminal too has made it so.
            select.select((), (fd,), ())
