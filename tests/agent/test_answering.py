"""An agent that answers what a person asks of its workers, while the coordinator changes its mind.

The test is the relay: it has the other end of the agent's socket, and answers when it wants to.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from tests.harness.limits import patience
from tests.harness.node_machine import assigned, stamp
from tests.harness.relays import tail_of

from rallypoint.agent.answering import NodeAnswers
from rallypoint.agent.node_workers import RunningRound
from rallypoint.agent.worker_rounds import WorkerRounds
from rallypoint.config import OutputMode
from rallypoint.core import messages as m
from rallypoint.core.watch.collection_messages import ALL_LINES
from rallypoint.core.watch.questions import Subject
from rallypoint.observe.faults import Faults
from rallypoint.process.forks import ForkedProcess
from rallypoint.process.logs.plan import LinePrefix, Std
from rallypoint.process.logs.specs import DefaultLogsSpecs, LogsDest
from rallypoint.process.logs.worker_output import OutputSettings, WorkerOutputs
from rallypoint.process.relay.channel import Channel
from rallypoint.process.relay.client import Relay, RelaySetup
from rallypoint.process.relay.messages import AskOutput, AskTail, OutputIs, StreamOutput, TailIs
from rallypoint.process.relay.objects import StreamObjects
from rallypoint.process.relay.remembered import LastWords, StreamPiece

TURNS = 12
"""More turns of the loop than an answer takes from the relay's socket to whoever waits for it."""
FOLLOW = m.Collect(1, Subject.LOGS, follow=True)


async def some_turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def unheard(_: object) -> None:
    """Nobody wants to know."""


@contextmanager
def relay_and_its_channel() -> Iterator[tuple[Relay, Channel]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    no_process = cast(ForkedProcess, None)
    with ours, theirs:
        yield (
            Relay(no_process, ours, RelaySetup("", unheard, unheard, StreamObjects())),
            Channel(theirs),
        )


async def next_ask(channel: Channel) -> AskOutput | AskTail:
    """Waits until the agent asks the relay for what workers wrote."""
    while True:
        for request, fds in channel.receive()[0]:
            for fd in fds:
                os.close(fd)
            if isinstance(request, AskOutput | AskTail):
                return request
        await asyncio.sleep(0)


def test_a_question_to_the_relay_can_be_cancelled_until_it_is_answered() -> None:
    async def main(relay: Relay, channel: Channel, turns: int) -> None:
        asking = asyncio.create_task(relay.output(0, (), newest=0, unfinished=False))
        asked = await next_ask(channel)
        channel.report(OutputIs(asked.ask, ()))
        await some_turns(turns)
        is_under_way = asking.cancel()
        await asyncio.wait((asking,))
        assert asking.cancelled() == is_under_way, f"{turns} turns after the answer"

    for turns in range(TURNS):
        with relay_and_its_channel() as (relay, channel):
            asyncio.run(main(relay, channel, turns))


def test_what_the_relay_has_answered_counts_when_its_time_ends_in_the_same_moment() -> None:
    async def main(relay: Relay, channel: Channel) -> None:
        asking = asyncio.create_task(tail_of(relay, 0, 0, timeout_s=0.0))
        asked = await next_ask(channel)
        channel.report(TailIs(asked.ask, LastWords((StreamPiece(0, b"last words"),))))
        assert await asking == b"last words"

    with relay_and_its_channel() as (relay, channel):
        asyncio.run(main(relay, channel))


def test_V6_an_answer_that_another_coordinator_wants_anew_ends_whatever_it_waits_for() -> None:
    said: list[object] = []

    async def main(relay: Relay, channel: Channel, turns: int) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append((turns, context["message"])))
        settings = OutputSettings(OutputMode.PREFIX, LinePrefix(""), Std.NONE)
        outputs = WorkerOutputs(settings, DefaultLogsSpecs(), relay)
        for output in outputs.open_files(LogsDest(), 0, {0: 0}):
            output.close()
        workers: Any = SimpleNamespace(shm=SimpleNamespace(pids=(1,)))
        newest = RunningRound(stamp(), assigned().assignment, workers, {})
        sent: list[m.Collected] = []
        rounds = cast(WorkerRounds, SimpleNamespace(newest=newest))
        answers = NodeAnswers(rounds, outputs, sent.append, Faults(said.append))

        answers.asked(FOLLOW)
        await some_turns()
        answers.asked(m.CollectMore(1))
        asked = await next_ask(channel)
        line = StreamOutput(0, 2, ((0.0, b"a line\n"),), 7, 0, False)
        channel.report(OutputIs(asked.ask, (line,)))
        await some_turns(turns)
        answers.asked(FOLLOW)
        await some_turns()
        gc.collect()
        answers.close()
        await some_turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}, f"{turns} turns after the answer"

    for turns in range(TURNS):
        with relay_and_its_channel() as (relay, channel):
            asyncio.run(main(relay, channel, turns))
    assert said == []


def test_V6_who_follows_the_newest_lines_gets_all_of_each_later_round() -> None:
    asked: list[tuple[int, int]] = []

    async def main(relay: Relay, channel: Channel) -> None:
        settings = OutputSettings(OutputMode.PREFIX, LinePrefix(""), Std.NONE)
        outputs = WorkerOutputs(settings, DefaultLogsSpecs(), relay)
        for round_ in (0, 1):
            for output in outputs.open_files(LogsDest(), round_, {0: 0}):
                output.close()
        workers: Any = SimpleNamespace(shm=SimpleNamespace(pids=(1,)))
        rounds = SimpleNamespace(newest=RunningRound(stamp(), assigned().assignment, workers, {}))

        def send(piece: m.Collected) -> None:
            if not piece.is_last:
                answers.asked(m.CollectMore(1))

        answers = NodeAnswers(cast(WorkerRounds, rounds), outputs, send, Faults(said.append))
        answers.asked(m.Collect(1, Subject.LOGS, newest=5, follow=True))

        async def answer_next() -> None:
            ask = await next_ask(channel)
            assert isinstance(ask, AskOutput)
            asked.append((ask.round_number, ask.newest))
            channel.report(OutputIs(ask.ask, ()))

        await answer_next()
        rounds.newest = RunningRound(stamp(1), assigned(1).assignment, workers, {})
        finishing = asyncio.create_task(answers.finish())
        async with asyncio.timeout(patience(60)):
            await answer_next()
            await answer_next()
            await finishing

    said: list[object] = []
    with relay_and_its_channel() as (relay, channel):
        asyncio.run(main(relay, channel))
    assert said == []
    assert asked == [(0, 5), (0, 5), (1, ALL_LINES)]
