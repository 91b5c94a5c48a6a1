"""The node that hosts a job waits at its end for the others, but not for ever (R5, A5)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.harness.cluster import LIMIT_S, AgentProcess, Cluster
from tests.harness.sessions import CANDIDATE

from rallypoint.cli.options import parse_run
from rallypoint.coordinator.client.session import CoordinatorSession
from rallypoint.coordinator.client.token import parse_token
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.core import messages as m
from rallypoint.core.node.events import SessionOpened
from rallypoint.core.session import AgentEnd, Identity, OrderPushed, SessionNews
from rallypoint.wire.address import Address


class Squatter:
    """A node that takes part, succeeds, and then sends heartbeats for ever."""

    session: CoordinatorSession

    def claim(self) -> m.Claim:
        return m.Claim()

    def told(self, news: SessionNews) -> None:
        match news:
            case SessionOpened():
                self.session.report(m.Join(1, CANDIDATE))
            case OrderPushed(m.Assigned(stamp)):
                self.session.report(m.Enrolled(stamp))
            case OrderPushed(m.StartNow(stamp)):
                self.session.report(m.Succeeded(stamp))


@contextmanager
def squatting(host: AgentProcess, port: int, token: str) -> Iterator[None]:
    """A second node, as long as this lasts."""
    settings = parse_run(host.argv[4:]).rendezvous.shared()
    secret = parse_token(token, "the test").for_job(settings.run_id)
    loop = asyncio.new_event_loop()

    async def dial_host() -> ClientConnection:
        return await dial([Address("127.0.0.1", port)], settings.run_id, secret)

    async def begin() -> CoordinatorSession:
        node = Squatter()
        end = AgentEnd(Identity("squatter", "host", "life"), settings)
        node.session = CoordinatorSession(end, dial_host, node)
        node.session.open(await dial_host())
        return node.session

    async def end(session: CoordinatorSession) -> None:
        session.abort()
        await asyncio.sleep(0.01)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        session = asyncio.run_coroutine_threadsafe(begin(), loop).result(LIMIT_S)
        yield
        asyncio.run_coroutine_threadsafe(end(session), loop).result(LIMIT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("interrupts", [True, False])
def test_A5_a_node_that_never_leaves_holds_the_host_for_its_lease_or_until_ctrl_c(
    cluster: Cluster, interrupts: bool
) -> None:
    lease_s = 600 if interrupts else 2
    cluster.options |= {"nnodes": 2, "lease": lease_s, "restart_grace": 1}
    token = cluster.make_token()
    a = cluster.agent("a", hosts=True)
    a.wait_event("waiting", "1 of 2 joined")
    with squatting(a, cluster.port, token):
        cluster.wait_workers(1)
        cluster.order("sys.exit(0)")
        a.wait_event("telling", f"{lease_s + 1} s more at most; Ctrl-C ends the wait")
        assert "which hosts it, waits for squatter to leave" in a.said
        if interrupts:
            a.signal(signal.SIGINT)
        assert a.wait_exit() == 0
    assert a.verdict["outcome"] == "succeeded"
    names = [event.name for event in a.events]
    assert names[names.index("verdict") :] == ["verdict", "telling", *["signal"] * interrupts]
