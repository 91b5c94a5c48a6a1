"""What people want to know of this node's workers: their stacks, and what they wrote last.

The coordinator asks (`core/watch/collecting.py`). Each answer is a task, which waits until a piece
of it is wanted; nothing of it is in the way of heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from rallypoint.agent.node_workers import RunningRound
from rallypoint.agent.worker_rounds import WorkerRounds
from rallypoint.coordinator.client import raise_in_loop
from rallypoint.core import limits
from rallypoint.core import messages as m
from rallypoint.core.watch.collecting import PIECE_CHARACTERS, Told
from rallypoint.core.watch.questions import RankRange, Subject

DUMP_S = 2.0
"""How long workers may take to write their stacks."""
ANSWERS_MAX = 64
WAIT_S = 120.0
"""An answer of which no piece is wanted for so long is dropped: who wanted it has gone."""

Piece = tuple[int, tuple[Told, ...]]
"""Of which round."""


class NodeAnswers:
    """Of one agent. For the thread of the loop."""

    def __init__(self, workers: WorkerRounds, send: Callable[[m.Collected], None]) -> None:
        self._workers, self._send = workers, send
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._wanted: dict[int, asyncio.Event] = {}
        self._dumping = asyncio.Lock()

    def asked(self, message: m.Collecting) -> None:
        """The coordinator wants to have this, or a piece of it, or nothing more."""
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

    def close(self) -> None:
        """Answer nothing more."""
        for number in list(self._answers):
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._wanted.pop(number, None)
        if (answering := self._answers.pop(number, None)) is not None:
            answering.cancel()

    async def _answer(self, question: m.Collect) -> None:
        number, wanted = question.number, self._wanted[question.number]
        with suppress(TimeoutError):
            async for round_, told in self._pieces(question):
                self._send(m.Collected(number))
                async with asyncio.timeout(WAIT_S):
                    await wanted.wait()
                wanted.clear()
                self._send(limits.fit(m.Collected(number, round_, told)))
        self._send(m.Collected(number, is_last=True))
        self._answers.pop(number, None)
        self._wanted.pop(number, None)

    async def _pieces(self, question: m.Collect) -> AsyncIterator[Piece]:
        newest = self._workers.newest
        if question.subject is Subject.STACKS and newest is not None:
            async with self._dumping:
                stacks = await self._stacks(newest, question.ranks)
            # The end of a text has the main thread.
            for rank, text in stacks.items():
                told = Told(rank, text[-PIECE_CHARACTERS:])
                yield newest.assignment.round, (told,)

    async def _stacks(self, newest: RunningRound, ranks: Sequence[RankRange]) -> dict[int, str]:
        """By local rank."""
        shm, exits, base = newest.workers.shm, newest.exits, newest.assignment.base_rank
        meant = [rank for rank in range(len(shm.pids)) if is_meant(ranks, base + rank)]
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


def is_meant(ranks: Sequence[RankRange], rank: int) -> bool:
    """Whether these ranges, or none, have the rank."""
    return not ranks or any(rank in wanted for wanted in ranks)
