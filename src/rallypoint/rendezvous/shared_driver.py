"""Drives one node's part in a job that a shared store hosts: load, step, compare and swap.

Everything is decided in `core.shared_round` and `core.shared_member`; this file reads, writes,
waits and tries again. A write that lost the race is thrown away and its event applied to the fresh
state, after a pause that grows and is different for every node: a thousand nodes that start at once
would else only keep each other from writing. A write whose outcome is unknown (the connection
broke) is settled by reading: each write carries a random name.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rallypoint.core import shared_round
from rallypoint.core.beat_watch import Suspect
from rallypoint.core.events import Effect, NodeJoined, NodeLeft, TimerEnded
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.core.round_state import Standing
from rallypoint.core.shared_member import Closed, InWorld, Outlook, Outside, Pending, SharedMember
from rallypoint.core.shared_round import SharedState
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
)
from rallypoint.rendezvous.backend import Token
from rallypoint.rendezvous.backend_thread import BackendThread
from rallypoint.rendezvous.shared_endings import closed_error, timeout_error

FIRST_BACKOFF_S = 0.005
LONGEST_BACKOFF_S = 1.0
TURN_S = 0.1
"""Whoever's turn it is to take letters in is given so long."""
GAP_S = 1.0
"""A letter that is announced but not written for so long is given up."""
LEAVE_TIMEOUT_S = 5.0
"""How long saying farewell may take after a timeout."""
POLL_PENDING_S = 0.25
POLL_ACTIVE_S = 1.0
"""At most so long between two looks at a backend that can't be waited for."""
CROWD_PAUSE_S = 0.002
CROWD_PAUSE_MAX_S = 0.25
"""Per member: nobody but the leader reads at once when something changed, since in a crowd that
gathers nearly every change is somebody else's join."""

Change = Callable[[SharedState, str], list[Effect] | None]
"""Changes the state under a writer's name; None: nothing to be done."""
Condition = Callable[[], Awaitable[bool]]

_log = logging.getLogger(__name__)


class SharedDriver:
    """For the thread of one loop. `start`, then `join` as often as needed, then `stop`."""

    def __init__(
        self,
        settings: SharedSettings,
        ref: NodeRef,
        backend: BackendThread,
        on_change: Callable[[], None],
    ) -> None:
        self._settings, self._ref, self._backend = settings, ref, backend
        self._on_change = on_change
        self._member = SharedMember(ref, settings.heartbeat_s, settings.lease_s)
        self._interval_s = self._member.interval_s
        self._token: Token | None = None
        self._shared: SharedState | None = None
        self._outlook: Outlook = Outside()
        self._trouble: RendezvousError | None = None
        self._writing = asyncio.Lock()
        self._changed: set[asyncio.Future[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._seq = self._beat = 0
        self._is_stopped = False
        self._beat_at = 0.0
        self._gap: tuple[int, float] | None = None

    @property
    def outlook(self) -> Outlook:
        """Where this node stands, as it was last read: at most a heartbeat old."""
        return self._outlook

    @property
    def trouble(self) -> RendezvousError | None:
        """Why the store could not be used lately; None: it can be."""
        return self._trouble

    async def start(self) -> None:
        """Read the state, and keep this node's part of it from now on."""
        await self._load()
        if self._backend.keeps_beats:
            await self._backend.set_beat(self._ref.node_id, self._beat)
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Stop reading and counting; others will find this node lost unless it has left."""
        self._is_stopped = True
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        self._backend.close()

    async def join(self, candidate: Candidate, timeout_s: float) -> InWorld:
        """Take part in the next round; returns when it has formed.

        Raises RendezvousTimeoutError (who was missing), RendezvousClosedError,
        RendezvousGracefulExitError (stood by until the job was over), SettingsConflictError.
        """
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await self._ask_to_join(candidate)
        stood_by = False
        while True:
            outlook = self._outlook
            match outlook:
                case InWorld():
                    return outlook
                case Closed():
                    raise closed_error(self._settings.run_id, outlook)
                case Outside() | Pending(standing=Standing.STOPPING):
                    # Removed meanwhile; or the round formed, and ended before we could look.
                    await asyncio.sleep(random.uniform(0, FIRST_BACKOFF_S))
                    await self._ask_to_join(candidate)
                    continue
                case Pending():
                    if not outlook.needed:
                        stood_by = True
                    elif stood_by:  # promoted: the time of standing by does not count
                        began_at, stood_by = loop.time(), False
            if isinstance(self._trouble, RendezvousStateError):
                raise self._trouble
            left_s = None if stood_by else began_at + timeout_s - loop.time()
            if left_s is not None and left_s <= 0:
                await self._give_up(outlook, timeout_s)
                continue
            await self.wait_for_change(left_s)

    async def update(self, change: Change, still: Condition | None = None) -> list[Effect]:
        """Apply a change to the state that is current when it is stored. Tries until it is.

        Nothing is done any more once `still` is not true, which is asked before every try.
        Raises RendezvousConnectionError and RendezvousStateError; the outcome is then unknown.
        """
        backoff_s = FIRST_BACKOFF_S
        async with self._writing:
            while still is None or await still():
                first, letters = await self._new_letters()
                shared, writer, token = self._fresh(), secrets.token_hex(6), self._token
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
                await asyncio.sleep(random.uniform(0, backoff_s))
                backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
                await self._load()
        return []

    async def leave(self) -> None:
        """Say farewell: the others need not wait for this node. The job goes on."""
        await self.update(
            self._if_member(lambda s, w: shared_round.apply(s, NodeLeft(self._ref), w))
        )

    async def close(self, why: str) -> None:
        """End the job for everybody. May be called again."""

        def change(shared: SharedState, writer: str) -> list[Effect] | None:
            if isinstance(self._member.outlook(), Closed):
                return None
            shared_round.close(shared, why, writer)
            return []

        await self.update(change)

    async def wait_for_change(self, timeout_s: float | None) -> None:
        """Return when the outlook has changed, or the store failed, or after so long."""
        future = asyncio.get_running_loop().create_future()
        self._changed.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._changed.discard(future)

    # Joining

    async def _ask_to_join(self, candidate: Candidate) -> None:
        """Calls that fail are made again, for a lease: then the others have given this node up."""
        self._seq += 1
        event = NodeJoined(self._ref, self._seq, candidate, self._settings)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._settings.lease_s
        while True:
            try:
                return await self._try_to_join(event)
            except RendezvousConnectionError:
                if self._is_stopped or loop.time() >= ends_at:
                    raise
                await asyncio.sleep(random.uniform(0.5, 1) * POLL_PENDING_S)

    async def _try_to_join(self, event: NodeJoined) -> None:
        self._raise_if_refused()
        if self._seq > 1:  # what was concluded from the counter of its earlier part is void
            await self._raise_beat()
        if self._backend.takes_letters:
            await self._join_by_letter(event)
        else:
            await self.update(lambda shared, writer: self._apply_join(shared, event, writer))
        self._raise_if_refused()

    async def _join_by_letter(self, event: NodeJoined) -> None:
        """Whoever wrote the first letter that is not taken in takes in all that are there.

        The others wait for that, and after a while help themselves.
        """
        number = await self._backend.post_letter(shared_round.encode_letter(event))
        await self._load()
        while self._letters_taken() < number:
            if self._letters_taken() + 1 < number:
                await self.wait_for_change(random.uniform(0.5, 1) * TURN_S)
                if self._letters_taken() >= number:
                    return
            await self.update(lambda _shared, _writer: None)
            if self._letters_taken() < number:  # an earlier letter is still being written
                await asyncio.sleep(random.uniform(0.5, 1) * TURN_S)
                await self._load()

    def _letters_taken(self) -> int:
        return self._shared.letters if self._shared is not None else 0

    def _apply_join(self, shared: SharedState, event: NodeJoined, writer: str) -> list[Effect]:
        if not self._backend.keeps_beats:
            shared.beats[self._ref.node_id] = self._beat
        return shared_round.apply(shared, event, writer)

    def _raise_if_refused(self) -> None:
        if self._shared is not None:
            error = shared_round.join_refused(self._shared, self._ref, self._settings)
            if error is not None:
                raise error

    async def _new_letters(self) -> tuple[int, list[bytes | None]]:
        if not self._backend.takes_letters:
            return 0, []
        taken = self._shared.letters if self._shared is not None else 0
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

    async def _give_up(self, outlook: Pending, timeout_s: float) -> None:
        """Leave, and raise; returns if the round has formed after all."""

        def change(shared: SharedState, writer: str) -> list[Effect] | None:
            if shared.round.members[self._ref.node_id].standing is Standing.RUNNING:
                return None
            return shared_round.apply(shared, NodeLeft(self._ref), writer)

        with suppress(RendezvousError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.update(self._if_member(change))
        if isinstance(self._outlook, InWorld):
            return
        raise self._trouble or timeout_error(self._settings.run_id, outlook, timeout_s)

    # Reading and writing

    def _fresh(self) -> SharedState:
        if self._shared is not None:
            return shared_round.decode(shared_round.encode(self._shared))
        return shared_round.new_state(self._settings, secrets.token_hex(6), "")

    async def _load(self) -> None:
        found = await self._backend.get_state()
        if found is not None:
            self._adopt(*found)
        else:
            self._forget()

    async def _store(self, shared: SharedState, writer: str, token: Token | None) -> bool:
        value = shared_round.encode(shared)
        try:
            result = await self._backend.set_state(value, token)
        except RendezvousConnectionError:
            await self._load()  # settles whether it was stored; raises again if it can't be read
            return self._shared is not None and self._shared.writer == writer
        if result is None:
            self._forget()
            return False
        self._adopt(*result[:2])
        return self._shared is not None and self._shared.writer == writer

    def _adopt(self, state: bytes, token: Token) -> None:
        if self._shared is not None and token == self._token:
            self._observe()
            return
        self._shared, self._token = shared_round.decode(state), token
        self._observe()

    def _forget(self) -> None:
        """Nothing is there: nobody has joined yet, or the store has lost it."""
        self._trouble = self._token = None
        if self._shared is not None:
            self._shared = None
            self._member = SharedMember(
                self._ref, self._settings.heartbeat_s, self._settings.lease_s
            )
            self._look_out()

    def _observe(self) -> None:
        assert self._shared is not None
        self._trouble = None
        self._member.observe(self._shared, asyncio.get_running_loop().time())
        self._look_out()

    def _look_out(self) -> None:
        outlook = self._member.outlook()
        if outlook != self._outlook:
            self._outlook = outlook
            self._wake()

    def _wake(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)
        self._on_change()

    # Keeping

    async def _keep(self) -> None:
        while True:
            try:
                await self._look()
            except RendezvousError as error:
                self._fail(error)
            except Exception as error:  # nothing may end the heartbeat but `stop`
                _log.exception("the rendezvous keeper failed")
                self._fail(RendezvousError(f"{type(error).__name__}: {error}"))
            await self._wait_until_due()

    def _fail(self, error: RendezvousError) -> None:
        if self._trouble is None or str(self._trouble) != str(error):
            self._trouble = error
            self._wake()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        await self._load()
        if isinstance(self._outlook, Outside | Closed):
            return
        if loop.time() - self._beat_at >= self._interval_s:
            await self._count()
            await self._watch_others()
        for duty in self._member.duties(loop.time()):
            await self._do(duty)

    async def _count(self) -> None:
        await self._raise_beat()
        if not self._backend.keeps_beats:
            await self.update(
                lambda s, w: [] if shared_round.beat(s, self._ref, self._beat, w) else None
            )
        self._beat_at = asyncio.get_running_loop().time()

    async def _raise_beat(self) -> None:
        self._beat += 1
        if self._backend.keeps_beats:
            await self._backend.set_beat(self._ref.node_id, self._beat)

    async def _watch_others(self) -> None:
        refs = self._member.watched()
        if not refs or self._shared is None:
            return
        if self._backend.keeps_beats:
            beats = await self._backend.get_beats([ref.node_id for ref in refs])
        else:
            beats = [self._shared.beats.get(ref.node_id, -1) for ref in refs]
        now = asyncio.get_running_loop().time()
        self._member.read_beats(dict(zip(refs, beats, strict=True)), now)

    async def _do(self, duty: Suspect | TimerEnded) -> None:
        match duty:
            case Suspect(ref, beat, silent_s):
                why = f"it has not counted for {silent_s:.1f} s"

                async def is_silent() -> bool:
                    if not self._backend.keeps_beats:  # `lose` compares those in the state
                        return True
                    return await self._backend.get_beats([ref.node_id]) == [beat]

                await self.update(
                    self._if_member(lambda s, w: shared_round.lose(s, ref, beat, why, w)),
                    is_silent,
                )
            case TimerEnded():
                await self.update(self._if_member(lambda s, w: shared_round.apply(s, duty, w)))

    def _if_member(self, change: Change) -> Change:
        """An event by a node that is no longer in the state is void (behaviour F5)."""

        def guarded(shared: SharedState, writer: str) -> list[Effect] | None:
            return change(shared, writer) if shared_round.is_member(shared, self._ref) else None

        return guarded

    async def _wait_until_due(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = max(self._beat_at + self._interval_s, loop.time())
        timer_at = self._member.next_due()
        if timer_at is not None:
            next_at = min(next_at, timer_at)
        pending = isinstance(self._outlook, Pending)
        if isinstance(self._outlook, Outside | Closed) or self._trouble is not None:
            next_at = loop.time() + self._interval_s
        timeout_s = max(next_at - loop.time(), 0.001)
        token = self._token
        try:
            if self._trouble is not None:
                await self._pause()
                return
            await self._backend.wait_for_change(
                token, timeout_s, POLL_PENDING_S if pending else POLL_ACTIVE_S
            )
        except RendezvousError as error:
            self._fail(error)
            await self._pause()
            return
        if pending and self._shared is not None and self._member.watched()[:1] != ():
            crowd = len(self._shared.round.members)
            await asyncio.sleep(random.uniform(0, min(CROWD_PAUSE_S * crowd, CROWD_PAUSE_MAX_S)))

    async def _pause(self) -> None:
        """Before a store that failed is asked again."""
        await asyncio.sleep(min(self._interval_s, POLL_ACTIVE_S) * random.uniform(0.5, 1))
