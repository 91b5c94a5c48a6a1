"""The block that must be over in time."""

from __future__ import annotations

import math
import sys
import time
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING

from rallypoint.worker.shm import shm

if TYPE_CHECKING:
    from rallypoint.elastic.timer.clients import AgentTimerClient, TimerClient


_client: TimerClient | None = None
_native: AgentTimerClient | None = None


def configure(timer_client: TimerClient | None) -> None:
    """Set the client of every `expires` that is given none."""
    global _client
    _client = timer_client


class expires(ContextDecorator):  # noqa: N801
    """Have this worker ended unless the block is over `after` seconds from its beginning.

    `scope` names the timer in what a person reads; without one it is the caller's `file#line`. Two
    blocks of one scope are one timer: nested ones need scopes of their own. `client` is used
    instead of the configured one. In a worker of `rallypoint run` neither is needed. May also
    decorate a function, and be entered again.

    Raises ValueError for what is no number of seconds, TypeError for a scope that is no text;
    RuntimeError at the beginning of the block where there is no client, and what the client raises:
    BrokenPipeError when its server can't be reached.
    """

    def __init__(
        self, after: float, scope: str | None = None, client: TimerClient | None = None
    ) -> None:
        if not math.isfinite(after):
            raise ValueError(f"after={after!r}: a timer needs a number of seconds")
        if scope is not None and not isinstance(scope, str):
            raise TypeError(f"scope={scope!r}: the name of a timer is a text")
        self._after_s, self._given = after, client
        self._scope = scope if scope is not None else _place(sys._getframe(1))
        self._used: list[TimerClient] = []

    def __enter__(self) -> None:
        client = self._given or _client
        if client is not None:
            client.acquire(self._scope, time.time() + self._after_s)
        else:
            client = _own_client()
            client.begin(self._scope, self._after_s)
        self._used.append(client)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._used.pop().release(self._scope)


def _place(frame: object) -> str:
    code, line = frame.f_code, frame.f_lineno  # type: ignore[attr-defined]
    return f"{code.co_filename}#{line}"


def _own_client() -> AgentTimerClient:
    """To the agent of this worker. Raises RuntimeError outside of rallypoint."""
    global _native
    found = shm()
    if found is None:
        raise RuntimeError(
            "there is no timer client: call rallypoint.elastic.timer.configure before using "
            "a timer, or start the program with rallypoint run"
        )
    if _native is None:
        # A program that sets no timer does not pay for it.
        from rallypoint.elastic.timer.clients import AgentTimerClient

        _native = AgentTimerClient(found.wake_up_path)
    found.offer_stacks()
    return _native
