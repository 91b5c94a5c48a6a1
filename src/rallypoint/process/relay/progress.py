"""The workers' progress, read in what they write (`--progress-pattern`), in the relay's process.

The newest lines of each worker are matched every LOOK_S. What is found goes to the words of the
shared memory that are the relay's (`wire/shm_words.py`), so that it costs the agent nothing; the
wake-up pipe beside it tells the agent of the first two steps. A match that takes over MATCH_S
switches the pattern off, and the output goes on.

That a regular expression of a person's may take for ever is seen to by the kernel's timer of this
process's CPU time: Python lets signals have their turn while it matches. A thread beside this one
could do nothing: it would hold Python's lock as long as it matched, and nothing could end it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from math import inf
from types import FrameType
from typing import TypeVar

from msgspec import Struct

from rallypoint.files import open_named
from rallypoint.process.relay.drawing import WorkerKey
from rallypoint.process.relay.messages import NothingMatched, PatternOff, ReadProgress, RelayReport
from rallypoint.process.relay.newest_lines import UNMATCHED_S, NewestLines, UnmatchedNotice
from rallypoint.process.relay.pattern import PrintedProgress, ProgressPattern
from rallypoint.wire import shm_words as at
from rallypoint.wire.shm import NOTHING_REPORTED, Reported, pack_printed

T = TypeVar("T")
LOOK_S = 0.1
MATCH_S = 0.01


class _Rank(Struct):
    """The progress of one worker, and the newest lines of its streams."""

    streams: dict[int, NewestLines]
    printed: PrintedProgress


class ProgressReader:
    """The reader of the progress of all workers whose output comes through this relay.

    `report` gets messages for the user.
    """

    def __init__(
        self, report: Callable[[RelayReport], None], unmatched_s: float = UNMATCHED_S
    ) -> None:
        self._report = report
        self._pattern: ProgressPattern | None = None
        self._limit: MatchLimit | None = None
        self._memory = _Memory()
        self._ranks: dict[WorkerKey, _Rank] = {}
        self._fresh: set[WorkerKey] = set()
        self._look_s = -inf
        self._unmatched = UnmatchedNotice(unmatched_s)
        self._newest_line = ""

    def begin(self, request: ReadProgress) -> None:
        """Read the output of this round's workers, whose streams are added next.

        The pattern is that of the first request; a pattern that was switched off stays off.
        """
        if self._limit is None:
            self._pattern = ProgressPattern(os.fsdecode(request.pattern))
            self._limit = MatchLimit(MATCH_S)
        self._memory.close()
        self._memory = _Memory(request.round_number, os.fsdecode(request.shm))

    def add(self, worker: WorkerKey, fd: int, now: float) -> None:
        """Add a stream of this worker, which is read from now on.

        Nothing is added if the worker is of another round, or the pattern is off.
        """
        if self._pattern is not None and worker[0] == self._memory.round_number:
            fresh = _Rank({}, PrintedProgress(self._pattern.draws_bars))
            self._ranks.setdefault(worker, fresh).streams[fd] = NewestLines()
            self._unmatched.run(now)

    def feed(self, worker: WorkerKey, fd: int, data: bytes, now: float) -> None:
        """Keep output of this worker's stream `fd` until the next look searches it for progress."""
        rank = self._ranks.get(worker)
        if rank is not None and fd in rank.streams:
            rank.streams[fd].feed(data, now)
            self._fresh.add(worker)

    def end(self, worker: WorkerKey, fd: int, now: float) -> None:
        """Read the last lines of a stream that has ended, and forget the stream."""
        rank = self._ranks.get(worker)
        if rank is None or fd not in rank.streams:
            return
        self._look_at(worker, rank, now, is_over=True)
        del rank.streams[fd]
        if not rank.streams:
            self._ranks.pop(worker, None)
            self._fresh.discard(worker)
        if not self._ranks:
            self._unmatched.stop(now)

    def due_at(self) -> float:
        """Return when to `look` next; inf: not before more output comes."""
        return min(self._look_s if self._fresh else inf, self._unmatched.due_at())

    def look(self, now: float) -> None:
        """Read the newest lines, if it is time to.

        Also reports, when that is due, that no line has ever matched.
        """
        if self._fresh and self._look_s <= now:
            self._look_s = now + LOOK_S
            self.look_at_all(now)
        if self._unmatched.due_at() <= now:
            self._unmatched.settle()
            self._report(NothingMatched(self._newest_line))

    def look_at_all(self, now: float) -> None:
        """Search the newest lines of all workers with new output for progress now."""
        for worker in list(self._fresh):
            if (rank := self._ranks.get(worker)) is not None:
                self._look_at(worker, rank, now)

    def _look_at(
        self, worker: WorkerKey, rank: _Rank, now: float, *, is_over: bool = False
    ) -> None:
        self._fresh.discard(worker)
        # What was written last is told last.
        for stream in sorted(rank.streams.values(), key=lambda stream: stream.fed_s):
            lines = stream.take(inf if is_over else now)
            if stream.has_rest:
                self._fresh.add(worker)
            if lines:
                self._newest_line = lines[0]
                self._read(worker, rank, lines, now)

    def _read(self, worker: WorkerKey, rank: _Rank, lines: list[str], now: float) -> None:
        pattern, limit = self._pattern, self._limit
        if pattern is None or limit is None:
            return
        try:
            found = limit.run(lambda: pattern.read(lines))
        except (TooSlowError, RecursionError, MemoryError):
            self._switch_off()
            return
        before = rank.printed.progress
        progress = rank.printed.read(found, now)
        if progress == before:
            return
        self._memory.write(worker[1], progress)
        if before.changes < progress.changes <= 2:
            self._unmatched.settle()
            self._memory.notify(worker[1])

    def _switch_off(self) -> None:
        """Switch the pattern off, forget its readings, and report that.

        A rank that is no longer read must not look like a hanging one.
        """
        for worker, rank in self._ranks.items():
            if rank.printed.progress.changes:
                self._memory.write(worker[1], NOTHING_REPORTED)
        self._pattern = None
        self._ranks.clear()
        self._fresh.clear()
        self._unmatched.settle()
        self._report(PatternOff(self._newest_line))


class _Memory:
    """The shared memory of one round, to which the steps that were found in output are written.

    Errors are ignored: a worker may have broken the file, and the output continues.
    """

    def __init__(self, round_number: int = -1, path: str = "") -> None:
        self.round_number = round_number
        self._folder, self._fd = os.path.dirname(path), -1
        try:
            if path:
                self._fd = open_named(path, os.O_RDWR)
        except OSError:
            pass

    def write(self, local_rank: int, progress: Reported) -> None:
        """Write the progress of a worker to the shared memory; errors are ignored."""
        word = at.first_word(local_rank) + at.OUTPUT_STEP
        try:
            if self._fd >= 0:
                os.pwrite(self._fd, pack_printed(progress), at.WORD_BYTES * word)
        except OSError:
            pass

    def notify(self, local_rank: int) -> None:
        """Wake the agent to look at this worker's progress. Never blocks; errors are ignored."""
        try:
            fd = open_named(os.path.join(self._folder, "wake-up"), os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(fd, f"progress {local_rank}\n".encode())
        except OSError:
            pass
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the shared memory. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class TooSlowError(Exception):
    """A match of the progress pattern took longer than the limit, and was ended."""


class MatchLimit:
    """The time limit of a match.

    For the main thread of a process that uses SIGVTALRM for nothing else.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began_s, self._runs = 0.0, False
        signal.signal(signal.SIGVTALRM, self._rang)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGVTALRM})

    def run(self, function: Callable[[], T]) -> T:
        """Return the function's result.

        Raises TooSlowError when it has used the CPU for longer than the limit, and what the
        function raises.
        """
        self._began_s, self._runs = time.thread_time(), True
        signal.setitimer(signal.ITIMER_VIRTUAL, self._limit_s)
        try:
            return function()
        finally:
            self._runs = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _rang(self, _number: int, _frame: FrameType | None) -> None:
        if not self._runs:
            return
        # Some kernels charge a whole tick of 10 ms to whoever runs when it comes.
        left_s = self._limit_s - (time.thread_time() - self._began_s)
        if left_s > 0:
            signal.setitimer(signal.ITIMER_VIRTUAL, left_s)
            return
        self._runs = False
        raise TooSlowError
