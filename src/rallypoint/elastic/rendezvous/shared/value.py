"""One value in a shared store, changed by compare and swap, with retries.

A write that lost the race is discarded and its change applied to the fresh state, after a random
pause that grows. Without it a thousand nodes that start at once would keep each other from writing.
A write whose outcome is unknown (the connection broke) is settled by reading: each write has a
random name.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from rallypoint.core.events import Effect
from rallypoint.core.model import NodeRef, SharedSettings
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.rendezvous.shared.backend_thread import BackendThread
from rallypoint.elastic.rendezvous.shared.member import Outlook, Outside, SharedMember
from rallypoint.elastic.rendezvous.shared.round import SharedState
from rallypoint.errors import RendezvousConnectionError, RendezvousError
from rallypoint.register.contract import Token
from rallypoint.store.backoff import uniform

FIRST_BACKOFF_S = 0.005
LONGEST_BACKOFF_S = 1.0
TURN_S = 0.1
"""The time, in seconds, that the node whose turn it is has to process join requests.

After it, other nodes process them too."""
GAP_S = 1.0
"""The time, in seconds, after which a join request that has a number, but was not written, is
skipped."""
DELETED_AT_ONCE = 64
"""The most join requests that one call deletes, because the heartbeat waits for the call."""
VOID_MAX = 1024
"""The most join requests, the newest ones, that a write of the state marks for deletion."""

StateChange = Callable[[SharedState, str], list[Effect] | None]
"""A function that changes the state for a writer, and returns the effects; None: no change."""
Condition = Callable[[], Awaitable[bool]]


class SharedValue:
    """The job's state as of this node's last read or write, and the ways to read and change it.

    For the thread of one loop.

    `on_read` is called with the state after every successful read and write; with None if the
    store has no state.
    """

    def __init__(
        self,
        settings: SharedSettings,
        backend: BackendThread,
        on_read: Callable[[SharedState | None], None],
    ) -> None:
        self._settings, self._backend, self._on_read = settings, backend, on_read
        self.state: SharedState | None = None
        """The state, for reading only; None: none is known, or the store has none."""
        self.token: Token | None = None
        self._writing = asyncio.Lock()
        self._gap: tuple[int, float] | None = None
        self._read_requests: deque[int] = deque()
        """The numbers of join requests that this node has processed, and that can be deleted."""

    @property
    def requests_taken(self) -> int:
        """The number of the last join request that was processed."""
        return self.state.taken if self.state is not None else 0

    async def load(self) -> None:
        """Read the state. Raises RendezvousConnectionError and RendezvousStateError."""
        found = await self._backend.get_state()
        if found is not None:
            self._adopt(*found)
        else:
            self._forget()

    async def update(
        self, change: StateChange, still: Condition | None = None, own_request: int = 0
    ) -> list[Effect]:
        """Apply a change to the newest state and store the result, until a write succeeds.

        Pending join requests are processed too. Returns the effects of the change; an empty list if
        there was nothing to be changed. `still` is checked before every try; the call ends without
        a change when it is false.
        `own_request` is the number of the join request that this node waits for, if any. Raises
        RendezvousConnectionError and RendezvousStateError; the outcome is then unknown.
        """
        backoff_s = FIRST_BACKOFF_S
        async with self._writing:
            while still is None or await still():
                first, requests = await self._new_requests(own_request)
                shared, writer, token = self._fresh(own_request), secrets.token_hex(6), self.token
                # Another state may have been read meanwhile, in which some of them are taken in.
                requests = requests[shared.taken - first :] if shared.taken >= first else []
                before = shared.taken if self.state is not None else 0
                taken = shared_round.take_join_requests(
                    shared, requests, writer, skip_gap=self._gap_is_old(requests, shared)
                )
                effects = change(shared, writer)
                if effects is None and not taken:
                    return []
                if await self._store(shared, writer, token):
                    self._note_read(before, shared.taken)
                    return effects or []
                await asyncio.sleep(uniform(0, backoff_s))
                backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
                await self.load()
        return []

    async def join_by_request(
        self, request: bytes, lease_s: float, wait_for_change: Callable[[float], Awaitable[None]]
    ) -> None:
        """Write a join request, and return when it was processed, after `lease_s` in any case.

        The node whose request is the first unprocessed one processes all requests. The others wait
        for that, and after a while process them too. Raises as `load` does.
        """
        assert self._backend.join_requests is not None
        number = await self._backend.call(self._backend.join_requests.post_join_request, request)
        await self.load()
        loop = asyncio.get_running_loop()
        lost_at = loop.time() + lease_s  # with the store, say: then another one is to be written
        while self.requests_taken < number and loop.time() < lost_at:
            if self.requests_taken + 1 < number:
                await wait_for_change(uniform(0.5, 1) * TURN_S)
                if self.requests_taken >= number:
                    return
            await self.update(lambda _shared, _writer: None, own_request=number)
            if self.requests_taken < number:  # an earlier join request is still being written
                await asyncio.sleep(uniform(0.5, 1) * TURN_S)
                await self.load()

    async def delete_read_requests(self) -> None:
        """Delete some of the join requests that this node has processed, if the backend can.

        Raises as `load` does.
        """
        numbers = list(islice(self._read_requests, DELETED_AT_ONCE))
        if numbers and (forgetting := self._backend.forgetting):
            await self._backend.call(forgetting.delete_join_requests, numbers)
            for _ in numbers:
                self._read_requests.popleft()

    async def _new_requests(self, own_request: int) -> tuple[int, list[bytes | None]]:
        backend = self._backend.join_requests
        if backend is None or (self.state is None and not own_request):
            return 0, []
        taken = self.state.taken if self.state is not None else own_request - 1
        return taken, await self._backend.call(backend.join_requests_after, taken)

    def _gap_is_old(self, requests: list[bytes | None], shared: SharedState) -> bool:
        """Return whether the first missing one of `requests` has been missing for over a second.

        Its writer is slow, or was killed.
        """
        if None not in requests:
            self._gap = None
            return False
        number, now = (
            shared.taken + requests.index(None) + 1,
            asyncio.get_running_loop().time(),
        )
        if self._gap is None or self._gap[0] != number:
            self._gap = (number, now)
        return now - self._gap[1] > GAP_S

    def _note_read(self, before: int, last: int) -> None:
        if self._backend.forgetting:
            self._read_requests.extend(range(max(before, last - VOID_MAX) + 1, last + 1))

    def _fresh(self, own_request: int) -> SharedState:
        if self.state is not None:
            return shared_round.decode(shared_round.encode(self.state))
        return shared_round.new_state(self._settings, secrets.token_hex(6), "", own_request)

    async def _store(self, shared: SharedState, writer: str, token: Token | None) -> bool:
        value = shared_round.encode(shared)
        try:
            result = await self._backend.set_state(value, token)
        except RendezvousConnectionError:
            await self.load()  # settles whether it was stored; raises again if it can't be read
            return self.state is not None and self.state.writer == writer
        if result is None:
            await self.load()  # nothing is there, or the backend does not say what is
        else:
            self._adopt(*result[:2])
        return self.state is not None and self.state.writer == writer

    def _adopt(self, state: bytes, token: Token) -> None:
        if self.state is None or token != self.token:
            self.state, self.token = shared_round.decode(state), token
        self._on_read(self.state)

    def _forget(self) -> None:
        """Note that the store has no state: no node has joined yet, or the store has lost it."""
        self.state = self.token = None
        self._on_read(self.state)


class SharedView:
    """One node's view of the job's state, and of its place in the job.

    For the thread of one loop.
    """

    def __init__(
        self, settings: SharedSettings, ref: NodeRef, on_change: Callable[[], None]
    ) -> None:
        """Make a view without a state yet.

        `on_change` is called when this node's place in the job has changed, or the store has
        failed.
        """
        self._settings, self._ref, self._on_change = settings, ref, on_change
        self.member = self._new_member()
        self.outlook: Outlook = Outside()
        """The place of this node in the job at the last read of the state."""
        self.trouble: RendezvousError | None = None
        """The error of the last use of the store; None: it succeeded."""
        self._waiting: set[asyncio.Future[None]] = set()

    def read(self, state: SharedState | None) -> None:
        """Note the state that was read; None if there is none, or the store has lost it."""
        self.trouble = None
        if state is not None:
            self.member.observe(state, asyncio.get_running_loop().time())
        elif self.outlook != Outside():
            self.member = self._new_member()
        outlook = self.member.outlook()
        if outlook != self.outlook:
            self.outlook = outlook
            self._wake()

    def failed(self, error: RendezvousError) -> None:
        """Note that the store could not be used; a new error ends calls of `wait_for_change`."""
        if self.trouble is None or str(self.trouble) != str(error):
            self.trouble = error
            self._wake()

    async def wait_for_change(self, timeout_s: float | None) -> None:
        """Return when this node's place has changed or the store has failed, or after `timeout_s`.

        None is no time limit.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)

    def _new_member(self) -> SharedMember:
        return SharedMember(self._ref, self._settings.heartbeat_s, self._settings.lease_s)

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._on_change()
