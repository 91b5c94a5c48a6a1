"""The newest output of a worker's stream, for `rallypoint logs`.

Pure; in bounded memory.

Positions count the bytes of a stream from its beginning. Times are those of the bytes' arrival, to
a tenth of a second.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from rallypoint.process.relay.drawing import WorkerKey
from rallypoint.process.relay.messages import (
    OUTPUT_BYTES,
    AddStream,
    AskOutput,
    OutputIs,
    StreamOutput,
)
from rallypoint.process.relay.remembered import (
    RECENT_BYTES,
    LastWords,
    Remembered,
    StreamPiece,
    last_pieces,
)

KEPT_BYTES = 32 * 1024
"""The number of the newest bytes that are kept of each stream, at least; at most half as many
more."""
MARK_S = 0.1
MARKS_MAX = 256
UNFINISHED_BYTES = 8 * 1024
"""The most bytes of an unfinished line; a longer one counts as a line."""
_STDOUT_BYTES = RECENT_BYTES // 2
"""The most bytes of the end of stdout in a worker's last words; most errors are on stderr."""


class Lines(Struct, frozen=True):
    """Lines that arrived at about the same time."""

    at: float
    data: bytes


class Newest(Struct, frozen=True):
    """The output after a position, as far as it is kept."""

    lines: list[Lines]
    next: int
    """The position of the output that follows `lines`."""
    left_out: int
    """The number of bytes between the position and `lines` that are not kept any more."""
    has_more: bool


class KeptOutput:
    """The newest output of one stream, as much as is kept."""

    __slots__ = ("_begin", "_held", "_marks")

    def __init__(self, begin: int = 0) -> None:
        """`begin`: the position of the first byte that comes."""
        self._held, self._begin = bytearray(), begin
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS_MAX)
        """The positions in the stream and the times at which data arrived."""

    @property
    def end(self) -> int:
        """The position behind the last byte that has arrived."""
        return self._begin + len(self._held)

    def feed(self, data: bytes, now: float) -> None:
        """Add received bytes."""
        if not self._marks or now >= self._marks[-1][1] + MARK_S:
            self._marks.append((self.end, now))
        gone = len(data) - KEPT_BYTES
        if gone > 0:
            self._begin += len(self._held) + gone
            self._held[:] = data[gone:]
            return
        self._held += data
        if len(self._held) > KEPT_BYTES + KEPT_BYTES // 2:
            gone = len(self._held) - KEPT_BYTES
            self._begin += gone
            del self._held[:gone]

    def end_of(self, most: int) -> StreamPiece:
        """Return the newest bytes, at most `most`."""
        data = bytes(self._held[-most:])
        return StreamPiece(self.end - len(data), data)

    def newest_at(self, lines: int) -> int:
        """Return the position at which the newest `lines` lines begin.

        An unfinished line counts as one. 0 lines: the end.
        """
        end = len(self._held)
        at = end - 1 if self._held.endswith(b"\n") else end
        for _ in range(lines):
            at = self._held.rfind(b"\n", 0, max(at, 0))
            if at < 0:
                return self._first_line()
        return self.end if not lines else self._begin + at + 1

    def after(self, position: int, most: int, *, unfinished: bool = False) -> Newest:
        """Return the whole lines from this position on, at most `most` bytes of them.

        They begin with the first whole kept line if the position is older. `unfinished` includes an
        unfinished line. With room for less than `UNFINISHED_BYTES` nothing may fit although there
        is more.
        """
        begin = position
        if position < self._begin:
            begin = self._first_line()
        data = bytes(self._held[begin - self._begin : begin - self._begin + most])
        is_all = begin + len(data) == self.end
        if not (is_all and unfinished):
            whole = data.rfind(b"\n") + 1
            if whole or len(data) < UNFINISHED_BYTES:
                data = data[:whole]
        has_more = not is_all and (bool(data) or most < UNFINISHED_BYTES)
        left_out = begin - position if position >= 0 else 0
        return Newest(self._at_times(begin, data), begin + len(data), left_out, has_more)

    def _first_line(self) -> int:
        """Return the position of the first kept line that has its beginning."""
        if not self._begin:
            return 0
        return self._begin + self._held.find(b"\n") + 1

    def _at_times(self, begin: int, data: bytes) -> list[Lines]:
        """Return the lines with their times: a line has the time of its beginning."""
        found: list[Lines] = []
        at, time = 0, self._marks[0][1] if self._marks else 0.0
        for mark, mark_at in self._marks:
            here = mark - begin
            if here >= len(data):
                break
            if here > at:
                end = data.find(b"\n", here - 1) + 1 or len(data)
                found.append(Lines(time, data[at:end]))
                at = end
            time = mark_at
        return [*found, Lines(time, data[at:])] if at < len(data) else found


class RoundsOutput:
    """The kept output of the workers of the newest round and the one before it."""

    def __init__(self) -> None:
        self._remembered: dict[WorkerKey, Remembered] = {}
        self._kept: dict[tuple[WorkerKey, int], KeptOutput] = {}

    def begin(self, worker: WorkerKey, request: AddStream) -> tuple[KeptOutput, Remembered | None]:
        """Begin to keep a new stream; return its output, and its memory of tracebacks.

        The memory is None if the request does not ask for it. The round before is kept too; older
        ones are dropped.
        """
        oldest = worker[0] - 1
        self._kept = {key: kept for key, kept in self._kept.items() if key[0][0] >= oldest}
        kept = self._kept[worker, request.stream] = KeptOutput()
        if not request.keep_tail:
            return kept, None
        self._remembered = {key: r for key, r in self._remembered.items() if key[0] >= oldest}
        remembered = self._remembered[worker] = Remembered()
        return kept, remembered

    def last_words(self, worker: WorkerKey) -> LastWords:
        """Return the remembered tracebacks of this worker, and the ends of its streams."""
        out, err = self._kept.get((worker, 1)), self._kept.get((worker, 2))
        remembered = self._remembered.get(worker)
        return LastWords(
            ()
            if remembered is None or err is None
            else last_pieces(remembered.pieces(), err.end_of(2 * KEPT_BYTES)),
            () if out is None else (out.end_of(_STDOUT_BYTES),),
        )

    def output_of(self, request: AskOutput, now: float) -> OutputIs:
        """Return the kept output of the requested streams, at most OUTPUT_BYTES of lines in all.

        Streams without kept output are left out.
        """
        found: list[StreamOutput] = []
        room = OUTPUT_BYTES
        # Each time another stream has the room first: one that never ends must not keep it.
        first = request.ask % max(1, len(request.places))
        for local_rank, stream, position in request.places[first:] + request.places[:first]:
            kept = self._kept.get(((request.round_number, local_rank), stream))
            if kept is None:
                continue
            begin = kept.newest_at(request.newest) if position < 0 else position
            newest = kept.after(begin, room, unfinished=request.unfinished)
            lines = tuple((now - part.at, part.data) for part in newest.lines)
            room = max(0, room - sum(len(data) for _, data in lines))
            rest = newest.next, newest.left_out, newest.has_more
            found.append(StreamOutput(local_rank, stream, lines, *rest))
        return OutputIs(request.ask, tuple(found))
