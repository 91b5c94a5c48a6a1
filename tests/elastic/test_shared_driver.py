"""The driver of a shared store, when the store or what is in it is not as it should be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest
from tests.harness.bare_backend import Bare
from tests.harness.limits import patience, until

from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.rendezvous.shared.backend_thread import BackendThread
from rallypoint.elastic.rendezvous.shared.driver import SharedDriver
from rallypoint.elastic.rendezvous.shared.member import InWorld, Outside
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.register.contract import MemoryRendezvousBackend, RendezvousBackend, Token

T = TypeVar("T")

LIMIT_S = patience(60.0)
"""Longer than anything that must happen takes on a busy machine."""
LEASE_S = 3.0


def settings_for(least: int, most: int) -> SharedSettings:
    return SharedSettings(
        "job",
        least,
        most,
        lease_s=LEASE_S,
        heartbeat_s=0.2,
        last_call_s=0.2,
        join_settle_s=0.0,
        min_growth_interval_s=0.0,
    )


class Node:
    """One driver over a backend."""

    def __init__(
        self, name: str, backend: RendezvousBackend, least: int = 2, most: int = 2
    ) -> None:
        self.ref = NodeRef(name, f"{name}.1")
        self.candidate = Candidate(1, "default", name, 29500)
        self.driver = SharedDriver(
            settings_for(least, most), self.ref, BackendThread(backend), lambda: None
        )

    async def join(self, timeout_s: float = LIMIT_S) -> InWorld:
        return await self.driver.join(self.candidate, timeout_s)


async def started(*nodes: Node) -> None:
    for node in nodes:
        await node.driver.start()


async def stop(*nodes: Node) -> None:
    for node in nodes:
        await node.driver.stop()


def members(backend: RendezvousBackend) -> list[str]:
    found = backend.get_state()
    return [] if found is None else list(shared_round.decode(found[0]).round.members)


class Flaky(Bare):
    """One call in `odds` fails, before or after it was done."""

    def __init__(self, memory: MemoryRendezvousBackend, odds: int, error: type[Exception]) -> None:
        super().__init__(memory)
        self.dice, self.odds, self.error, self.failures = random.Random(1), odds, error, 0

    def get_state(self) -> tuple[bytes, Token] | None:
        self.fail()
        return super().get_state()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        self.fail()
        after = super().set_state(state, token)
        self.fail()
        return after

    def fail(self) -> None:
        if not self.dice.randrange(self.odds):
            self.failures += 1
            raise self.error("the store is away")


class FlakyWithAll(Flaky):
    """Also with join requests, beats and waiting."""

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        self.fail()
        return self.memory.wait_for_change(token, timeout)

    def set_beat(self, node: str, beat: int) -> None:
        self.fail()
        self.memory.set_beat(node, beat)
        self.fail()

    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        self.fail()
        return self.memory.get_beats(nodes)

    def post_join_request(self, request: bytes) -> int:
        self.fail()
        number = self.memory.post_join_request(request)
        self.fail()
        return number

    def join_requests_after(self, number: int) -> list[bytes | None]:
        self.fail()
        return self.memory.join_requests_after(number)


async def start_in_spite(node: Node) -> None:
    """The very first read of a store must succeed: a person then learns of a wrong address."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await node.driver.start()
            except RendezvousConnectionError:
                pass


@pytest.mark.parametrize("backend", [MemoryRendezvousBackend, Bare])
async def test_F5_nodes_meet_lose_one_and_meet_again(backend: type[RendezvousBackend]) -> None:
    store = backend()
    nodes = [Node(name, store, 2, 3) for name in ("a", "b", "c")]
    await started(*nodes)
    worlds = await asyncio.gather(*(node.join() for node in nodes))
    assert [(world.rank, world.world_size) for world in worlds] == [(0, 3), (1, 3), (2, 3)]
    await nodes[0].driver.stop()  # as if it were killed: not a word
    await until(lambda: not isinstance(nodes[1].driver.view.outlook, InWorld))
    again = await asyncio.gather(*(node.join() for node in nodes[1:]))
    assert [(world.rank, world.world_size) for world in again] == [(0, 2), (1, 2)]
    assert len({world.round for world in (*worlds, *again)}) == 2
    await stop(*nodes[1:])


@pytest.mark.parametrize("error", [RendezvousConnectionError, OSError, ValueError])
@pytest.mark.parametrize("kind", [Flaky, FlakyWithAll])
async def test_F5_rounds_form_though_calls_fail_at_random(
    kind: type[Flaky], error: type[Exception]
) -> None:
    memory = MemoryRendezvousBackend()
    backends = [kind(memory, 6, error) for _ in range(3)]
    nodes = [Node(f"n{n}", backend, 3, 3) for n, backend in enumerate(backends)]
    for node in nodes:
        await start_in_spite(node)
    for _ in range(2):
        worlds = await asyncio.gather(*(node.join() for node in nodes))
        for world in worlds:
            assert world.world_size == 3
    assert sum(backend.failures for backend in backends) > 3
    await stop(*nodes)


@pytest.mark.parametrize("foreign", [b"somebody else's", b"", b"\x80\x04\x95pickle"])
async def test_F5_a_foreign_state_is_an_error_at_once_and_left_alone(foreign: bytes) -> None:
    backend = MemoryRendezvousBackend()
    backend.set_state(foreign)
    node = Node("a", backend)
    with pytest.raises(RendezvousStateError, match=r"is not Rallypoint's.*another run id"):
        await node.driver.start()
    await node.driver.stop()
    assert backend.get_state() == (foreign, 1)


@pytest.mark.parametrize("kind", [MemoryRendezvousBackend, Bare])
async def test_F5_a_state_that_is_damaged_later_ends_the_wait_and_is_left_alone(
    kind: type[RendezvousBackend],
) -> None:
    backend = kind()
    node = Node("a", backend)
    await started(node)
    joining = asyncio.create_task(node.join())
    await until(lambda: members(backend) == ["a"])
    damaged: tuple[bytes, Token, bool] | None = None
    while damaged is None or not damaged[2]:  # the node writes too
        value, token = backend.get_state() or (b"", 0)
        damaged = backend.set_state(value[:-1], token)
    with pytest.raises(RendezvousStateError, match="damaged"):
        await joining
    await stop(node)
    assert backend.get_state() == damaged[:2]


@pytest.mark.parametrize("kind", [MemoryRendezvousBackend, Bare])
async def test_F5_R3_a_join_timeout_names_who_was_missing_and_leaves_no_member_behind(
    kind: type[RendezvousBackend],
) -> None:
    backend = kind()
    alone = Node("first", backend)
    await started(alone)
    with pytest.raises(RendezvousTimeoutError, match=r"waited 1 s for 2 nodes .* and 1 came"):
        await alone.join(1.0)
    assert members(backend) == []
    other = Node("other", backend)
    await started(other)
    worlds = await asyncio.gather(alone.join(), other.join())
    assert sorted(world.rank for world in worlds) == [0, 1]
    await other.driver.stop()
    await until(lambda: not isinstance(alone.driver.view.outlook, InWorld))
    with pytest.raises(RendezvousTimeoutError, match="missing: other"):
        await alone.join(1.0)
    assert members(backend) == []
    await stop(alone)


class FailsInside(MemoryRendezvousBackend):
    """A bug of whoever wrote it: every call fails for a while, in a way that nobody expects."""

    error: type[Exception] | None = None
    calls = 0

    def get_state(self) -> tuple[bytes, Token] | None:
        self.calls += 1
        if self.error is not None:
            raise self.error("a bug")
        return super().get_state()


class FailsToWait(FailsInside):
    def get_state(self) -> tuple[bytes, Token] | None:
        self.calls += 1
        return MemoryRendezvousBackend.get_state(self)

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        if self.error is not None:
            raise self.error("a bug")
        return super().wait_for_change(token, timeout)


@pytest.mark.parametrize("error", [KeyError, TypeError, AssertionError, ZeroDivisionError])
@pytest.mark.parametrize("kind", [FailsInside, FailsToWait])
async def test_F5_W14_an_unexpected_exception_does_not_end_the_heartbeat(
    kind: type[FailsInside], error: type[Exception]
) -> None:
    backend = kind()
    one = Node("a", backend, 1, 1)
    await started(one)
    world = await one.join()
    backend.error = error
    await until(lambda: one.driver.view.trouble is not None)
    assert "a bug" in str(one.driver.view.trouble)
    before = backend.calls
    await asyncio.sleep(0.5)
    assert backend.calls - before < 100, "it hammers a store that fails"
    backend.error = None
    await until(lambda: one.driver.view.trouble is None)
    beats = backend.get_beats(["a"])
    await until(lambda: backend.get_beats(["a"]) > beats)
    assert one.driver.view.outlook == world
    await stop(one)


async def test_F5_a_store_that_lost_everything_is_joined_anew() -> None:
    """It was started again, empty: nobody is a member any more, and says so."""
    backend = Bare()
    nodes = [Node(name, backend) for name in ("a", "b")]
    await started(*nodes)
    await asyncio.gather(*(node.join() for node in nodes))
    backend.memory = MemoryRendezvousBackend()
    await until(lambda: all(node.driver.view.outlook == Outside() for node in nodes))
    worlds = await asyncio.gather(*(node.join() for node in nodes))
    assert [world.world_size for world in worlds] == [2, 2]
    await stop(*nodes)


async def test_F5_trouble_is_over_when_the_store_answers_though_nobody_has_joined() -> None:
    backend = FailsInside()
    node = Node("a", backend)
    await started(node)
    backend.error = OSError
    await until(lambda: node.driver.view.trouble is not None)
    assert isinstance(node.driver.view.trouble, RendezvousError)
    backend.error = None
    await until(lambda: node.driver.view.trouble is None)
    await stop(node)


class ForgetsBeats(MemoryRendezvousBackend):
    """It answers, but not what was asked."""

    is_broken = False

    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        return [] if self.is_broken else super().get_beats(nodes)


async def test_F5_W14_an_answer_that_makes_no_sense_does_not_end_the_heartbeat() -> None:
    backend = ForgetsBeats()
    nodes = [Node(name, backend) for name in ("a", "b")]
    await started(*nodes)
    worlds = await asyncio.gather(*(node.join() for node in nodes))
    backend.is_broken = True
    await until(lambda: all(node.driver.view.trouble is not None for node in nodes))
    backend.is_broken = False
    beats = backend.get_beats(["a", "b"])
    await until(
        lambda: all(x > y for x, y in zip(backend.get_beats(["a", "b"]), beats, strict=True))
    )
    assert [node.driver.view.outlook for node in nodes] == worlds
    await stop(*nodes)
