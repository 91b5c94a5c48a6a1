"""The newest output of a round's workers on this node, wherever it goes.

It is read from the relay, or from files that workers write themselves. For people who ask for it;
bounded per look.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence

from msgspec import Struct

from rallypoint.clocks import wall_time
from rallypoint.process.logs.plan import NULL_DEVICE, Std, ToFile, ToRelay
from rallypoint.process.logs.worker_output import WorkerOutputs
from rallypoint.process.relay.kept import KEPT_BYTES, KeptOutput, Newest
from rallypoint.process.relay.messages import OUTPUT_BYTES, StreamOutput
from rallypoint.threads import run_in_thread

_NEWEST = -1
"""The position that stands for the newest lines, until the first read."""


class OutputLines(Struct, frozen=True):
    """Lines that one worker wrote to one stream at one time; without `data` only a position."""

    local_rank: int
    stream: int
    """The stream: 1 for stdout, 2 for stderr."""
    wall_time: float
    data: bytes
    left_out: int = 0
    """The number of bytes just before these lines that are not kept any more."""
    next: int = -1
    """The position in the stream after these lines, in bytes."""


class ReadStart(Struct, frozen=True):
    """The positions in the streams from which an `OutputReader` begins to read."""

    newest: int
    """The number of newest lines of each stream to begin with."""
    read: Mapping[tuple[int, int], int] = {}
    """The positions from which to read some streams instead, by local rank, and 1 (stdout) or 2
    (stderr)."""


class OutputReader:
    """The reader of the newest output of workers on this node; each `read` continues the last one.

    `unread` are the streams of which nothing is kept on this node, each as the worker's local rank,
    and 1 for stdout or 2 for stderr.
    """

    def __init__(
        self,
        outputs: WorkerOutputs,
        round_number: int,
        local_ranks: Sequence[int],
        start: ReadStart,
        *,
        unfinished: bool,
    ) -> None:
        """Prepare to read the streams of these workers of one round.

        `unfinished`: unfinished lines are given, too; `read` is then to be called only once.
        Otherwise the first `read` gives the position of each stream that begins with its newest
        lines, even if there are none.
        """
        self._outputs, self._round = outputs, round_number
        self._start, self._unfinished = start, unfinished
        self._relayed: dict[tuple[int, int], int] = {}
        """The position from which to read next, of each stream that the relay has."""
        self._files: dict[tuple[int, int], tuple[str, int]] = {}
        """The file of each stream that the relay has not, and the position to read from next."""
        self.unread: list[tuple[int, int]] = []
        self._has_more = False
        """Whether the relay has more output than fitted into its last answer."""
        for local_rank in local_ranks:
            for stream in (Std.OUT, Std.ERR):
                self._add(local_rank, stream)

    def _add(self, local_rank: int, stream: Std) -> None:
        key = local_rank, 1 if stream is Std.OUT else 2
        begin = self._start.read.get(key, _NEWEST)
        relay = self._outputs.relay
        match self._outputs.route_of(self._round, local_rank, stream):
            case ToRelay() if relay is not None and not relay.is_lost:
                self._relayed[key] = begin
            case ToRelay(path=path) | ToFile(path) if path not in ("", NULL_DEVICE):
                self._files[key] = path, begin
            case _:
                self.unread.append(key)

    async def read(self) -> AsyncGenerator[list[OutputLines], None]:
        """Yield the new output since the last time, in parts.

        Files are read in a thread, the other streams are asked of the relay.
        """
        lines = []
        if self._files:
            lines = await run_in_thread(self._read_files, "rallypoint-output")
        # What is more than this may be is newer.
        for _ in range(1 + len(self._relayed) * (2 * KEPT_BYTES // OUTPUT_BYTES)):
            yield lines + await self._read_relay(wall_time(0.0))
            if not self._has_more:
                return
            lines = []

    async def _read_relay(self, now: float) -> list[OutputLines]:
        """Return new lines from the relay, up to `OUTPUT_BYTES`. `now` is Unix time."""
        relay = self._outputs.relay
        if relay is None or not self._relayed:
            self._has_more = False
            return []
        places = tuple((*key, position) for key, position in self._relayed.items())
        found = await relay.output(
            self._round, places, newest=self._start.newest, unfinished=self._unfinished
        )
        self._has_more = any(one.has_more for one in found)
        lines: list[OutputLines] = []
        for one in found:
            key = one.local_rank, one.stream
            parts = [(now - age_s, data) for age_s, data in one.lines]
            lines += self._lines(key, parts, self._relayed[key], one)
            self._relayed[key] = one.next
        return lines

    def _read_files(self) -> list[OutputLines]:
        """Return new lines from files. Blocks on the files."""
        lines: list[OutputLines] = []
        for key, (path, position) in self._files.items():
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                found, following = self._read_file(fd, key, position)
            except OSError:
                continue
            finally:
                os.close(fd)
            self._files[key] = path, following
            lines += found
        return lines

    def _lines(
        self,
        key: tuple[int, int],
        parts: list[tuple[float, bytes]],
        before: int,
        found: StreamOutput | Newest,
    ) -> list[OutputLines]:
        """Return the parts, each a time and its data, as lines with positions.

        Without parts there is one that has the position only, on the first read or after dropped
        bytes. `before` is the position from which `found` was read.
        """
        is_first = before == _NEWEST and not self._unfinished
        if not parts and (is_first or found.left_out):
            return [OutputLines(*key, 0.0, b"", found.left_out, found.next)]
        lines: list[OutputLines] = []
        left_out, position = found.left_out, found.next - sum(len(data) for _, data in parts)
        for at, data in parts:
            position += len(data)
            lines.append(OutputLines(*key, at, data, left_out, position))
            left_out = 0
        return lines

    def _read_file(
        self, fd: int, key: tuple[int, int], position: int
    ) -> tuple[list[OutputLines], int]:
        stat = os.fstat(fd)
        if stat.st_size < position:
            position = 0  # It was begun anew.
        begin = max(stat.st_size - KEPT_BYTES, position, 0)
        kept = KeptOutput(begin)
        kept.feed(os.pread(fd, KEPT_BYTES, begin), stat.st_mtime)
        start = kept.newest_at(self._start.newest) if position < 0 else position
        newest = kept.after(start, KEPT_BYTES, unfinished=self._unfinished)
        # An agent sends at most so much in one piece.
        parts = [
            (part.at, part.data[at : at + OUTPUT_BYTES])
            for part in newest.lines
            for at in range(0, len(part.data), OUTPUT_BYTES)
        ]
        return self._lines(key, parts, position, newest), newest.next
