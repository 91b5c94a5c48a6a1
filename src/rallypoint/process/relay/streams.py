"""The streams of the workers: from their pipes to consoles and files.

Whoever writes to a console that is behind is not read from: the pipe fills, and the worker waits.
What a stream has not finished is shown below the lines of a terminal, and looked at again when time
may have made it a line, or a prompt that a person answers.
"""

from __future__ import annotations

import os
import select
from collections.abc import Collection
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.process.relay.channel import Channel, Poller
from rallypoint.process.relay.drawing import Key, WorkerKey
from rallypoint.process.relay.interrupts import Interrupts
from rallypoint.process.relay.kept import KeptOutput, RoundsOutput
from rallypoint.process.relay.lines import LineAssembler
from rallypoint.process.relay.messages import (
    AddStream,
    AskOutput,
    FirstOutput,
    OutputIs,
    ReadProgress,
    SharedInput,
)
from rallypoint.process.relay.remembered import LastWords, Remembered
from rallypoint.process.relay.sinks import ConsoleSink, LogFile, LogFiles

if TYPE_CHECKING:
    from rallypoint.process.relay.progress import ProgressReader

_READ_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024  # no pipe holds more, unless root made it so
JOIN_S = 0.05
"""The time in seconds for which an unfinished line of a stream that goes to its console byte for
byte waits for its end, before it is passed on. `print` may write a line and its end one after the
other, and other workers between them."""


class _Stream(Struct, eq=False):
    fd: int
    worker: WorkerKey
    key: Key
    console: ConsoleSink | None
    is_shown: bool  # what it draws or does not finish is shown below the lines
    lines: LineAssembler | None
    rest: bytes  # of what is passed on byte for byte: the line that has not ended
    file: LogFile | None
    copy: LogFile | None  # for the lines in which one of these is found
    copy_if: tuple[bytes, ...]
    remembered: Remembered | None
    kept: KeptOutput


class Streams:
    """The workers' streams that the agent has added and that have not ended."""

    def __init__(self, channel: Channel, poller: Poller, stderr: ConsoleSink) -> None:
        self._channel, self._poller, self._stderr = channel, poller, stderr
        self._streams: dict[int, _Stream] = {}
        self._past = RoundsOutput()
        self._due: dict[int, float] = {}  # when what a stream has not finished is looked at again
        self._held: set[ConsoleSink] = set()
        self._files = LogFiles(channel.report_failure)
        self._newest_heard = -1  # the round whose workers were last heard first
        self._prompts = _Prompts(channel)
        self.interrupts = Interrupts()
        self._progress: ProgressReader | None = None

    def add(self, request: AddStream, fd: int, console: ConsoleSink | None, now: float) -> None:
        """Read a worker's stream from the pipe `fd` from now on."""
        os.set_blocking(fd, False)
        worker = request.worker
        if self._progress is not None:
            self._progress.add(worker, fd, now)
        kept, remembered = self._past.begin(worker, request)
        self._streams[fd] = _Stream(
            fd=fd,
            worker=worker,
            key=(worker, request.fd),
            console=console,
            is_shown=request.draws and console is not None and console.is_terminal,
            lines=LineAssembler(request.prefix) if request.lines else None,
            rest=b"",
            file=self._files.open(request.path, request.max_bytes),
            copy=self._files.open_shared(request.copy_to, request.max_bytes),
            copy_if=request.copy_if,
            remembered=remembered,
            kept=kept,
        )
        self._poller.watch(fd, 0 if console in self._held else select.POLLIN)

    def read_progress(self, request: ReadProgress) -> None:
        """Look for progress in the output of a round's workers, whose streams come next."""
        if self._progress is None:
            from rallypoint.process.relay.progress import ProgressReader

            self._progress = ProgressReader(self._channel.report)
        self._progress.begin(request)

    def finish_progress(self, now: float) -> None:
        """Read all pipes, and search all output so far for progress."""
        self.read_all(now)
        if self._progress is not None:
            self._progress.look_at_all(now)

    def hold_if_full(self, console: ConsoleSink) -> None:
        """Stop reading from the streams of this console while it is behind.

        Reading goes on once it is not.
        """
        hold = console.is_full
        if hold == (console in self._held):
            return
        (self._held.add if hold else self._held.discard)(console)
        for stream in self._streams.values():
            if stream.console is console:
                self._poller.watch(stream.fd, 0 if hold else select.POLLIN)

    def due_at(self) -> float:
        """Return when there is something to do even if no data comes; infinity: never.

        For example unfinished lines are shown then, and progress is read.
        """
        read_at = self._progress.due_at() if self._progress is not None else inf
        return min(*self._due.values(), self.interrupts.due_at(), read_at)

    def read_ready(self, ready: Collection[int], now: float) -> None:
        """Read one piece from each ready pipe whose console is not behind, and handle what is due.

        What is due: unfinished lines are shown, and progress is read.
        """
        for fd in ready:
            self._read_piece(fd, now)
        for fd in [fd for fd, due in self._due.items() if due <= now]:
            if fd not in ready:
                self._read_piece(fd, now)  # On a busy machine the line may have ended since.
            if self._due.get(fd, inf) <= now:
                self._settle(self._streams[fd], now)
        if self._progress is not None:
            self._progress.look(now)

    def _read_piece(self, fd: int, now: float) -> None:
        stream = self._streams.get(fd)
        if stream is not None and not (stream.console is not None and stream.console.is_full):
            # Whoever was served is last when a console that was behind takes bytes again.
            self._streams[fd] = self._streams.pop(fd)
            self._read(stream, 1, now)

    def release_interrupts(self, now: float) -> None:
        """Show tracebacks that were held back for HOLD_S.

        Those that end in a KeyboardInterrupt are counted instead.
        """
        for fd in self.interrupts.overdue(now):
            self._release(self._streams[fd])

    def read_all(self, now: float) -> None:
        """Read the present content of all pipes."""
        for stream in list(self._streams.values()):
            self._read(stream, _PIPE_BYTES, now)
            self._pass_on_rest(stream)

    def last_words(self, worker: WorkerKey, now: float) -> LastWords:
        """Read the worker's pipes, and return its last words until now.

        They are the remembered tracebacks and the ends of its output.
        """
        for stream in list(self._streams.values()):
            if stream.worker == worker:
                self._read(stream, _PIPE_BYTES, now)
        return self._past.last_words(worker)

    def output_of(self, request: AskOutput, now: float) -> OutputIs:
        """Return the kept output of the requested streams."""
        return self._past.output_of(request, now)

    def end_all(self, now: float) -> None:
        """Stop reading from all streams; show what is unfinished, and close pipes and files."""
        for stream in list(self._streams.values()):
            self._end(stream, now)

    def _read(self, stream: _Stream, limit: int, now: float) -> None:
        """Read the pipe in whole pieces until `limit` bytes are reached, or none are left.

        The end of the pipe ends the stream.
        """
        while limit > 0:
            try:
                data = os.read(stream.fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._end(stream, now)
                return
            self._pass_on(stream, data, now)
            limit -= len(data)

    def _pass_on(self, stream: _Stream, data: bytes, now: float) -> None:
        if stream.worker[0] > self._newest_heard:
            self._newest_heard = stream.worker[0]
            self._channel.report(FirstOutput(self._newest_heard))
        if self._progress is not None:
            self._progress.feed(stream.worker, stream.fd, data, now)
        if stream.remembered is not None:
            stream.remembered.feed(data)
        stream.kept.feed(data, now)
        if stream.file is not None:
            self._files.write(stream.file, data)
        if stream.console is None:
            return
        if stream.lines is None:
            data = stream.rest + data
            end = data.rfind(b"\n") + 1 if len(data) < _READ_BYTES else len(data)
            stream.console.write_raw(data[:end])
            stream.rest = data[end:]
            if end:
                self._due.pop(stream.fd, None)
            if stream.rest:
                self._due.setdefault(stream.fd, now + JOIN_S)
            return
        stream.console.resume(stream.worker)
        self._prompts.answered(stream.worker)
        self._show(stream, stream.console, stream.lines.feed(data, now), now)
        if stream.is_shown or stream.lines.is_drawn:
            self._settle(stream, now)

    def _pass_on_rest(self, stream: _Stream) -> None:
        if stream.rest and stream.console is not None:
            stream.console.write_raw(stream.rest)
            stream.rest = b""
        if stream.lines is None:
            self._due.pop(stream.fd, None)

    def _settle(self, stream: _Stream, now: float) -> None:
        """Show the unfinished part of a stream, and lines that time has completed."""
        console, lines = stream.console, stream.lines
        if console is None or lines is None:
            self._pass_on_rest(stream)
            return
        self._show(stream, console, lines.settle(now), now)
        due = lines.due_at()
        self._due.pop(stream.fd, None)
        if now < due < inf:
            self._due[stream.fd] = due
        if not stream.is_shown:
            return
        is_asked = self._prompts.has_person and lines.is_prompt and bool(lines.shown(now))
        prompt = lines.take_prompt() if is_asked else b""
        console.show(stream.key, left := lines.shown(now))
        if is_asked:
            console.ask(stream.worker, prompt, is_kept=bool(left))
            self._prompts.asked(stream.worker)

    def _show(self, stream: _Stream, console: ConsoleSink, lines: bytes, now: float) -> None:
        assert stream.lines is not None
        console.write_lines(self.interrupts.feed(stream.fd, lines, stream.lines.begin, now))
        if stream.copy is not None and (found := stream.lines.matching(lines, stream.copy_if)):
            self._files.write(stream.copy, found)

    def _release(self, stream: _Stream) -> None:
        if stream.console is not None:
            stream.console.write_lines(self.interrupts.take(stream.fd))

    def _end(self, stream: _Stream, now: float) -> None:
        self._pass_on_rest(stream)
        if stream.console is not None and stream.lines is not None:
            self._show(stream, stream.console, stream.lines.finish(), now)
            self._release(stream)
            stream.console.show(stream.key, [])
            self._prompts.answered(stream.worker)
        if self._progress is not None:
            self._progress.end(stream.worker, stream.fd, now)
        self._due.pop(stream.fd, None)
        del self._streams[stream.fd]
        if not self._streams:
            self._stderr.write_lines(self.interrupts.summary())
        self._poller.watch(stream.fd, 0)
        os.close(stream.fd)
        for file in filter(None, (stream.file, stream.copy)):
            self._files.close(file)


class _Prompts:
    """The workers that wait for the user's input, at the terminal that they share."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # The workers' standard input is ours, too: where it is a terminal, somebody may answer.
        self.has_person = os.isatty(0)
        self._asking: set[WorkerKey] = set()
        self._is_reported = False

    def asked(self, worker: WorkerKey) -> None:
        """Note that a worker asks; report once to the agent when several do."""
        self._asking.add(worker)
        if len(self._asking) > 1 and not self._is_reported:
            self._is_reported = True
            self._channel.report(SharedInput())

    def answered(self, worker: WorkerKey) -> None:
        """Note that the worker waits no longer: it writes again, or has ended."""
        self._asking.discard(worker)
