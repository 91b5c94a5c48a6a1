"""How an agent tries to reach a coordinator that does not answer, or has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.harness.virtual_time import in_virtual_time
from tests.simulator.loop import ProcessLoop

from rallypoint.coordinator.client.session import (
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    CoordinatorSession,
    Hooks,
)
from rallypoint.coordinator.connection import ClientConnection, FramedConnection, dial
from rallypoint.core import messages as m
from rallypoint.core.model import SharedSettings
from rallypoint.core.session import AgentEnd, Identity, SessionNews, Suspended
from rallypoint.errors import RendezvousConnectionError, SilentPeerError
from rallypoint.wire.address import Address


class Agent:
    """Waits for its coordinator."""

    def claim(self) -> m.Claim:
        return m.Claim()

    def told(self, news: SessionNews) -> None:
        assert isinstance(news, Suspended)


class SilentHost(asyncio.Transport):
    """Accepts a connection, and says nothing."""

    is_open = True

    async def dial(
        self, loop: ProcessLoop, make: Callable[[], FramedConnection], host: str, port: int
    ) -> asyncio.Transport:
        make().connection_made(self)
        return self

    def get_extra_info(self, name: str, default: object = None) -> object:
        return "10.0.0.1", 29400

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        self.is_open = False


def test_a_host_that_accepts_a_connection_and_says_nothing_is_hung_up_on() -> None:
    """An agent that tries again and again would run out of descriptors."""
    host = SilentHost()

    async def body() -> None:
        with pytest.raises(SilentPeerError):
            await dial((Address("10.0.0.1", 29400),), "job", b"token")

    in_virtual_time(body, host)
    assert not host.is_open


def test_F2_an_agent_that_has_lost_its_coordinator_tries_more_and_more_seldom() -> None:
    attempts: list[float] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()

        async def fail() -> ClientConnection:
            attempts.append(loop.time())
            raise RendezvousConnectionError("nobody answers")

        end = AgentEnd(Identity("a", "host", "life"), SharedSettings("job", 1, 2))
        hooks = Hooks(uniform=lambda low, high: high)
        handler = Agent()
        session = CoordinatorSession(end, fail, handler, loop.time, hooks)
        connection = ClientConnection("job", b"token")
        session.open(connection)
        connection.connection_lost(None)
        await asyncio.sleep(10.0)
        session.abort()

    in_virtual_time(body)
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert pauses[:5] == pytest.approx([FIRST_RETRY_S * 2**doubled for doubled in range(5)])
    assert pauses[5:] == pytest.approx([LONGEST_RETRY_S] * len(pauses[5:]))
