"""A register in memory that fails as a test tells it to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from tests.harness.limits import patience

from rallypoint.core.takeover.record import JobRecord, LeadRecord
from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.record import decode

T = TypeVar("T")


class FaultyRegister(MemoryRendezvousBackend):
    """All is well at first. Swaps wait until `may_write` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        """Nothing can be stored."""
        self.fails_before = self.fails_after = 0
        """So many of the next swaps fail, before or after they have stored something."""
        self.has_failed = threading.Event()
        """A swap has stored something, and has failed."""
        self.is_waiting, self.may_write = threading.Event(), threading.Event()
        self.may_write.set()
        self.on_stored: Callable[[], object] = int
        """Called in the thread of the register."""

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if not self.may_write.is_set():
            self.is_waiting.set()
        assert self.may_write.wait(patience(60))
        if self.is_away or self.fails_before:
            self.fails_before = max(0, self.fails_before - 1)
            raise RendezvousConnectionError("away")
        after = super().set_state(state, token)
        self.on_stored()
        if self.fails_after:
            self.fails_after -= 1
            self.has_failed.set()
            raise RendezvousConnectionError("no answer")
        return after

    def put(self, state: bytes) -> None:
        """As somebody who has no token of the job."""
        found = self.get_state()
        self.set_state(state, None if found is None else found[1])

    def remove_value(self) -> None:
        """Nothing is there any more."""
        self._state = None

    @property
    def data(self) -> bytes:
        """What it holds."""
        found = self.get_state()
        assert found is not None
        return found[0]

    @property
    def record(self) -> LeadRecord:
        """What whoever leads next finds."""
        return decode(self.data)

    @property
    def job(self) -> JobRecord:
        """And what that says of the job."""
        assert self.record.job is not None
        return self.record.job


class AtOnce:
    """Makes the calls of a register in the loop."""

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call())
        except RallypointError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass
