"""A job of two honest nodes and a third that says what it likes, all in memory and in one thread.

The coordinator, the connections, the handshake, the frames and the rendering are the real ones. An
honest node here takes part as an agent does, and keeps what its agent would print. A `Liar` has the
job's token: it sends any message that its peer can decode, or can't.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from rallypoint.agent.environ import WorkerContext, worker_environ
from rallypoint.agent.run import JobEnd
from rallypoint.agent.status import place_text
from rallypoint.cli.render import render_event, render_event_json
from rallypoint.cli.verdict import verdict_lines, verdict_view
from rallypoint.cli.verdict_json import verdict_json
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.coordinator.connection import ClientConnection, FramedConnection, ServerConnection
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import NOTICE, EventKind, Record, ReportedBy
from rallypoint.core.model import Assignment, Candidate, SharedSettings, Stamp, Verdict
from rallypoint.core.node.events import Finish, FinishKind
from rallypoint.observe.printing import REPORT_MAX, printed
from rallypoint.observe.records import AgentEvent

RULES = SharedSettings("J", 2, 3, max_restarts=2, hang_timeout_s=5.0)
NO_BUDGET = SharedSettings("J", 2, 3, hang_timeout_s=5.0)
"""A failure ends the job, and every node tells of it."""
PRINTED_MAX = 4 * REPORT_MAX
"""Characters that an honest node may print because of one message: the report of a failure and a
few lines around it, as text and as JSON. Less than what a log of a job that goes well has."""
ENVIRONMENT_MAX = 128 * 1024
"""Bytes of one variable, says the kernel."""


class StoppedLoop:
    """A loop in which no time passes and nothing is run: a conversation needs none, and is the same
    each time. It is made once, for making a loop takes as long as several messages."""

    def __init__(self) -> None:
        self._itself: Any = self

    def time(self) -> float:
        return 1000.0

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._itself)

    def create_task(self, coro: Any, **_: Any) -> Any:
        coro.close()
        return self.create_future()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return asyncio.Handle(callback, args, self._itself, context)

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return asyncio.TimerHandle(when, callback, args, self._itself, context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def run_now(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that waits for nothing."""
        asyncio._set_running_loop(self._itself)
        try:
            coroutine.send(None)
        except StopIteration:
            return
        finally:
            asyncio._set_running_loop(None)
        raise AssertionError("it waits")


class Pipe(asyncio.Transport):
    """One direction of a connection: what is written arrives when the scene goes on."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._scene = scene
        self.far: FramedConnection | None = None
        self.is_closed = False

    def write(self, data: Any) -> None:
        if not self.is_closed and self.far is not None:
            self._scene.later(self.far.data_received, bytes(data))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self.far is not None:
                self._scene.later(self.far.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 29400)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Node:
    """One end of a connection, with an identity; `heard` is what the coordinator told it."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene, self.name = scene, name
        self.heard: list[m.ToAgent] = []
        self.wire = scene.connect()
        self.wire.listen(self._hear)
        self._reports = 0

    def _hear(self, message: m.ToAgent) -> None:
        self.heard.append(message)
        self.told(message)

    def told(self, message: m.ToAgent) -> None:
        """A message arrived."""

    def say(self, message: m.ToCoordinator) -> None:
        self.wire.send(message)

    def report(self, report: m.Report) -> None:
        self.say(m.Numbered(self.next_number(), report))

    def next_number(self) -> int:
        self._reports += 1
        return self._reports

    def attach(self, **changes: Any) -> None:
        given: dict[str, Any] = {
            "node_id": self.name,
            "host_name": "host",
            "incarnation": f"life-{self.name}",
            "generation": 1,
            "settings": self.scene.rules,
        }
        self.say(m.Attach(**(given | changes)))

    def join(self, seq: int = 1, **changes: Any) -> None:
        given: dict[str, Any] = {
            "workers": 2,
            "role": "default",
            "address": "127.0.0.1",
            "store_port": 29500,
        }
        self.report(m.Join(seq, Candidate(**(given | changes))))

    @property
    def assigned(self) -> m.Assigned | None:
        return next((x for x in reversed(self.heard) if isinstance(x, m.Assigned)), None)


class Liar(Node):
    """Says what it likes."""


class Honest(Node):
    """Takes part; what its agent prints is in `printed`."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self.printed: list[str] = []
        self.assignment: Assignment | None = None
        self.verdict: Verdict | None = None
        self._stamp: Stamp | None = None
        self.trouble = ""
        """Why it takes no further part, if no verdict said so."""
        self._seq = 1
        self.attach()
        self.join()

    def told(self, message: m.ToAgent) -> None:
        match message:
            case m.Assigned(stamp, assignment):
                self._stamp, self.assignment = stamp, assignment
                self.line(place_text(assignment, 2))
                self._start(stamp, assignment)
                self.report(m.Enrolled(stamp))
            case m.StopNow(stamp, reason):
                self.line(f"round {stamp.round} ended: {reason.text}")
                if stamp == self._stamp:
                    self.join_again()
            case m.Ended(_, verdict):
                self.verdict = verdict
                self._end(verdict)
            case m.Expelled(_, why):
                self.trouble = f"expelled: {why}"
                self.line(f"this node was expelled from the job: {why}")
            case m.Refused(text):
                self.trouble = f"refused: {text}"
            case m.CheckpointWanted(stamp, number, _, reason):
                self.line(reason)
                self.report(m.CheckpointAnswered(stamp, number, listens=False))
            case m.CollectStacks(stamp, number):
                self.report(m.StacksCollected(stamp, number, None, -1))
            case m.DrainWanted(_, why):
                self.line(f"leaving the job: {why}")

    def join_again(self, **changes: Any) -> None:
        self._seq += 1
        self.join(self._seq, **changes)

    def line(self, text: str, kind: EventKind = NOTICE) -> None:
        event = AgentEvent(kind, text, 1.7e9, self.name, 0)
        self.printed += [printed(render_event(event, show_node=True))]
        self.printed += [printed(render_event_json(event))]

    def _end(self, verdict: Verdict) -> None:
        end = JobEnd(Finish(FinishKind.VERDICT, verdict=verdict), RULES.run_id, verdict.round, 1.0)
        view = verdict_view(end)
        self.printed += [printed(*verdict_lines(view)), printed(verdict_json(view))]

    def _start(self, stamp: Stamp, assignment: Assignment) -> None:
        """As far as a process could be started with it."""
        rules = RendezvousConfig(RULES.run_id, max_restarts=self.scene.rules.max_restarts)
        config = AgentConfig(rendezvous=rules, workers=WorkerConfig(count=2))
        context = WorkerContext(0, "", stamp, assignment, config, self.name)
        for name, value in worker_environ(context, {}).items():
            said = f"{name}={value}".encode()
            assert b"\0" not in said, f"no process can be started with {said!r}"
            assert len(said) < ENVIRONMENT_MAX, f"{name} is too long for a process"

    def check(self, before: int) -> None:
        """What holds after each message of another node; `before`: lines until then."""
        fresh = self.printed[before:]
        for text in fresh:
            if text.replace("\n", "").isprintable():
                continue
            odd = {letter for letter in set(text) - {"\n"} if not _may_be_shown(letter)}
            assert not odd, f"printed {odd!r}"
        assert sum(map(len, fresh)) <= PRINTED_MAX, "one message prints too much"
        assert not self.trouble, self.trouble
        lost = self.wire.lost
        assert self.verdict or not lost.done(), lost.result()
        if self.assignment is not None:
            world = self.assignment
            assert 0 <= world.base_rank <= world.world_size - 2
            assert 0 <= world.group_rank < world.group_world_size <= RULES.max_nodes
        if self.verdict is not None:
            assert "which hosts the coordinator" not in self.verdict.text


class Scene:
    """The coordinator, two honest nodes of which the first hosts it, and whoever else comes."""

    def __init__(self, rules: SharedSettings = RULES) -> None:
        """Within a running loop."""
        self.rules = rules
        self._queue: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._connections = 0
        self.records: list[Record] = []
        self.coordinator = Coordinator([], Hosting(self._record, rules), lookup_token=None)
        self.coordinator.jobs.lives_in("life-h")
        self.servers: list[ServerConnection] = []
        """The coordinator's ends of all connections."""
        self.nodes: list[Honest] = []
        for name in ("h", "v"):
            self.nodes.append(Honest(self, name))
            self.go_on()

    def connect(self) -> ClientConnection:
        self._connections += 1
        near, far = Pipe(self), Pipe(self)
        client = ClientConnection(RULES.run_id, None)
        peer = f"127.0.0.1:{50000 + self._connections}"
        server = ServerConnection(self.coordinator, self._connections, peer)
        near.far, far.far = server, client
        self.servers.append(server)
        server.connection_made(far)
        client.connection_made(near)
        self.go_on()
        return client

    def later(self, call: Callable[..., object], *given: object) -> None:
        self._queue.append((call, given))

    def go_on(self) -> None:
        """Until nobody has anything more to say."""
        while self._queue:
            call, given = self._queue.popleft()
            call(*given)

    def said(self) -> None:
        """A message of the liar arrives, and all that follows from it."""
        before = [len(node.printed) for node in self.nodes]
        self.go_on()
        for node, lines in zip(self.nodes, before, strict=True):
            node.check(lines)
        assert not self.faults, self.faults

    @property
    def faults(self) -> list[str]:
        return [record.text for record in self.records if record.name == "fault"]

    def close(self) -> None:
        self.coordinator.close()
        self._queue.clear()

    def _record(self, run_id: str, record: Record) -> None:
        self.records.append(record)
        if record.kind.reported_by is ReportedBy.HOST and self.nodes:
            self.nodes[0].line(record.text, record.kind)


def _may_be_shown(letter: str) -> bool:
    return letter.isprintable() or letter in "\xa0\u2009\u202f\u3000"
