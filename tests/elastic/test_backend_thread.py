"""Calls of a blocking backend, as a loop waits for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rallypoint.elastic.rendezvous.shared.backend_thread import BackendThread
from rallypoint.errors import RendezvousClosedError
from rallypoint.register.contract import RendezvousBackend, Token


class SlowBackend(RendezvousBackend):
    """Reads only when it is let."""

    name = "slow"

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()

    def get_state(self) -> tuple[bytes, Token] | None:
        self.begun.set()
        self.let.wait(60)
        return None

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        return None


async def test_who_waits_for_a_call_that_never_began_learns_that_this_node_has_left() -> None:
    backend = SlowBackend()
    thread = BackendThread(backend)
    begun = asyncio.create_task(thread.get_state())
    await asyncio.to_thread(backend.begun.wait, 60)
    queued = asyncio.create_task(thread.set_state(b"", None))
    await asyncio.sleep(0)
    closing = asyncio.create_task(thread.close())
    with pytest.raises(RendezvousClosedError, match="this node has left the job"):
        await queued
    backend.let.set()
    assert await begun is None
    await closing
