"""Simulated registers: one value with compare-and-swap, and the thread by which a process calls it.

The value is always right; the way to it is not. A call may be slow, refused, or without an answer:
then it has been carried out, or is carried out later, perhaps when its process is long dead. What
is on its way when a process is stopped arrives all the same, or when the process runs on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from rallypoint.core.takeover.leading import HOLD_S
from rallypoint.errors import RendezvousConnectionError
from rallypoint.testing.simulator.loop import ProcessLoop, Schedule

T = TypeVar("T")
DELAY_S = 0.004
LATE_S = 8.0


class SimulatedRegister:
    """Of one job (`coordinator.leadership.Register`)."""

    def __init__(
        self, schedule: Schedule, on_stored: Callable[[bytes], None], *, knows_the_dead: bool
    ) -> None:
        """`on_stored` is called with each value that is stored. `knows_the_dead`: a coordinator
        knows which processes of its own machine are gone."""
        self.knows_the_dead = knows_the_dead
        self.alive: set[int] = set()
        """The coordinators that may call it."""
        self.schedule, self._on_stored = schedule, on_stored
        self._value: bytes | None = None
        self._version = 0
        self.slow_s = 0.0
        """Every way may take so much longer."""
        self.away, self.lapsing = Counter[str](), Counter[str]()
        """For which machines it can't be reached, and for which answers are lost."""

    def hurry(self, slow_s: float) -> None:
        """So much less."""
        self.slow_s -= slow_s

    def get_state(self) -> tuple[bytes, int] | None:
        """The value, and its version."""
        return None if self._value is None else (self._value, self._version)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        """Stores it if the value has this version."""
        was_set = token == (None if self._value is None else self._version)
        if was_set:
            self._value = state
            self._version += 1
            self._on_stored(state)
        return None if self._value is None else (self._value, self._version, was_set)


class RegisterCalls:
    """Of one process (`coordinator.leadership.Caller`); knows how long its hold lasts."""

    def __init__(
        self,
        register: SimulatedRegister,
        loop: ProcessLoop,
        name: str,
        on_held: Callable[[], None],
    ) -> None:
        """`on_held` is called when it is known that nobody else leads."""
        self._on_held = on_held
        self._register, self._loop = register, loop
        self._random = Random(name)
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._is_busy = False
        self._sent_at: dict[bytes, float] = {}
        """When each value was first sent."""
        self._held_until = float("-inf")

    @property
    def is_held(self) -> bool:
        """Nobody else may lead now, by the clock of this machine."""
        return self._loop.time() < self._held_until

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """After those before it."""
        future: asyncio.Future[T] = self._loop.create_future()
        if isinstance(call, partial):
            self._sent_at.setdefault(call.args[0], self._loop.time())
        self._waiting.append((call, future))
        if not self._is_busy:
            self._begin()
        return future

    def close(self) -> None:
        """Nothing more is called."""
        self._waiting.clear()

    def _begin(self) -> None:
        self._is_busy = bool(self._waiting)
        if not self._is_busy:
            return
        call, future = self._waiting.popleft()
        register, host, pick = self._register, self._loop.host, self._random.random
        if register.away[""] or register.away[host]:
            delay_s = self._random.choice((0.01, 1.0, 3.0))
            self._answer(delay_s, future, None, RendezvousConnectionError("it is away"))
        elif (register.lapsing[""] or register.lapsing[host]) and pick() < 0.6:
            self._lapse(call, future)
        else:
            register.schedule.after(self._delay_s(), partial(self._arrived, call, future))

    def _lapse(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        after_s = self._random.choice((DELAY_S, DELAY_S, LATE_S * self._random.random()))
        if self._random.random() < 0.7:
            self._register.schedule.after(after_s, partial(_call, call))
        delay_s = self._random.choice((0.05, 1.0))
        self._answer(delay_s, future, None, RendezvousConnectionError("it does not answer"))

    def _delay_s(self) -> float:
        return DELAY_S * self._random.random() + self._register.slow_s * self._random.random()

    def _arrived(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        if self._loop.is_stopped and self._random.random() < 0.5:
            self._loop.call_soon(self._carry_out, call, future)
        elif not self._loop.is_dead or self._random.random() < 0.5:
            self._carry_out(call, future)

    def _carry_out(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._answer(self._delay_s(), future, call(), None)

    def _answer(
        self, delay_s: float, future: asyncio.Future[Any], result: Any, error: Exception | None
    ) -> None:
        def settle() -> None:
            self._loop.call_soon(self._settle, future, result, error)

        self._register.schedule.after(delay_s, settle)

    def _settle(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if error is None and result is not None:
            is_stored = len(result) == 2 or result[2]
            sent_at = self._sent_at.get(result[0]) if is_stored else None
            if sent_at is not None:
                self._held_until = max(self._held_until, sent_at + HOLD_S)
                if self.is_held:
                    self._on_held()
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        self._begin()


def _call(call: Callable[[], Any]) -> None:
    """Nobody hears what came of it."""
    call()
