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
import select
import socket
import time
from collections import deque
from collections.abc import Mapping
from math import ceil, inf

from msgspec import Struct

from rallypoint.process import syscalls
from rallypoint.process.relay.channel import Channel, Poller
from rallypoint.process.relay.messages import (
    AddStream,
    AskDrain,
    AskOutput,
    AskProgress,
    AskTail,
    Drained,
    FoldInterrupts,
    ReadProgress,
    RelayRequest,
    ShowStatus,
    TailIs,
    WriteLines,
)
from rallypoint.process.relay.sinks import ConsoleSink, open_consoles
from rallypoint.process.relay.streams import Streams
from rallypoint.process.sessions import is_stopped

STALL_S = 5.0


def run_relay(control: socket.socket, agent_pid: int, objects: Mapping[int, int]) -> None:
    """Run the relay; returns when the agent is gone and all is written.

    A console that takes nothing for STALL_S then is not waited for. `objects`: by descriptor, 1 or
    2, the pipe to which teed lines go in its place.
    """
    _RelayLoop(control, agent_pid, objects).run()


class _DrainMark(Struct, frozen=True):
    """The number of bytes that each console must have written before a request is answered.

    `ask` is the number of the request.
    """

    ask: int
    marks: list[tuple[ConsoleSink, int]]


class _RelayLoop:
    def __init__(self, control: socket.socket, agent_pid: int, objects: Mapping[int, int]) -> None:
        self._channel, self._poller = Channel(control), Poller()
        self._consoles = _consoles(objects)
        self._all_consoles = list({id(c): c for c in self._consoles.values()}.values())
        self._streams = Streams(self._channel, self._poller, self._consoles[2, True])
        self._now = time.monotonic()
        self._requests: deque[tuple[RelayRequest, list[int]]] = deque()
        self._said = b""
        self._drains: list[_DrainMark] = []
        self._agent_lives, self._agent_pid = True, agent_pid
        # A process that the agent's program forked by other means may hold the channel open.
        self._agent = syscalls.try_pidfd_open(agent_pid)
        if self._agent is not None:
            self._poller.watch(self._agent, select.POLLIN)

    def run(self) -> None:
        while self._agent_lives:
            self._turn()
        self._finish()

    def _turn(self) -> None:
        """Wait for descriptors or a timer, and serve each once."""
        control = self._channel.fileno()
        self._poller.watch(control, select.POLLIN, also_out=self._channel.is_behind)
        next_s = self._streams.due_at()
        for console in self._all_consoles:
            self._streams.hold_if_full(console)
            writes_at = console.writes_at()
            self._poller.watch(console.fd, 0, also_out=writes_at <= self._now)
            next_s = min(next_s, writes_at if writes_at > self._now else inf)
        wait_ms = None if next_s == inf else ceil(max(0.0, next_s - self._now) * 1000)
        ready = self._poller.wait(wait_ms)
        self._now = time.monotonic()
        self._pause_if_stopped()
        events = ready.get(control, 0)
        if events & ~select.POLLOUT or self._agent in ready:
            self._receive()
        # Streams before requests: an answer about "until now" then has less to fetch.
        self._streams.read_ready(ready, self._now)
        for console in self._all_consoles:
            if console.fd in ready:
                self._write(console)
        self._streams.release_interrupts(self._now)
        if events & select.POLLOUT:
            self._channel.send()
        if self._agent in ready:
            self._agent_lives = False
        while self._requests:
            self._serve(*self._requests.popleft())

    def _pause_if_stopped(self) -> None:
        """Stop painting rows while the agent is stopped.

        After Ctrl-Z the terminal is the shell's.
        """
        for console in self._all_consoles:
            if console.is_terminal and console.has_rows:
                console.pause(is_stopped(self._agent_pid))

    # --- the agent's requests

    def _receive(self) -> None:
        requests, self._agent_lives = self._channel.receive()
        for request, fds in requests:
            if isinstance(request, FoldInterrupts):
                self._streams.interrupts.begin()
            else:
                self._requests.append((request, fds))

    def _serve(self, wanted: RelayRequest, fds: list[int]) -> None:
        match wanted:
            case AddStream() as request if fds:
                console = self._consoles.get((request.fd, request.teed))
                self._streams.add(request, fds[0], console, self._now)
            case AddStream(path=path):  # there was no descriptor left to take it with
                self._channel.report_failure(path or b"stdout", errno.EMFILE)
            case ShowStatus(text):
                self._consoles[2, False].show_status(text)
            case WriteLines(lines):
                self._said += lines
                if self._said.endswith(b"\n"):  # A long line comes in several packets.
                    self._consoles[2, False].write_lines(self._said)
                    self._said = b""
            case AskTail(ask, round_number, local_rank):
                words = self._streams.last_words((round_number, local_rank), self._now)
                self._channel.report(TailIs(ask, words))
            case AskOutput() as request:
                self._channel.report(self._streams.output_of(request, self._now))
            case ReadProgress() as request:
                self._streams.read_progress(request)
            case AskProgress(ask):
                self._streams.finish_progress(self._now)
                self._channel.report(Drained(ask))
            case AskDrain(ask):
                self._streams.read_all(self._now)
                marks = [(console, console.accepted) for console in self._all_consoles]
                self._drains.append(_DrainMark(ask, marks))
                self._answer_drains()

    def _answer_drains(self) -> None:
        waiting = []
        for drain in self._drains:
            if all(console.written >= mark for console, mark in drain.marks):
                self._channel.report(Drained(drain.ask))
            else:
                waiting.append(drain)
        self._drains = waiting

    # --- the consoles

    def _write(self, console: ConsoleSink) -> None:
        console.write_some(self._now)
        if console.failure is not None:
            self._channel.report_failure(console.name.encode(), console.failure)
            console.failure = None
        if self._drains:
            self._answer_drains()

    # --- the end

    def _finish(self) -> None:
        """Read the rest of the pipes, write it, and remove the status line.

        Gives up when the consoles take nothing for STALL_S.
        """
        self._streams.read_all(self._now)
        self._streams.end_all(self._now)
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


def _consoles(objects: Mapping[int, int]) -> dict[tuple[int, bool], ConsoleSink]:
    """Return the consoles by descriptor, 1 or 2, and by whether they are for teed lines."""
    plain = open_consoles()
    consoles = {(fd, teed): console for fd, console in plain.items() for teed in (False, True)}
    for fd, pipe in objects.items():
        consoles[fd, True] = ConsoleSink(pipe, "stdout" if fd == 1 else "stderr")
    return consoles
