"""Simulated registers: one value with compare-and-swap, and the thread by which a process calls it.

The value is always right; the way to it is not. A call may be slow, refused, or without an answer:
then it has been carried out, or is carried out later, perhaps when its process is long dead. What
is on its way when a process is stopped arrives all the same, or when the process runs on. What is
read may be as old as the caches of a file system let it be, and a value that nobody was told of as
stored may be lost with the power of its server.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from tests.simulator.facts import parsed
from tests.simulator.loop import ProcessLoop, Schedule

from rallypoint.core.settings import HOLD_S
from rallypoint.errors import RendezvousConnectionError

T = TypeVar("T")
DELAY_S = 0.004
LATE_S = 8.0
VERY_LATE_S = 120.0
"""So late a file server may carry out a request at the latest."""
CACHED_S = 60.0
"""So old may be what is read."""
TROUBLES = ("away", "lapse", "readonly", "stale")
"""It can't be reached; answers are lost; nothing can be stored; what was seen is read again."""
Found = tuple[bytes, int]
"""A value, and its token."""


class SimulatedRegister:
    """Of one job (`coordinator.leadership.Register`)."""

    is_sure_of_absence = True

    def __init__(
        self,
        schedule: Schedule,
        on_stored: Callable[[bytes], None],
        on_lost: Callable[[], None],
        on_put_back: Callable[[bytes | None], None] = lambda value: None,
        *,
        knows_the_dead: bool,
    ) -> None:
        """`on_stored` is called with each value that is stored, `on_lost` when the last one is
        lost, `on_put_back` when somebody else puts an earlier one there, or none.
        `knows_the_dead`: a coordinator knows which processes of its own machine are gone."""
        self._on_put_back = on_put_back
        self._history: list[bytes] = []
        """All values that were stored, the newest last."""
        self.knows_the_dead = knows_the_dead
        self.alive: set[int] = set()
        """The coordinators that may call it."""
        self.schedule, self._on_stored, self._on_lost = schedule, on_stored, on_lost
        self._entries: list[Found] = []
        """The newest two."""
        self._written = self._durable = 0
        """How many values were stored, ever; and up to which no loss of power takes them."""
        self._lost: set[int] = set()
        self._cached: dict[str, tuple[float, Found | None]] = {}
        """What each machine has seen last, and when."""
        self.slow_s: dict[str, float] = defaultdict(float)
        """Every way from a machine, or back, may take so much longer; "": from any."""
        self.troubles = {kind: Counter[str]() for kind in TROUBLES}
        """What is wrong for which machines, "" for all of them."""

    def drag(self, host: str, slow_s: float) -> None:
        """So much slower from there, or from anywhere."""
        self.slow_s[host] += slow_s

    def has(self, trouble: str, host: str) -> bool:
        """That is wrong for this machine."""
        machines = self.troubles[trouble]
        return machines[""] > 0 or machines[host] > 0

    def get_state(self) -> Found | None:
        """The value, and its token."""
        return self._entries[-1] if self._entries else None

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        """Stores it if the value has this token; that is durable then."""
        found = self.get_state()
        was_set = token == (None if found is None else found[1])
        if was_set:
            self._written += 1
            self._durable = 0 if found is None else found[1]
            self._entries = [*self._entries[-1:], (state, self._written)]
            self._history.append(state)
            self._on_stored(state)
        return None if (found := self.get_state()) is None else (*found, was_set)

    def put_back(self, share: float) -> None:
        """Somebody without a token stores an earlier value again: of all that were there the one at
        this share, from the first (0) to the last but one (1)."""
        if len(self._history) > 1:
            value = self._history[round(share * (len(self._history) - 2))]
            self._written += 1
            self._durable = self._written
            self._entries = [(value, self._written)]
            self._on_put_back(value)

    def delete(self) -> None:
        """Somebody without a token removes the value."""
        if self._history:
            self._entries.clear()
            self._on_put_back(None)

    def try_writing(self) -> None:
        """What becomes of a value that is stored now."""

    def answers(self, host: str, found: Any, *, is_stale: bool) -> Any:
        """What a machine is answered: what it has seen already, if it `is_stale`, or what was
        `found`, which it has seen then."""
        if found is not None and len(found) == 3:
            self._cached[host] = self.schedule.now_s, found[:2]
            return found
        at_s, seen = self._cached.get(host, (-CACHED_S, None))
        if is_stale and self.schedule.now_s < at_s + CACHED_S:
            return seen
        self._cached[host] = self.schedule.now_s, found
        return found

    def confirm(self, token: int) -> bool:
        """Somebody is about to be told that this was stored; whether that is still true."""
        is_there = token not in self._lost
        self._durable = max(self._durable, token) if is_there else self._durable
        return is_there

    def lose(self) -> None:
        """The newest value, unless it is durable."""
        if self._entries and self._entries[-1][1] > self._durable:
            self._lost.add(self._entries.pop()[1])
            self._cached.clear()
            self._on_lost()


class RegisterCalls:
    """Of one process (`coordinator.leadership.Caller`); knows how long its hold lasts."""

    def __init__(
        self,
        register: SimulatedRegister,
        loop: ProcessLoop,
        name: str,
        on_held: Callable[[], None],
        on_read: Callable[[bytes | None], None] = lambda data: None,
    ) -> None:
        """`on_held` is called when it is known that nobody else leads, `on_read` with each value
        that was read."""
        self._on_held, self._on_read = on_held, on_read
        self._register, self._loop = register, loop
        self._random = Random(name)
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._is_busy = False
        self._sent_at: dict[bytes, float] = {}
        """When each value was first sent."""
        self._held_until = float("-inf")
        self._claims: dict[int, Any] = {}
        """The tokens of swaps that would let this process lead, and may be carried out yet."""

    @property
    def may_claim(self) -> bool:
        """A claim that this process has sent may still succeed."""
        found = self._register.get_state()
        token = None if found is None else found[1]
        return any(claimed == token for claimed in self._claims.values())

    @property
    def is_held(self) -> bool:
        """Nobody else may lead now, by the clock of this machine."""
        return self._loop.time() < self._held_until

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """After those before it."""
        future: asyncio.Future[T] = self._loop.create_future()
        if isinstance(call, partial):
            self._sent_at.setdefault(call.args[0], self._loop.time())
            self._note_claim(call)
        self._waiting.append((call, future))
        if not self._is_busy:
            self._begin()
        return future

    def _note_claim(self, call: partial[Any]) -> None:
        state, token = call.args
        found = self._register.get_state()
        before = None if found is None else parsed(found[0]).epoch
        if parsed(state).epoch != before:
            self._claims[id(call)] = token

    def _run(self, call: Callable[[], T]) -> T:
        """Carry out this call."""
        self._claims.pop(id(call), None)
        return call()

    def _run_unheard(self, call: Callable[[], Any]) -> None:
        """Carry out this call, whose answer is lost."""
        self._run(call)

    def close(self) -> None:
        """Nothing more is called."""
        self._waiting.clear()

    def _begin(self) -> None:
        self._is_busy = bool(self._waiting)
        if not self._is_busy:
            return
        call, future = self._waiting.popleft()
        register, host, pick = self._register, self._loop.host, self._random.random
        is_away = register.has("away", host)
        is_write = isinstance(call, partial) or call == register.try_writing
        if is_away or (is_write and register.has("readonly", host)):
            delay_s = self._random.choice((0.01, 1.0, 3.0))
            self._claims.pop(id(call), None)
            self._answer(delay_s, future, None, RendezvousConnectionError("it is away"))
        elif register.has("lapse", host) and pick() < 0.6:
            self._lapse(call, future)
        else:
            register.schedule.after(self._delay_s(), partial(self._arrived, call, future))

    def _lapse(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        late_s = self._random.choice((LATE_S, LATE_S, VERY_LATE_S)) * self._random.random()
        after_s = self._random.choice((DELAY_S, DELAY_S, late_s))
        if self._random.random() < 0.7:
            self._register.schedule.after(after_s, partial(self._run_unheard, call))
        else:
            self._claims.pop(id(call), None)
        delay_s = self._random.choice((0.05, 1.0))
        self._answer(delay_s, future, None, RendezvousConnectionError("it does not answer"))

    def _delay_s(self) -> float:
        slow_s = self._register.slow_s[""] + self._register.slow_s[self._loop.host]
        return DELAY_S * self._random.random() + slow_s * self._random.random()

    def _arrived(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        if self._loop.is_stopped and self._random.random() < 0.5:
            self._loop.call_soon(self._carry_out, call, future)
        elif not self._loop.is_dead or self._random.random() < 0.5:
            self._carry_out(call, future)

    def _carry_out(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        register, host = self._register, self._loop.host
        is_stale = register.has("stale", host) and self._random.random() < 0.8
        found = self._run(call)
        if call == register.get_state or found is not None:
            found = register.answers(host, found, is_stale=is_stale)
        on_answer = None
        if call == register.get_state:
            on_answer = partial(self._on_read, None if found is None else found[0])
        self._answer(self._delay_s(), future, found, None, on_answer)

    def _answer(
        self,
        delay_s: float,
        future: asyncio.Future[Any],
        result: Any,
        error: Exception | None,
        on_answer: Callable[[], None] | None = None,
    ) -> None:
        def settle() -> None:
            answer, why = result, error
            is_stored = result is not None and len(result) == 3 and result[2]
            if is_stored and not self._register.confirm(result[1]):
                answer, why = None, RendezvousConnectionError("its server has lost power")
            self._loop.call_soon(self._settle, future, answer, why)
            if on_answer is not None:
                self._loop.call_soon(on_answer)

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
