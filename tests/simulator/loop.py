"""Virtual time: one schedule of everything that will happen, and an event loop for each process.

A process of the simulation is an asyncio loop of its own that runs production code unchanged. All
loops share one schedule and one thread. A loop reads the clock of its machine, which may run at
another rate than true time. It can be stopped (SIGSTOP: nothing of it runs, what arrives is kept)
and killed (nothing of it ever runs again).

As in the real loop, every wake-up passes the watcher before anything that arrived is looked at,
and what has arrived is handled before timers that are due.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from enum import Enum
from typing import Any, Protocol, TypeVar

from rallypoint.coordinator.connection import FramedConnection
from rallypoint.errors import InvariantError

T = TypeVar("T")
TURNS_MAX = 10_000
"""So often a loop may run without time passing: more is a loop without end."""
RESOLUTION_S = 1e-9
UNWIND_MAX = 20
"""So many `finally` that wait for something a task may have around it."""


class Schedule:
    """What happens next, in true time: seconds since the beginning."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when_s: float, do: Callable[[], None]) -> None:
        """Do this then; what is due at the same time happens in the order of these calls."""
        self._count += 1
        now_s = self.now_s
        heapq.heappush(self._heap, (when_s if when_s > now_s else now_s, self._count, do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do this in so long."""
        self.at(self.now_s + delay_s, do)

    def step(self) -> bool:
        """Let time pass until the next thing happens, and do it; False: nothing is left."""
        if not self._heap:
            return False
        self.now_s, _, do = heapq.heappop(self._heap)
        do()
        return True


class MachineClock:
    """The clock of one machine."""

    def __init__(self, schedule: Schedule, rate: float, offset_s: float) -> None:
        self._schedule, self.rate, self._offset_s = schedule, rate, offset_s
        self._reached = offset_s

    def now(self) -> float:
        """Seconds, as this machine counts them."""
        now_s, reached_s = self._offset_s + self.rate * self._schedule.now_s, self._reached
        return now_s if now_s > reached_s else reached_s

    def reach(self, when_s: float) -> None:
        """A timer was to end then, and has: no rounding makes that too early."""
        self._reached = when_s

    def true(self, when_s: float) -> float:
        """The true time at which this machine's clock shows `when_s`."""
        return (when_s - self._offset_s) / self.rate


class Dialler(Protocol):
    """The network, as a process sees it."""

    async def dial(
        self, loop: ProcessLoop, make: Callable[[], FramedConnection], host: str, port: int
    ) -> asyncio.Transport: ...


class State(Enum):
    """Of a process."""

    RUNS = "runs"
    STOPPED = "stopped"
    DEAD = "dead"


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(
        self,
        schedule: Schedule,
        clock: MachineClock,
        network: Dialler,
        host: str,
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        """`on_crash` gets what nothing in the process has handled."""
        self._schedule, self.clock, self._network, self.host = schedule, clock, network, host
        self.time = clock.now  # type: ignore[method-assign]
        self._on_crash = on_crash
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._wakes_at = float("inf")
        self._is_running = False
        self._busy_s = 0.0
        self._state = State.RUNS
        self._on_wake: Callable[[], None] | None = None

    @property
    def true_s(self) -> float:
        """True time."""
        return self._schedule.now_s

    def watch(self, on_wake: Callable[[], None]) -> None:
        """Call this after every wake-up, before anything else."""
        self._on_wake = on_wake

    # What the simulation does to a process

    @property
    def is_dead(self) -> bool:
        """It was killed, or has exited."""
        return self._state is State.DEAD

    @property
    def is_stopped(self) -> bool:
        """Nothing of it runs now."""
        return self._state is State.STOPPED

    def stop_process(self) -> None:
        """SIGSTOP."""
        if self._state is State.RUNS:
            self._state = State.STOPPED

    def stop_amid(self, length_s: float) -> None:
        """The process is busy for so many seconds when its next timer is due. It has handled all
        that arrived before, and handles what arrives meanwhile only after that timer."""
        self._busy_s = length_s

    def continue_process(self) -> None:
        """SIGCONT."""
        if self._state is State.STOPPED:
            self._state = State.RUNS
            self._wake(self._schedule.now_s)

    def kill_process(self) -> None:
        """SIGKILL: no callback, no task and no `finally` of it has any effect from now on."""
        self._state = State.DEAD
        self._ready.clear()
        self._timers.clear()

    def discard(self) -> None:
        """At the very end: unwind what its tasks hold, with no effect."""
        self.kill_process()
        for task in asyncio.all_tasks(self):
            coroutine = task.get_coro()
            assert coroutine is not None
            for _ in range(UNWIND_MAX):
                try:
                    self.run(coroutine.close)
                    break
                except RuntimeError:
                    continue  # a `finally` waits for something

    def run(self, do: Callable[[], T]) -> T:
        """Call this as the process itself does."""
        former = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return do()
        finally:
            asyncio._set_running_loop(former)

    def _turn(self) -> None:
        if self._schedule.now_s >= self._wakes_at:
            self._wakes_at = float("inf")
        if self._state is not State.RUNS:
            return
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            self._run_what_is_due()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
        if self._timers and not self.is_dead:
            self._wake(self.clock.true(self._timers[0][0]))

    def _run_what_is_due(self) -> None:
        timers = self._timers
        for _ in range(TURNS_MAX):
            if self._on_wake is not None:
                self._on_wake()
            now = self.clock.now() + RESOLUTION_S if timers else 0.0
            while timers and timers[0][0] <= now:
                when, _, timer = heapq.heappop(timers)
                self.clock.reach(when)
                self._ready.append(timer)
                if self._busy_s:
                    self.stop_process()
                    self._schedule.after(self._busy_s, self.continue_process)
                    self._busy_s = 0.0
            if not self._ready or self._state is not State.RUNS:
                return
            ready, self._ready = self._ready, []
            for handle in ready:
                if not handle._cancelled and not self.is_dead:
                    handle._run()
        raise InvariantError("a simulated process runs without end")

    def _wake(self, at_s: float) -> None:
        if at_s < self._wakes_at and not self._is_running:
            self._wakes_at = at_s
            self._schedule.at(at_s, self._turn)

    # What the process calls

    def time(self) -> float:
        """Seconds, by the clock of its machine."""
        return self.clock.now()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._state is not State.DEAD:
            self._ready.append(handle)
            if not self._is_running:
                self._wake(self._schedule.now_s)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            self._count += 1
            heapq.heappush(self._timers, (when, self._count, handle))
            self._wake(self.clock.true(when))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, **_: object
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], FramedConnection], host: str, port: int
    ) -> tuple[asyncio.Transport, FramedConnection]:
        protocol = protocol_factory()
        transport = await self._network.dial(self, lambda: protocol, host, port)
        return transport, protocol

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.is_dead or error is None:
            return  # Tasks of a process that was killed are collected sometime.
        self._on_crash(self.host, error)


def new_loop(
    schedule: Schedule,
    clock: MachineClock,
    network: Dialler,
    host: str,
    on_crash: Callable[[str, BaseException], None],
) -> ProcessLoop:
    """As `ProcessLoop`: of an event loop's methods it has those that the product calls."""
    return ProcessLoop(schedule, clock, network, host, on_crash)  # type: ignore[abstract]


def start(loop: ProcessLoop, body: Callable[[], Awaitable[None]]) -> None:
    """Run this as the main task of a process."""

    async def main() -> None:
        await body()

    loop.run(lambda: loop.create_task(main())).add_done_callback(_raised)


def _raised(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()
