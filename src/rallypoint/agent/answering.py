"""The answers to people about this node's workers: their stacks, and their last output.

The coordinator asks (`core/watch/collection_messages.py`). Each answer is a task, which waits until
a piece of it is wanted, so that it never delays heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from rallypoint.agent.node_workers import RunningRound
from rallypoint.agent.worker_rounds import WorkerRounds
from rallypoint.coordinator.client.session import raise_in_loop
from rallypoint.core import limits
from rallypoint.core import messages as m
from rallypoint.core.watch.collection_messages import (
    ALL_LINES,
    PIECE_CHARACTERS,
    PIECE_TEXTS,
    WorkerAnswer,
)
from rallypoint.core.watch.questions import RankRange, Subject
from rallypoint.observe.faults import Faults
from rallypoint.process.logs.newest import OutputLines, OutputReader, ReadStart
from rallypoint.process.logs.worker_output import WorkerOutputs

DUMP_S = 2.0
"""How long workers may take to write their stacks, in seconds."""
ANSWERS_MAX = 64
WAIT_S = 120.0
"""How long an answer waits until its next piece is wanted, in seconds; then it is dropped. Answers
to people who follow the output wait for ever."""

LOOK_S = 0.25
"""The interval in seconds of looking for new output while a person follows it."""
_PIECE_BYTES = 32 * 1024

AnswerPiece = tuple[int, tuple[WorkerAnswer, ...]]
"""The number of a round, and texts of its workers: one piece of the answer to a question."""


class NodeAnswers:
    """The answers of one agent to questions about its workers, which the coordinator passes on.

    For the thread of the loop.
    """

    def __init__(
        self,
        workers: WorkerRounds,
        outputs: WorkerOutputs | None,
        send: Callable[[m.Collected], None],
        faults: Faults,
    ) -> None:
        """Make the object; no question was asked yet.

        `outputs` are the outputs of the workers; None: the workers are no processes of this agent.
        """
        self._workers, self._outputs, self._send, self._faults = workers, outputs, send, faults
        self._closing = asyncio.Event()
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._wanted: dict[int, asyncio.Event] = {}
        self._dumping = asyncio.Lock()

    def asked(self, message: m.Collecting) -> None:
        """Handle a question, the wish for the next piece of its answer, or its withdrawal.

        A question is ignored while too many others (`ANSWERS_MAX`) are being answered.
        """
        match message:
            case m.Collect(number):
                self._forget(number)
                if len(self._answers) < ANSWERS_MAX:
                    self._wanted[number] = asyncio.Event()
                    answering = asyncio.get_running_loop().create_task(self._answer(message))
                    answering.add_done_callback(raise_in_loop)
                    self._answers[number] = answering
            case m.CollectMore(number, is_wanted=True):
                if number in self._wanted:
                    self._wanted[number].set()
            case m.CollectMore(number):
                self._forget(number)

    @property
    def is_followed(self) -> bool:
        """Whether a question is being answered, such as one of a person who follows the output."""
        return bool(self._answers)

    async def finish(self) -> None:
        """Send the last output to people who follow it, and wait until all answers are complete."""
        self._closing.set()
        if self._answers:
            await asyncio.wait(self._answers.values())

    def close(self) -> None:
        """Drop all answers that are under way."""
        for number in list(self._answers):
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._wanted.pop(number, None)
        if (answering := self._answers.pop(number, None)) is not None:
            answering.cancel()

    async def _answer(self, question: m.Collect) -> None:
        number, wanted = question.number, self._wanted[question.number]
        try:
            async with aclosing(self._pieces(question)) as pieces:
                async for round_, told in pieces:
                    self._send(m.Collected(number))
                    async with asyncio.timeout(None if question.follow else WAIT_S):
                        await wanted.wait()
                    wanted.clear()
                    self._send(limits.fit(m.Collected(number, round_, told)))
        except TimeoutError:
            pass
        except Exception as error:  # of what workers have written, or of files
            self._faults.note("a question about the workers can't be answered", error)
        self._send(m.Collected(number, is_last=True))
        self._answers.pop(number, None)
        self._wanted.pop(number, None)

    async def _pieces(self, question: m.Collect) -> AsyncGenerator[AnswerPiece, None]:
        if question.subject is Subject.LOGS:
            async with aclosing(self._logs(question)) as pieces:
                async for piece in pieces:
                    yield piece
        elif question.subject is Subject.STACKS and (newest := self._workers.newest) is not None:
            async with self._dumping:
                stacks = await self._stacks(newest, question.ranks)
            # The end of a text has the main thread.
            for rank, text in stacks.items():
                told = WorkerAnswer(rank, text[-PIECE_CHARACTERS:])
                yield newest.assignment.round, (told,)

    async def _logs(self, question: m.Collect) -> AsyncGenerator[AnswerPiece, None]:
        running: RunningRound | None = None
        reader: OutputReader | None = None
        lines = question.newest
        if self._workers.newest is None:
            yield 0, ()  # It is here, and has no workers yet.
        while True:
            is_closing, newest = self._closing.is_set(), self._workers.newest
            if reader is not None and running is not None:
                async with aclosing(reader.read()) as parts:
                    async for lines_read in parts:
                        for told in _cut(lines_read):
                            yield running.assignment.round, told
            if newest is not running and newest is not None:
                running, reader = newest, self._reader(newest, question, lines)
                yield newest.assignment.round, _unread(reader, newest, question.ranks)
                lines = ALL_LINES  # Of a later round all that is kept.
                continue
            if not question.follow or is_closing:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._closing.wait()

    def _reader(
        self, running: RunningRound, question: m.Collect, lines: int
    ) -> OutputReader | None:
        if self._outputs is None:
            return None
        ranks = _meant(running, question.ranks)
        number, base = running.assignment.round, running.assignment.base_rank
        read = {
            (place.rank - base, place.stream): place.position
            for place in question.read
            if place.round == number
        }
        start, unfinished = ReadStart(lines, read), not question.follow
        return OutputReader(self._outputs, number, ranks, start, unfinished=unfinished)

    async def _stacks(self, newest: RunningRound, ranks: Sequence[RankRange]) -> dict[int, str]:
        """Return for each of these workers, by local rank, its stacks, or why there are none."""
        shm, exits = newest.workers.shm, newest.exits
        meant = _meant(newest, ranks)
        if self._workers.current is not newest.workers:
            return dict.fromkeys(meant, "it has ended")
        running = [rank for rank in meant if rank not in exits]
        try:
            found = await shm.dump_stacks(DUMP_S, running)
        except Exception as error:  # of what workers have written
            shm.faults.note("the workers' stacks can't be taken", error)
            found = {}
        ended = {rank: f"it {exits[rank].clause()}" for rank in meant if rank in exits}
        return dict.fromkeys(running, "its stacks can't be taken") | found | ended


def _meant(running: RunningRound, ranks: Sequence[RankRange]) -> list[int]:
    """Return the local ranks of the workers in these ranges of global ranks.

    Without ranges, return those of all workers.
    """
    base = running.assignment.base_rank
    return [
        local_rank
        for local_rank in range(len(running.workers.shm.pids))
        if not ranks or any(base + local_rank in wanted for wanted in ranks)
    ]


def _unread(
    reader: OutputReader | None, running: RunningRound, ranks: Sequence[RankRange]
) -> tuple[WorkerAnswer, ...]:
    """Return an answer for each stream of these workers whose output can't be read.

    Each answer says so. They are at most as many as fit into a piece.
    """
    if reader is None:
        both = [(rank, stream) for rank in _meant(running, ranks) for stream in (1, 2)]
    else:
        both = reader.unread
    told = (WorkerAnswer(rank, stream=stream, is_kept=False) for rank, stream in both)
    return tuple(told)[: limits.MAX_FAILURES]


def _cut(lines: Sequence[OutputLines]) -> list[tuple[WorkerAnswer, ...]]:
    """Divide lines of the workers' output into pieces, each small enough for one message."""
    pieces: list[list[WorkerAnswer]] = []
    size = 0
    for one in lines:
        size += len(one.data)
        if not pieces or size > _PIECE_BYTES or len(pieces[-1]) >= PIECE_TEXTS:
            pieces.append([])
            size = len(one.data)
        text = one.data.decode(errors="replace")
        pieces[-1].append(
            WorkerAnswer(
                one.local_rank, text, one.stream, one.wall_time, one.left_out, next=one.next
            )
        )
    return [tuple(piece) for piece in pieces]
