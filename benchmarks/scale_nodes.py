"""Some of the N nodes of `scale.py`, in one process: real sessions, without workers.

scale_nodes.py PORT FIRST COUNT TOTAL LEASE

Reads commands from its input, one in a line, and answers each with a line of JSON. All moments are
`time.monotonic()`. Each node has the session that an agent has (`CoordinatorSession`), with its
connection, its heartbeats and its reports; what it does in a round takes no time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time

from rallypoint.coordinator.client.session import CoordinatorSession, FromCoordinator, Hooks
from rallypoint.coordinator.client.token import parse_token
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.coordinator.listen import raise_open_files_limit
from rallypoint.core import messages as m
from rallypoint.core.model import Candidate, SharedSettings, Stamp
from rallypoint.core.node.events import LeaseEnded, SessionGivenUp, SessionOpened
from rallypoint.core.session import (
    AgentEnd,
    Identity,
    OrderPushed,
    Rejected,
    SessionNews,
    SessionRules,
)
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.wire.address import Address

RUN_ID = "scale"
AT_ONCE = 256
"""Connections that one process makes at a time: a machine has one, and this one stands for many."""
LIMIT_S = 120.0


class Watch:
    """How many of a process's nodes have come to something, and when the last one did."""

    def __init__(self) -> None:
        self.count, self.at = 0, 0.0
        self._wanted = 0
        self._reached = asyncio.Event()

    def more(self) -> None:
        """One more has."""
        self.count, self.at = self.count + 1, time.monotonic()
        if self.count >= self._wanted:
            self._reached.set()

    async def all_of(self, count: int) -> float:
        """Wait until so many have, and count from 0 again; when the last one did."""
        self._wanted = count
        if self.count < count:
            self._reached.clear()
            try:
                await asyncio.wait_for(self._reached.wait(), LIMIT_S)
            except TimeoutError:
                raise SystemExit(f"{self.count} of {count} nodes within {LIMIT_S:g} s") from None
        self.count = 0
        return self.at


class End(AgentEnd):
    """Of a session whose heartbeats keep the pace that the coordinator tells, or its own."""

    has_own_pace = False

    def next_wake_s(self, now: float) -> float:
        """As of any other session, or a second at most."""
        wake_s = super().next_wake_s(now)
        return min(wake_s, self.settings.heartbeat_s) if self.has_own_pace else wake_s


class Share:
    """The nodes of this process, and what has become of them."""

    def __init__(self) -> None:
        self.assigned, self.started = Watch(), Watch()
        self.resumed, self.ended = Watch(), Watch()
        self.dialling = asyncio.Semaphore(AT_ONCE)
        self.token = parse_token(os.environ["RALLYPOINT_TOKEN"], "benchmark").for_job(RUN_ID)
        self.trains = False
        self.disturbed = 0
        """So many are out of contact for too long, or were told to stop."""


class Node:
    """A `SessionHandler` that does what an agent without workers would do."""

    def __init__(self, share: Share, number: int, settings: SharedSettings, port: int) -> None:
        self._share, self._address = share, Address("127.0.0.1", port)
        self._seq = self._steps = 0
        self._stamp: Stamp | None = None
        self._candidate = Candidate(1, "default", f"10.{number >> 16}.{number >> 8 & 255}.1", 29500)
        name = f"node{number:05}"
        self.end = End(Identity("", name, os.urandom(8).hex()), settings, SessionRules())
        hooks = Hooks(progress=self._progress)
        self.session = CoordinatorSession(self.end, self._dial, self, hooks=hooks)

    async def begin(self) -> None:
        """Attach, and join then."""
        self.session.open(await self._dial())

    def succeed(self) -> None:
        """Its workers have ended well."""
        assert self._stamp is not None
        self.session.report(m.Finishing(self._stamp))
        self.session.report(m.Succeeded(self._stamp))

    def _progress(self, _generation: int) -> NodeProgress | None:
        """Each heartbeat tells of another step, if that is wanted."""
        if self._stamp is None or not self._share.trains:
            return None
        self._steps += 1
        phases = (60.0, 0.1, 0.1, 0.2, 3.0)
        return NodeProgress(self._stamp, *phases, self._steps, 0.1, self._steps, 0, 0.1)

    def _join(self) -> None:
        self._seq += 1
        self.session.report(m.Join(self._seq, self._candidate))

    async def _dial(self) -> ClientConnection:
        async with self._share.dialling:
            return await dial([self._address], RUN_ID, self._share.token)

    # What the session reports

    def claim(self) -> m.Claim:
        doing = m.Doing.IDLE if self._stamp is None else m.Doing.RUNNING
        return m.Claim(doing, self._stamp)

    def told(self, news: SessionNews) -> None:
        match news:
            case SessionOpened(resumed):
                if resumed:
                    self._share.resumed.more()
                else:
                    self._join()
            case SessionGivenUp() | LeaseEnded():
                self._share.disturbed += 1
            case Rejected(error):
                print(f"refused: {error}", file=sys.stderr)
            case OrderPushed(message):
                self._pushed(message)

    def _pushed(self, message: FromCoordinator) -> None:
        match message:
            case m.Assigned(stamp):
                self._stamp = stamp
                self._share.assigned.more()
                self.session.report(m.Enrolled(stamp))
            case m.StartNow():
                self._share.started.more()
            case m.StopNow():
                self._stamp = None
                self._share.disturbed += 1
                self._join()
            case m.Ended():
                self._share.ended.more()
            case m.Expelled(_, why):
                print(f"expelled: {why}", file=sys.stderr)


async def main(port: int, first: int, count: int, total: int, lease_s: float) -> None:
    """Until the input ends. A round needs all nodes but one."""
    raise_open_files_limit()
    settings = SharedSettings(
        RUN_ID, total - 1, total, lease_s=lease_s, last_call_s=600, reconnect_grace_s=0.1
    )
    share = Share()
    nodes = [Node(share, number, settings, port) for number in range(first, first + count)]
    gc.freeze()
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps("ready"), flush=True)
    while line := (await reader.readline()).decode().split():
        match line:
            case ["connect"]:
                answer: float = time.monotonic()
                await asyncio.gather(*(node.begin() for node in nodes))
            case ["assigned"]:
                answer = await share.assigned.all_of(len(nodes))
            case ["started"]:
                answer = await share.started.all_of(len(nodes))
                share.disturbed = 0
            case ["resumed"]:
                answer = await share.resumed.all_of(len(nodes))
            case ["pace", whose]:
                End.has_own_pace = whose == "own"
                answer = max(node.end.next_wake_s(time.monotonic()) for node in nodes)
            case ["train"]:
                share.trains = not share.trains
                answer = share.trains
            case ["lose"]:
                answer = time.monotonic()
                nodes.pop().session.abort()
            case ["succeed"]:
                answer = time.monotonic()
                for node in nodes:
                    node.succeed()
            case ["ended"]:
                answer = await share.ended.all_of(len(nodes))
            case ["disturbed"]:
                answer = share.disturbed
            case _:
                raise SystemExit(f"{line}: no such command")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    port, first, count, total = map(int, sys.argv[1:5])
    asyncio.run(main(port, first, count, total, float(sys.argv[5])))
