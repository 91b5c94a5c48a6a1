"""`next_rendezvous` ends with its join timeout, whatever the backend does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.harness.bare_backend import Bare, members
from tests.harness.dynamic_node import quick_node
from tests.harness.one_agent import eventually

from rallypoint.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from rallypoint.errors import RendezvousTimeoutError
from rallypoint.register.contract import RendezvousBackend, Token


class Gated(Bare):
    """A subclass may hold up calls until the test is over."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        """Closed: calls that a subclass holds up do not return."""

    @property
    def name(self) -> str:
        return "mine"


class SaysNothing(Gated):
    """As torch's own test backend does: it stores, and returns None."""

    def set_state(self, state: bytes, token: Token | None = None) -> None:
        super().set_state(state, token)


class StoresNothing(Gated):
    def set_state(self, state: bytes, token: Token | None = None) -> None:
        return None


class NeverReads(Gated):
    def get_state(self) -> tuple[bytes, Token] | None:
        self.gate.wait()
        return super().get_state()


class WritesLate(Gated):
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        self.gate.wait()
        return super().set_state(state, token)


@pytest.fixture
def opened() -> Iterator[list[Gated]]:
    """Backends whose gates are opened in the end, so that no thread remains."""
    backends: list[Gated] = []
    yield backends
    for backend in backends:
        backend.gate.set()


def node(backend: RendezvousBackend, nodes: int, join_s: float) -> DynamicRendezvousHandler:
    return quick_node(backend, nodes, nodes, join=join_s, last_call=0.1, close=0.3)


def test_F5_a_backend_that_answers_none_is_read_back() -> None:
    backend = SaysNothing()
    handlers = [node(backend, 2, join_s=60) for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        worlds = list(threads.map(lambda h: h.next_rendezvous(), handlers))
    assert sorted(world.rank for world in worlds) == [0, 1]
    for handler in handlers:
        assert handler.shutdown()


@pytest.mark.parametrize("kind", [StoresNothing, NeverReads, WritesLate])
def test_R3_a_join_that_the_backend_does_not_take_ends_with_its_timeout(
    opened: list[Gated], kind: type[Gated]
) -> None:
    backend = kind()
    opened.append(backend)
    handler = node(backend, 1, join_s=0.3)
    with pytest.raises(RendezvousTimeoutError, match="'mine' has carried out no request"):
        handler.next_rendezvous()
    with pytest.raises(RendezvousTimeoutError, match="'mine' has carried out no request"):
        handler.set_closed()
    assert not handler.shutdown()


def test_R3_a_join_that_is_taken_after_its_timeout_leaves_no_member_behind(
    opened: list[Gated],
) -> None:
    backend = WritesLate()
    opened.append(backend)
    handler = node(backend, 2, join_s=0.3)
    with pytest.raises(RendezvousTimeoutError):
        handler.next_rendezvous()
    assert backend.get_state() is None
    backend.gate.set()
    eventually(lambda: backend.get_state() is not None, "it is taken all the same")
    eventually(lambda: members(backend) == 0, "it has left")
    handler.shutdown()
