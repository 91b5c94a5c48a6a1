"""The relay: one process per agent that stands between the workers' pipes and the consoles.

It exists so that a slow terminal or disk slows the workers that write, through their full pipes,
and never the agent: whoever's console or file is behind is not read from. Nothing that a worker
writes is dropped while somebody is there to take it. It is also the one writer of the agent's own
lines, so that lines never tear each other.

The process is forked with the signals that end a job ignored, and goes when its agent does: at
the end of the control channel it takes what is in the pipes at that moment, writes it out, and
exits. A console that takes nothing for STALL_S then, or a pipe held open by a grandchild, does not
keep it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections import deque
from math import ceil, inf

from msgspec import Struct, field

from rallypoint.process import syscalls
from rallypoint.process.relay.drawing import Key, Worker
from rallypoint.process.relay.interrupts import Interrupts
from rallypoint.process.relay.lines import LineAssembler, Tail
from rallypoint.process.relay.messages import (
    MAX_PACKET,
    AddStream,
    AskDrain,
    AskTail,
    Drained,
    FirstOutput,
    FoldInterrupts,
    Report,
    Request,
    Say,
    SharedInput,
    ShowStatus,
    TailIs,
    WriteFailed,
    decode_request,
    encode,
)
from rallypoint.process.relay.sinks import Console, LogFile, LogFiles, open_consoles
from rallypoint.process.sessions import is_stopped

STALL_S = 5.0
_READ_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024  # no pipe holds more, unless root made it so


def run_relay(control: socket.socket, agent_pid: int) -> None:
    """The body of the relay process; returns when the agent is gone and all is written."""
    _RelayLoop(control, agent_pid).run()


class _Stream(Struct, eq=False):
    fd: int
    worker: Worker
    key: Key
    console: Console | None
    is_shown: bool  # what it draws or does not finish is shown below the lines
    lines: LineAssembler | None
    file: LogFile | None
    copy: LogFile | None  # for the lines in which one of these is found
    copy_if: tuple[bytes, ...]
    tail: Tail | None


class _DrainMark(Struct, eq=False):
    """What every console must have written before `ask` is answered."""

    ask: int
    marks: list[tuple[Console, int]] = field(default_factory=list)


class _RelayLoop:
    def __init__(self, control: socket.socket, agent_pid: int) -> None:
        control.setblocking(False)
        self._control = control
        self._consoles = open_consoles()
        self._all_consoles = list({id(c): c for c in self._consoles.values()}.values())
        self._terminals = [c for c in self._all_consoles if c.is_terminal]
        self._poll = select.poll()
        self._watched: dict[int, int] = {}
        self._held: set[Console] = set()
        self._now = time.monotonic()
        self._due: dict[int, float] = {}  # when what a stream has not finished is looked at again
        self._streams: dict[int, _Stream] = {}
        self._tails: dict[tuple[int, int], Tail] = {}
        self._files = LogFiles(self._report_failure)
        self._failed_paths: set[bytes] = set()
        self._drains: list[_DrainMark] = []
        self._reports: deque[bytes] = deque()
        self._said, self._interrupts = b"", Interrupts()
        self._requests: deque[tuple[Request, list[int]]] = deque()
        self._newest_heard = -1  # the round whose workers were last heard first
        self._agent_lives, self._agent_pid = True, agent_pid
        # The workers' standard input is ours, too: where it is a terminal, somebody may answer.
        self._has_person = os.isatty(0)
        self._asking: set[Worker] = set()
        self._told_shared = False
        # A process that the agent's program forked by other means may hold the channel open.
        self._agent = syscalls.try_pidfd_open(agent_pid)
        if self._agent is not None:
            self._watch(self._agent, select.POLLIN)

    def run(self) -> None:
        while self._agent_lives:
            self._turn()
        self._finish()

    def _turn(self) -> None:
        """Wait for one or more descriptors, or for what time brings, and serve each once."""
        self._watch(self._control.fileno(), select.POLLIN, also_out=bool(self._reports))
        next_s = min(*self._due.values(), self._interrupts.due_at(), inf)
        for console in self._all_consoles:
            if console.is_full != (console in self._held):
                self._hold(console, console.is_full)
            writes_at = console.writes_at()
            self._watch(console.fd, 0, also_out=writes_at <= self._now)
            next_s = min(next_s, writes_at if writes_at > self._now else inf)
        wait_ms = None if next_s == inf else ceil(max(0.0, next_s - self._now) * 1000)
        ready = dict(self._poll.poll(wait_ms))
        self._now = time.monotonic()
        self._pause_if_stopped()
        events = ready.get(self._control.fileno(), 0)
        if events & ~select.POLLOUT or self._agent in ready:
            self._receive()
        # Streams before requests: an answer about "until now" then has less to fetch.
        for fd in ready:
            stream = self._streams.get(fd)
            if stream is not None and not (stream.console is not None and stream.console.is_full):
                # Whoever was served is last when a console that was behind takes bytes again.
                self._streams[fd] = self._streams.pop(fd)
                self._read(stream, 1)
        for fd in [fd for fd, due in self._due.items() if due <= self._now]:
            self._settle(self._streams[fd])
        for console in self._all_consoles:
            if console.fd in ready:
                self._write(console)
        for fd in self._interrupts.overdue(self._now):
            self._release(self._streams[fd])
        if events & select.POLLOUT:
            self._send_reports()
        if self._agent in ready:
            self._agent_lives = False
        while self._requests:
            self._serve(*self._requests.popleft())

    def _watch(self, fd: int, events: int, *, also_out: bool = False) -> None:
        """Have the next poll look for this; nothing is told twice to the kernel's list of ours."""
        wanted = events | (select.POLLOUT if also_out else 0)
        if self._watched.get(fd, 0) == wanted:
            return
        if wanted:
            self._watched[fd] = wanted
            self._poll.register(fd, wanted)
        else:
            del self._watched[fd]
            self._poll.unregister(fd)

    def _pause_if_stopped(self) -> None:
        """After Ctrl-Z the terminal is the shell's."""
        for console in self._terminals:
            if console.has_rows:
                console.pause(is_stopped(self._agent_pid))

    def _hold(self, console: Console, hold: bool) -> None:
        """Whoever writes to a console that is behind is not read from."""
        (self._held.add if hold else self._held.discard)(console)
        for stream in self._streams.values():
            if stream.console is console:
                self._watch(stream.fd, 0 if hold else select.POLLIN)

    # --- the agent's requests

    def _receive(self) -> None:
        while self._agent_lives:
            try:
                packet, fds, _, _ = socket.recv_fds(self._control, 2 * MAX_PACKET, 1)
            except BlockingIOError:
                return
            except OSError:
                packet, fds = b"", []
            if not packet:
                self._agent_lives = False
                return
            request = decode_request(packet)
            if isinstance(request, FoldInterrupts):
                self._interrupts.begin()
            else:
                self._requests.append((request, fds))

    def _serve(self, wanted: Request, fds: list[int]) -> None:
        match wanted:
            case AddStream() as request if fds:
                self._add(request, fds[0])
            case AddStream(path=path):  # there was no descriptor left to take it with
                self._report_failure(path or b"stdout", errno.EMFILE)
            case ShowStatus(text):
                self._consoles[2].show_status(text)
            case Say(lines):
                self._said += lines
                if self._said.endswith(b"\n"):  # A long line comes in several packets.
                    self._consoles[2].write_lines(self._said)
                    self._said = b""
            case AskTail(ask, round_number, local_rank):
                worker = (round_number, local_rank)
                for stream in list(self._streams.values()):
                    if stream.worker == worker and stream.tail is not None:
                        self._read(stream, _PIPE_BYTES)
                tail = self._tails.get(worker)
                self._report(TailIs(ask, tail.last() if tail else b""))
            case AskDrain(ask):
                self._read_all()
                marks = [(console, console.accepted) for console in self._all_consoles]
                self._drains.append(_DrainMark(ask, marks))
                self._answer_drains()

    def _add(self, request: AddStream, fd: int) -> None:
        os.set_blocking(fd, False)
        worker = request.worker
        console = self._consoles.get(request.fd)
        tail = None
        if request.keep_tail:
            # The round before may still be asked about; older ones are history.
            self._tails = {k: t for k, t in self._tails.items() if k[0] >= worker[0] - 1}
            tail = self._tails[worker] = Tail()
        self._streams[fd] = _Stream(
            fd=fd,
            worker=worker,
            key=(worker, request.fd),
            console=console,
            is_shown=request.draws and console is not None and console.is_terminal,
            lines=LineAssembler(request.prefix) if request.lines else None,
            file=self._files.open(request.path, request.max_bytes),
            copy=self._files.open_shared(request.copy_to, request.max_bytes),
            copy_if=request.copy_if,
            tail=tail,
        )
        self._watch(fd, 0 if console in self._held else select.POLLIN)

    # --- the workers' bytes

    def _read_all(self) -> None:
        for stream in list(self._streams.values()):
            self._read(stream, _PIPE_BYTES)

    def _read(self, stream: _Stream, limit: int) -> None:
        """Take what is in the pipe now, also its end, piece by piece until there were `limit` bytes
        of it."""
        while limit > 0:
            try:
                data = os.read(stream.fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._end(stream)
                return
            self._pass_on(stream, data)
            limit -= len(data)

    def _pass_on(self, stream: _Stream, data: bytes) -> None:
        if stream.worker[0] > self._newest_heard:
            self._newest_heard = stream.worker[0]
            self._report(FirstOutput(self._newest_heard))
        if stream.tail is not None:
            stream.tail.feed(data)
        if stream.file is not None:
            self._files.write(stream.file, data)
        if stream.console is None:
            return
        if stream.lines is None:
            stream.console.write_raw(data)
            return
        stream.console.resume(stream.worker)
        self._asking.discard(stream.worker)
        self._show(stream, stream.console, stream.lines.feed(data, self._now))
        if stream.is_shown or stream.lines.is_drawn:
            self._settle(stream)

    def _settle(self, stream: _Stream) -> None:
        """Show what is no line, and what has become one with time."""
        console, lines = stream.console, stream.lines
        if console is None or lines is None:
            return
        self._show(stream, console, lines.settle(self._now))
        due = lines.due_at()
        self._due.pop(stream.fd, None)
        if self._now < due < inf:
            self._due[stream.fd] = due
        if not stream.is_shown:
            return
        is_asked = self._has_person and lines.is_prompt and bool(lines.shown(self._now))
        prompt = lines.take_prompt() if is_asked else b""
        console.show(stream.key, left := lines.shown(self._now))
        if is_asked:
            self._ask(stream.worker, console, prompt, is_kept=bool(left))

    def _ask(self, worker: Worker, console: Console, prompt: bytes, *, is_kept: bool) -> None:
        console.ask(worker, prompt, is_kept=is_kept)
        self._asking.add(worker)
        if len(self._asking) > 1 and not self._told_shared:
            self._told_shared = True
            self._report(SharedInput())

    def _show(self, stream: _Stream, console: Console, lines: bytes) -> None:
        assert stream.lines is not None
        console.write_lines(self._interrupts.feed(stream.fd, lines, stream.lines.begin, self._now))
        if stream.copy is not None and (found := stream.lines.matching(lines, stream.copy_if)):
            self._files.write(stream.copy, found)

    def _release(self, stream: _Stream) -> None:
        if stream.console is not None:
            stream.console.write_lines(self._interrupts.take(stream.fd))

    def _end(self, stream: _Stream) -> None:
        if stream.console is not None and stream.lines is not None:
            self._show(stream, stream.console, stream.lines.finish())
            self._release(stream)
            stream.console.show(stream.key, [])
            self._asking.discard(stream.worker)
        self._due.pop(stream.fd, None)
        del self._streams[stream.fd]
        if not self._streams:
            self._consoles[2].write_lines(self._interrupts.summary())
        self._watch(stream.fd, 0)
        os.close(stream.fd)
        for file in filter(None, (stream.file, stream.copy)):
            self._files.close(file)

    # --- what can fail: files and consoles

    def _write(self, console: Console) -> None:
        console.write_some(self._now)
        if console.failure is not None:
            self._report_failure(console.name.encode(), console.failure)
            console.failure = None
        if self._drains:
            self._answer_drains()

    # --- reports to the agent

    def _answer_drains(self) -> None:
        waiting = []
        for drain in self._drains:
            if all(console.written >= mark for console, mark in drain.marks):
                self._report(Drained(drain.ask))
            else:
                waiting.append(drain)
        self._drains = waiting

    def _report_failure(self, path: bytes, number: int | None) -> None:
        if path not in self._failed_paths:
            self._failed_paths.add(path)
            self._report(WriteFailed(path, number or 0))

    def _report(self, report: Report) -> None:
        self._reports.append(encode(report))
        self._send_reports()

    def _send_reports(self) -> None:
        while self._reports:
            try:
                self._control.send(self._reports[0])
            except BlockingIOError:
                return
            except OSError:
                self._reports.clear()  # the agent is gone; the next read says so too
                return
            self._reports.popleft()

    # --- the end

    def _finish(self) -> None:
        """Take what is in the pipes now, write it out, take the status line away."""
        self._read_all()
        for stream in list(self._streams.values()):
            self._end(stream)
        for console in self._all_consoles:
            console.show_status(b"")
        stalled_at = time.monotonic() + STALL_S
        while any(console.writes_at() < inf for console in self._all_consoles):
            poll = select.poll()
            for console in self._all_consoles:
                if console.writes_at() < inf:
                    poll.register(console.fd, select.POLLOUT)
            ready = dict(poll.poll(max(0.0, stalled_at - time.monotonic()) * 1000))
            if not ready:
                return
            for console in self._all_consoles:
                if console.fd in ready:
                    self._write(console)
            stalled_at = time.monotonic() + STALL_S
