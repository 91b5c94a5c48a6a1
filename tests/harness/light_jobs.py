"""Many jobs of one node each at a real coordinator, all in one thread of the test: sessions without
agents and workers, which answer all that a person can ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Self

from tests.harness.limits import patience

from rallypoint.coordinator.client.token import parse_token
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.core import messages as m
from rallypoint.core.model import Candidate, SharedSettings, Stamp
from rallypoint.core.watch.collection_messages import Collect, Collected, CollectMore, WorkerAnswer
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.watch.questions import Subject
from rallypoint.wire.address import Address

LEASE_S, LIMIT_S = 3600.0, 60.0
NODE = "node-0"
STUCK = "stuck"
"""The workers of a job whose name begins so never stop."""
STACK = "Thread 0x1 (most recent call first):\n" + "".join(
    f'  File "/srv/{"a-long-folder/" * 20}train.py", line {line} in f{line}\n' for line in range(30)
)
LINES = "".join(f"step {step}\n" for step in range(40))


class LightNode:
    """The only node of a job, with one worker that does not exist."""

    def __init__(self, job: str, connection: ClientConnection) -> None:
        self._connection, self._sent, self._seq = connection, 0, 0
        self._stops = not job.startswith(STUCK)
        self._collects: dict[int, Collect] = {}
        self.runs: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        settings = SharedSettings(job, 1, 1, lease_s=LEASE_S, stop_patience_s=LEASE_S)
        connection.listen(self._hear)
        connection.send(m.Attach(NODE, "host", f"{job}-1", 1, settings))

    def _report(self, report: m.Report) -> None:
        self._sent += 1
        self._connection.send(m.Numbered(self._sent, report))

    def _join(self) -> None:
        self._seq += 1
        self._report(m.Join(self._seq, Candidate(1, "default", "127.0.0.1", 29500)))

    def _hear(self, message: m.ToAgent) -> None:
        match message:
            case m.Attached():
                self._join()
            case m.StopNow() if self._stops:
                self._join()
            case m.Assigned(stamp):
                self._run(stamp)
            case m.CheckpointWanted(stamp, number):
                self._report(m.CheckpointAnswered(stamp, number, listens=True))
            case m.DrainWanted(_, why):
                self._report(m.Drain(why, 15))
            case m.LeaveNow() | m.Ended():
                self._report(m.Leave())
            case Collect(number):
                self._collects[number] = message
                self._connection.send(Collected(number))
            case CollectMore(number, is_wanted=True):
                self._connection.send(self._collected(self._collects.pop(number)))

    def _run(self, stamp: Stamp) -> None:
        """Its worker runs."""
        phases = NodeProgress(stamp, 60.0, 0.1, 0.2, 1.0, 2.0)
        self._connection.send(m.Heartbeat(1, progress=phases))
        if not self.runs.done():
            self.runs.set_result(None)

    def _collected(self, wanted: Collect) -> Collected:
        lines = wanted.subject is Subject.LOGS
        told = WorkerAnswer(0, LINES, 2, 1.0) if lines else WorkerAnswer(0, STACK)
        return Collected(wanted.number, 0, (told,), is_last=True)


class LightJobs:
    """They run when the context has been entered, and are gone when it is left."""

    def __init__(self, port: int, token: str, names: Sequence[str]) -> None:
        self._address = Address("127.0.0.1", port)
        self._token, self._names = parse_token(token, "the test's"), names
        self._connections: list[ClientConnection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: object) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)  # type: ignore[arg-type]
        done.result(patience(LIMIT_S))

    async def _begin(self) -> None:
        for name in self._names:
            secret = self._token.for_job(name)
            connection = await dial([self._address], name, secret)
            self._connections.append(connection)
            await LightNode(name, connection).runs

    async def _end(self) -> None:
        for connection in self._connections:
            connection.close()
        await asyncio.gather(*(connection.lost for connection in self._connections))
