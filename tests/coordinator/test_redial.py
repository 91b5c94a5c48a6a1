"""A coordinator is found by its name at each attempt, whatever address that has by then (F6)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.harness.sessions import LIMIT_S, TOKEN, rally

from rallypoint.config import AccessConfig, Endpoint, RendezvousConfig
from rallypoint.coordinator.client.discovery import Connected, Redial, discover, embed
from rallypoint.coordinator.client.endpoint import NotYet, Resolved
from rallypoint.coordinator.client.token import JobToken
from rallypoint.coordinator.connection import dial
from rallypoint.core.model import SharedSettings
from rallypoint.errors import (
    ForeignPeerError,
    RendezvousConnectionError,
    RendezvousRefusedError,
    RendezvousTimeoutError,
)
from rallypoint.wire.address import Address

RULES = SharedSettings("job", 1, 2, reconnect_grace_s=30.0)
DIAL = partial(dial, run_id="job", token=TOKEN)
HOST, ELSEWHERE = "127.0.0.1", "127.0.0.77"


class Names:
    """What the one name means, and how often that was asked."""

    def __init__(self, *hosts: str, port: int) -> None:
        self.hosts, self.port, self.asked = hosts, port, 0
        self.endpoint = Endpoint("job-worker-0.job", port)
        self._asking = asyncio.Event()

    async def wait_asked(self, times: int) -> None:
        for _ in range(times):
            self._asking.clear()
            await self._asking.wait()

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(Address(host, self.port) for host in self.hosts)

    async def look_up(self, endpoint: Endpoint) -> Resolved | NotYet:
        assert endpoint == self.endpoint
        self.asked += 1
        self._asking.set()
        return Resolved(self.addresses) if self.hosts else NotYet("it does not resolve yet")

    def redial(self) -> Redial:
        return Redial(self.endpoint, self.addresses, DIAL, self.look_up)


@asynccontextmanager
async def names_of(*hosts: str) -> AsyncIterator[Names]:
    """The name means these hosts, of which the first has a coordinator."""
    async with rally(RULES) as place:
        yield Names(*hosts, port=place.port)


async def test_F6_a_connection_that_broke_comes_back_without_asking_for_the_name() -> None:
    async with names_of(HOST) as names:
        (await names.redial()()).abort()
        assert names.asked == 0, "a name server may be cut off as well"


async def test_F6_a_coordinator_that_moved_is_found_by_its_name() -> None:
    async with names_of(ELSEWHERE) as names:
        redial = names.redial()
        with pytest.raises(RendezvousRefusedError):
            await redial()
        names.hosts = ()
        with pytest.raises(RendezvousConnectionError, match="does not resolve yet") as caught:
            await redial()
        assert not isinstance(caught.value, RendezvousRefusedError), "this is silence"
        names.hosts = (HOST,)
        (await redial()).abort()
        asked = names.asked
        (await redial()).abort()
        assert names.asked == asked, "the new address is known now"


async def test_F6_a_name_server_that_is_silent_keeps_no_attempt_waiting() -> None:
    async with names_of(ELSEWHERE) as names:
        answers = asyncio.Event()

        async def look_up(endpoint: Endpoint) -> Resolved | NotYet:
            await answers.wait()
            return await names.look_up(endpoint)

        redial = Redial(names.endpoint, names.addresses, DIAL, look_up, look_up_s=0.001)
        for _ in range(3):
            with pytest.raises(RendezvousRefusedError):
                await redial()
        names.hosts = (HOST,)
        answers.set()
        (await redial()).abort()


async def test_F6_a_first_refusal_at_a_new_address_is_none_by_the_old_host() -> None:
    async with names_of(ELSEWHERE) as names:
        redial = names.redial()
        with pytest.raises(RendezvousRefusedError):
            await redial()
        names.hosts = ("127.0.0.78",)
        with pytest.raises(RendezvousConnectionError, match="refused") as caught:
            await redial()
        assert not isinstance(caught.value, RendezvousRefusedError), "it may be starting"
        with pytest.raises(RendezvousRefusedError):
            await redial()


async def test_F6_all_addresses_of_a_name_are_tried_in_turn() -> None:
    async with names_of(ELSEWHERE, HOST) as names:
        (await dial(names.addresses, "job", TOKEN)).abort()
        server = socket.create_server((ELSEWHERE, names.port))

        async def hang_up() -> None:
            loop = asyncio.get_running_loop()
            server.setblocking(False)
            while True:
                (await loop.sock_accept(server))[0].close()

        task = asyncio.create_task(hang_up())
        (await dial(names.addresses, "job", TOKEN)).abort()
        with pytest.raises(ForeignPeerError):
            await dial(names.addresses[:1], "job", TOKEN)
        task.cancel()
        server.close()


def discovering(names: Names, host_timeout_s: float) -> asyncio.Task[Connected]:
    config = RendezvousConfig(
        run_id="job",
        max_nodes=2,
        endpoint=names.endpoint,
        is_host=False,
        host_timeout_s=host_timeout_s,
    )
    access = AccessConfig(token_text=JobToken("a test", TOKEN, opens_one_job=True).text())
    host = embed(RULES)
    return asyncio.create_task(discover(config, access, host, lambda _: None, names.look_up))


async def test_F6_a_node_that_starts_while_its_host_moves_finds_it() -> None:
    """The record is stale, then gone, then right: as when a pod is replaced."""
    async with names_of(ELSEWHERE) as names:
        task = discovering(names, LIMIT_S)
        for hosts in ((), (HOST,)):
            await names.wait_asked(2)
            names.hosts = hosts
        found = await task
        names.hosts = (ELSEWHERE,)
        (await found.dial()).abort()
        found.connection.abort()


async def test_F6_a_name_that_changes_all_the_time_is_not_waited_for_longer() -> None:
    async with names_of(ELSEWHERE) as names:
        task = discovering(names, 0.3)
        number = 77
        while not task.done():
            number += 1
            names.hosts = (f"127.0.0.{number}",)
            await asyncio.sleep(0.05)
        with pytest.raises(RendezvousTimeoutError, match="no node hosts"):
            task.result()
