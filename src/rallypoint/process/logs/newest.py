"""The newest output of a round's workers on this node, wherever it goes: from the relay, or from
files that workers write themselves. For people who ask for it; bounded per look."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from rallypoint.process.logs.plan import NULL_DEVICE, Std, ToFile, ToRelay
from rallypoint.process.logs.worker_output import WorkerOutputs
from rallypoint.process.relay.kept import KEPT_BYTES, KeptOutput
from rallypoint.process.relay.messages import OUTPUT_BYTES

_NEWEST = -1
"""The position before anything was read."""


class OutputLines(Struct, frozen=True):
    """Whole lines that one worker wrote to one stream at one time."""

    local_rank: int
    stream: int
    """1 or 2."""
    wall_time: float
    data: bytes
    left_out: int = 0
    """So many bytes before them are not kept any more."""


class OutputReader:
    """Reads on with each `read`. `unread` are the streams of which nothing is kept on this node:
    local ranks, and 1 or 2."""

    def __init__(
        self,
        outputs: WorkerOutputs,
        round_number: int,
        local_ranks: Sequence[int],
        newest: int,
        *,
        unfinished: bool,
    ) -> None:
        """Begins with so many of the newest lines. `unfinished`: gives those, too, that are not
        finished: then nothing is to be read later."""
        self._outputs, self._round = outputs, round_number
        self._newest, self._unfinished = newest, unfinished
        self._relayed: dict[tuple[int, int], int] = {}
        """Where to go on."""
        self._files: dict[tuple[int, int], tuple[str, int]] = {}
        """Where they are, and where to go on."""
        self.unread: list[tuple[int, int]] = []
        self.has_more = False
        """There is more to be read at once."""
        for local_rank in local_ranks:
            for stream in (Std.OUT, Std.ERR):
                self._add(local_rank, stream)

    def _add(self, local_rank: int, stream: Std) -> None:
        key = local_rank, 1 if stream is Std.OUT else 2
        relay = self._outputs.relay
        match self._outputs.route_of(self._round, local_rank, stream):
            case ToRelay() if relay is not None and not relay.is_lost:
                self._relayed[key] = _NEWEST
            case ToRelay(path=path) | ToFile(path) if path not in ("", NULL_DEVICE):
                self._files[key] = path, _NEWEST
            case _:
                self.unread.append(key)

    async def read_relay(self, now: float) -> list[OutputLines]:
        """What has come, as far as the relay has it, up to `OUTPUT_BYTES`. `now`: Unix time."""
        relay = self._outputs.relay
        if relay is None or not self._relayed:
            self.has_more = False
            return []
        places = tuple((*key, position) for key, position in self._relayed.items())
        found = await relay.output(
            self._round, places, newest=self._newest, unfinished=self._unfinished
        )
        self.has_more = any(one.has_more for one in found)
        lines: list[OutputLines] = []
        for one in found:
            self._relayed[one.local_rank, one.stream] = one.next
            left_out = one.left_out
            for age_s, data in one.lines:
                lines.append(OutputLines(one.local_rank, one.stream, now - age_s, data, left_out))
                left_out = 0
        return lines

    def read_files(self) -> list[OutputLines]:
        """What has come, as far as it is in files. Blocks on them."""
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

    @property
    def most_reads(self) -> int:
        """So often `read_relay` may have more of what is kept now; then it is newer."""
        return 1 + len(self._relayed) * (2 * KEPT_BYTES // OUTPUT_BYTES)

    @property
    def reads_files(self) -> bool:
        """`read_files` has something to look at."""
        return bool(self._files)

    def _read_file(
        self, fd: int, key: tuple[int, int], position: int
    ) -> tuple[list[OutputLines], int]:
        stat = os.fstat(fd)
        if stat.st_size < position:
            position = 0  # It was begun anew.
        begin = max(stat.st_size - KEPT_BYTES, position, 0)
        kept = KeptOutput(begin)
        kept.feed(os.pread(fd, KEPT_BYTES, begin), stat.st_mtime)
        start = kept.newest_at(self._newest) if position < 0 else position
        newest = kept.after(start, KEPT_BYTES, unfinished=self._unfinished)
        left_out = newest.left_out
        found = []
        for part in newest.lines:
            # An agent sends at most so much in one piece.
            for at in range(0, len(part.data), OUTPUT_BYTES):
                data = part.data[at : at + OUTPUT_BYTES]
                found.append(OutputLines(*key, part.at, data, left_out))
                left_out = 0
        return found, newest.next
