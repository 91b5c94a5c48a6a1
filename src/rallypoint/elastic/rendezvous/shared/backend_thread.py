"""A blocking backend behind awaitable calls: one thread for operations, one for waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.register.contract import (
    BeatingBackend,
    ForgettingBackend,
    JoinRequestBackend,
    RendezvousBackend,
    Token,
    WakingBackend,
)
from rallypoint.store.backoff import uniform
from rallypoint.threads import CallThread

P = ParamSpec("P")
T = TypeVar("T")

FIRST_POLL_S = 0.01
"""The first interval of polling a backend that can't wait, in seconds; later ones are longer."""
POLL_GROWTH = 1.5
CLOSING_S = 0.3
WAIT_SLICE_S = 1.0
"""The length of one wait for a backend that can't be interrupted, in seconds."""
_LEFT = "this node has left the job"


class BackendThread:
    """The threads that call a backend's blocking methods, for one event loop.

    `close` ends the threads.
    """

    def __init__(self, backend: RendezvousBackend) -> None:
        self._backend = backend
        self.beating = backend if isinstance(backend, BeatingBackend) else None
        """The backend if it has heartbeat counters, else None.

        `join_requests` and `forgetting` are the same if it has join requests, or can delete keys.
        """
        self.join_requests = backend if isinstance(backend, JoinRequestBackend) else None
        self.forgetting = backend if isinstance(backend, ForgettingBackend) else None
        self._operations = CallThread("rallypoint-backend")
        self._waiting = CallThread("rallypoint-backend-wait")
        self._poll_s = FIRST_POLL_S
        self._polled: Token | None = None
        self._under_way: set[asyncio.Future[Any]] = set()

    async def get_state(self) -> tuple[bytes, Token] | None:
        """Return the backend's state and the state's token; None if there is no state.

        The call runs in the thread for operations. Raises as `call`, and RendezvousStateError for a
        result of another form.
        """
        found = await self.call(self._backend.get_state)
        if found is None:
            return None
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], bytes):
            raise self._broken("get_state", "None or (bytes, token)", found)
        return found

    async def set_state(
        self, state: bytes, token: Token | None
    ) -> tuple[bytes, Token, bool] | None:
        """Have the backend set the state if the present one's token is `token`; return its answer.

        That is the state, its token, and whether it was set; or None. The call runs in the thread
        for operations. Raises as `get_state`.
        """
        found = await self.call(self._backend.set_state, state, token)
        if found is None:
            return None
        if not isinstance(found, tuple) or len(found) != 3 or not isinstance(found[0], bytes):
            raise self._broken("set_state", "None or (bytes, token, was_set)", found)
        return found

    async def call(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking operation of the backend in the thread for operations; return its result.

        Raises RendezvousClosedError after `close`; errors of the backend become RendezvousErrors.
        """
        return await self._run(self._operations, partial(operation, *args, **kwargs))

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self._backend.name

    async def wait_for_change(
        self, token: Token | None, timeout_s: float, poll_max_s: float
    ) -> None:
        """Return when the backend's state may have changed, or `timeout_s` seconds have passed.

        It may return earlier.

        For a backend that can't wait this only sleeps, so that its caller polls. The pause is short
        just after a change, then grows up to `poll_max_s`, and is partly random.
        """
        if isinstance(self._backend, WakingBackend):
            is_endable = hasattr(self._backend, "stop_waiting")
            slice_s = timeout_s if is_endable else min(timeout_s, WAIT_SLICE_S)
            wait = partial(self._backend.wait_for_change, token, slice_s)
            await self._run(self._waiting, wait)
            return
        if token != self._polled:
            self._polled, self._poll_s = token, FIRST_POLL_S
        pause_s = min(self._poll_s, poll_max_s, timeout_s)
        self._poll_s = min(self._poll_s * POLL_GROWTH, poll_max_s)
        await asyncio.sleep(pause_s * uniform(0.7, 1.0))

    async def close(self) -> None:
        """Refuse further calls, and wait up to 0.3 s for those that are under way.

        The program may remove the backend's store as soon as this has returned.
        """
        self._operations.close()
        self._waiting.close()
        stop_waiting = getattr(self._backend, "stop_waiting", None)
        if stop_waiting is not None:
            stop_waiting()
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=CLOSING_S)

    async def _run(self, thread: CallThread, call: Callable[[], T]) -> T:
        if thread.is_closed:
            raise RendezvousClosedError(_LEFT)
        future = thread.submit(call)
        self._under_way.add(future)
        future.add_done_callback(self._ended)
        try:
            return await asyncio.shield(future)
        except RendezvousError:
            raise
        except asyncio.CancelledError:
            if future.cancelled():  # by `close`, before it began; else its caller was
                raise RendezvousClosedError(_LEFT) from None
            raise
        except (TypeError, AttributeError) as error:
            raise RendezvousStateError(
                f"the rendezvous backend {self._backend.name!r} failed: {error}"
            ) from error
        except Exception as error:
            raise RendezvousConnectionError(
                f"the rendezvous backend {self._backend.name!r} failed: "
                f"{str(error) or type(error).__name__}"
            ) from error

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._under_way.discard(future)
        if not future.cancelled():
            future.exception()  # its caller was cancelled meanwhile

    def _broken(self, call: str, wanted: str, found: object) -> RendezvousStateError:
        return RendezvousStateError(
            f"the rendezvous backend {self._backend.name!r} is broken: "
            f"{call} returned {str(found)[:80]!r}, not {wanted}"
        )


def silence_error(backend: str, timeout_s: float) -> RendezvousTimeoutError:
    """Return the error for a store that does not answer, or does not store what it gets."""
    return RendezvousTimeoutError(
        f"the rendezvous backend {backend!r} has carried out no request for {timeout_s:g} s: check "
        "that it can be reached, and that it stores what it gets"
    )
