"""One value in a shared store: load, change, compare and swap, and again if others were first.

A write that lost the race is thrown away and its change applied to the fresh state, after a pause
that grows and is different for every node: a thousand nodes that start at once would else only
keep each other from writing. A write whose outcome is unknown (the connection broke) is settled by
reading: each write carries a random name.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from rallypoint.core import shared_round
from rallypoint.core.events import Effect
from rallypoint.core.model import SharedSettings
from rallypoint.core.shared_round import SharedState
from rallypoint.errors import RendezvousConnectionError
from rallypoint.rendezvous.backend import Token
from rallypoint.rendezvous.backend_thread import BackendThread
from rallypoint.store.jitter import uniform

FIRST_BACKOFF_S = 0.005
LONGEST_BACKOFF_S = 1.0
GAP_S = 1.0
"""A letter that is announced but not written for so long is given up."""

Change = Callable[[SharedState, str], list[Effect] | None]
"""Changes the state under a writer's name; None: nothing to be done."""
Condition = Callable[[], Awaitable[bool]]


class SharedValue:
    """The state as this node last saw it. For the thread of one loop.

    `on_read` is called after every read and write that succeeded.
    """

    def __init__(
        self, settings: SharedSettings, backend: BackendThread, on_read: Callable[[], None]
    ) -> None:
        self._settings, self._backend, self._on_read = settings, backend, on_read
        self.state: SharedState | None = None
        """Nobody changes it; None: there is none."""
        self.token: Token | None = None
        self._writing = asyncio.Lock()
        self._gap: tuple[int, float] | None = None

    @property
    def letters_taken(self) -> int:
        """The number of the last letter that somebody has taken in."""
        return self.state.letters if self.state is not None else 0

    async def load(self) -> None:
        """Read it. Raises RendezvousConnectionError and RendezvousStateError."""
        found = await self._backend.get_state()
        if found is not None:
            self._adopt(*found)
        else:
            self._forget()

    async def update(self, change: Change, still: Condition | None = None) -> list[Effect]:
        """Apply a change to the state that is current when it is stored. Tries until it is.

        Nothing is done any more once `still` is not true, which is asked before every try.
        Raises RendezvousConnectionError and RendezvousStateError; the outcome is then unknown.
        """
        backoff_s = FIRST_BACKOFF_S
        async with self._writing:
            while still is None or await still():
                first, letters = await self._new_letters()
                shared, writer, token = self._fresh(), secrets.token_hex(6), self.token
                # Another state may have been read meanwhile, in which some of them are taken in.
                letters = letters[max(0, shared.letters - first) :]
                taken = shared_round.take_letters(
                    shared, letters, writer, skip_gap=self._gap_is_old(letters, shared)
                )
                effects = change(shared, writer)
                if effects is None and not taken:
                    return []
                if await self._store(shared, writer, token):
                    return effects or []
                await asyncio.sleep(uniform(0, backoff_s))
                backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
                await self.load()
        return []

    async def _new_letters(self) -> tuple[int, list[bytes | None]]:
        if not self._backend.takes_letters:
            return 0, []
        taken = self.state.letters if self.state is not None else 0
        return taken, await self._backend.letters_after(taken)

    def _gap_is_old(self, letters: list[bytes | None], shared: SharedState) -> bool:
        """A letter that is announced but not there: its writer is slow, or was killed."""
        if None not in letters:
            self._gap = None
            return False
        number, now = shared.letters + letters.index(None) + 1, asyncio.get_running_loop().time()
        if self._gap is None or self._gap[0] != number:
            self._gap = (number, now)
        return now - self._gap[1] > GAP_S

    def _fresh(self) -> SharedState:
        if self.state is not None:
            return shared_round.decode(shared_round.encode(self.state))
        return shared_round.new_state(self._settings, secrets.token_hex(6), "")

    async def _store(self, shared: SharedState, writer: str, token: Token | None) -> bool:
        value = shared_round.encode(shared)
        try:
            result = await self._backend.set_state(value, token)
        except RendezvousConnectionError:
            await self.load()  # settles whether it was stored; raises again if it can't be read
            return self.state is not None and self.state.writer == writer
        if result is None:
            self._forget()
            return False
        self._adopt(*result[:2])
        return self.state is not None and self.state.writer == writer

    def _adopt(self, state: bytes, token: Token) -> None:
        if self.state is None or token != self.token:
            self.state, self.token = shared_round.decode(state), token
        self._on_read()

    def _forget(self) -> None:
        """Nothing is there: nobody has joined yet, or the store has lost it."""
        self.state = self.token = None
        self._on_read()
