"""The jobs that one coordinator leads by registers, each by its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from rallypoint.coordinator.leadership import (
    REAL_RUNTIME,
    VACATE_S,
    Leadership,
    Runtime,
    this_process,
)
from rallypoint.coordinator.register_record import Caller, Register
from rallypoint.coordinator.threads import CallThread
from rallypoint.core.takeover.record import Leader, Process

REMOVE_S = 60.0


class LocalLeader(Struct, frozen=True):
    """A process that leads jobs, and what it does that with."""

    process: Process
    calls: Caller
    """One for all registers: one disk is behind them."""
    runtime: Runtime = REAL_RUNTIME


def local_leader() -> LocalLeader:
    """This process. An exit waits for no daemon thread."""
    return LocalLeader(this_process(), CallThread("rallypoint-registers"))


class LedJobs:
    """For the thread of the loop."""

    def __init__(
        self,
        open_register: Callable[[str], Register],
        addresses: tuple[str, ...],
        on_wait: Callable[[str, str], None],
        local: LocalLeader | None = None,
    ) -> None:
        """`open_register` makes the register of a run id, without I/O. `addresses`: where this
        coordinator listens. `on_wait` is told, with the run id, what a job waits for. `local`: None
        for `local_leader()`."""
        self._open_register, self._on_wait = open_register, on_wait
        self._local = local or local_leader()
        self._leader = Leader(addresses, self._local.process)
        self._led: dict[str, Leadership] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def of(self, run_id: str) -> Leadership | None:
        """By which this coordinator leads the job; None: it does not."""
        return self._led.get(run_id)

    async def lead(self, run_id: str) -> Leadership:
        """Become the leader of this job, however long that takes.

        Raises what its register raises for what can't be a record.
        """
        register, local = self._open_register(run_id), self._local
        leadership = Leadership(register, self._leader, local.calls, local.runtime)
        said = ""

        def on_wait(text: str) -> None:
            nonlocal said
            if text != said:
                said = text
                self._on_wait(run_id, text)

        await leadership.claim(on_wait)
        self._led[run_id] = leadership
        return leadership

    def first(self, call: Callable[[], object]) -> None:
        """Do this, which blocks, before anything else with the registers."""
        self._local.calls.submit(call)

    def forget(self, run_id: str) -> None:
        """This coordinator leads the job no more; another one may."""
        if (leadership := self._led.pop(run_id, None)) is not None:
            self._end(leadership.vacate(VACATE_S))

    def remove(self, run_id: str) -> None:
        """Nobody needs what is known of this job."""
        if (leadership := self._led.pop(run_id, None)) is not None:
            self._end(leadership.remove(REMOVE_S))

    def _end(self, call: Coroutine[Any, Any, None]) -> None:
        ending = asyncio.get_running_loop().create_task(call)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def vacate(self) -> None:
        """Tell who would lead these jobs that they need not wait. Takes a second at most."""
        for run_id in list(self._led):
            self.forget(run_id)
        if self._ending:
            await asyncio.wait(self._ending, timeout=VACATE_S)
        self._local.calls.close()
