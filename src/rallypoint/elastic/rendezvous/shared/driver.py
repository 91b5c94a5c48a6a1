"""Drives one node's part in a job that a shared store hosts: joins, counts, and watches others.

Everything is decided in `round.py` and `member.py`, and stored by `value.py`; this file reads,
waits and tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from rallypoint.core.events import Effect, NodeJoined, NodeLeft, TimerEnded
from rallypoint.core.model import Candidate, EndReason, NodeRef, SharedSettings
from rallypoint.core.round_state import MemberState
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.rendezvous.shared.backend_thread import BackendThread, silence_error
from rallypoint.elastic.rendezvous.shared.member import (
    Closed,
    InWorld,
    JoinWait,
    Outlook,
    Outside,
    Pending,
    Suspect,
)
from rallypoint.elastic.rendezvous.shared.round import SharedState
from rallypoint.elastic.rendezvous.shared.value import (
    FIRST_BACKOFF_S,
    SharedValue,
    SharedView,
    StateChange,
)
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.store.backoff import uniform

LEAVE_TIMEOUT_S = 5.0
"""The time for leaving after a join timeout, in seconds, unless the join timeout is shorter."""
POLL_PENDING_S = 0.25
POLL_ACTIVE_S = 1.0
"""The longest interval, in seconds, of polling a backend that can't wait, unless this node waits
for a round."""
CROWD_PAUSE_S = 0.002
CROWD_PAUSE_MAX_S = 0.25
"""The longest random pause, in seconds, before a node that waits for a round reads a changed state.

Its limit is CROWD_PAUSE_S for each member: while many nodes gather, most changes are joins of
others."""

_log = logging.getLogger(__name__)


class SharedDriver:
    """The driver of one node's part in a job whose state is in a shared store.

    For the thread of one loop. Call `start`, then `join` as often as needed, then `stop`.
    """

    def __init__(
        self,
        settings: SharedSettings,
        ref: NodeRef,
        backend: BackendThread,
        on_change: Callable[[], None],
    ) -> None:
        self._settings, self._ref, self._backend = settings, ref, backend
        self.view = SharedView(settings, ref, on_change)
        self._value = SharedValue(settings, backend, self.view.read)
        self._heartbeat = HeartbeatCounter(ref, backend, self._value)
        self._interval_s = self.view.member.interval_s
        self._counted_in: Outlook = Outside()
        """The place of this node in the job at its last heartbeat."""
        self._keeper: asyncio.Task[None] | None = None
        self._seq = 0
        self._is_stopped = False
        self._takes_part = False
        """Whether this node wants to be a member; a member that does not leaves the job."""

    @property
    def end_reason(self) -> EndReason | None:
        """The reason why the job's last round ended, as of this node's last read of the state.

        None if no round has ended, or no state was read.
        """
        return self._value.state.ended if self._value.state is not None else None

    async def start(self) -> None:
        """Read the state from the store, and begin to send heartbeats and to watch other nodes."""
        await self._value.load()
        await self._heartbeat.store()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Stop the heartbeats and all calls of the store.

        Other nodes will find this node lost, unless it has left.
        """
        self._is_stopped = True
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self._backend.close()

    async def abandon(self) -> None:
        """Leave the job, then stop. Raises RendezvousError when the store could not be written."""
        try:
            await self.leave()
        finally:
            await self.stop()

    async def join(self, candidate: Candidate, timeout_s: float) -> InWorld:
        """Take part in the next round; returns when it has formed.

        Raises RendezvousTimeoutError (with the missing nodes), RendezvousClosedError,
        RendezvousGracefulExitError (a standby node when the job is over, or a node whose name
        another agent has taken), SettingsConflictError, and errors of the store.
        """
        self._takes_part = True
        try:
            return await self._join(candidate, timeout_s)
        except BaseException:
            self._takes_part = False
            raise

    async def _join(self, candidate: Candidate, timeout_s: float) -> InWorld:
        loop = asyncio.get_running_loop()
        wait, asks = JoinWait(timeout_s, loop.time()), True
        while True:
            if asks:
                await self._ask_in_time(candidate, wait.ends_at, timeout_s)
            outlook = self.view.outlook
            if isinstance(outlook, InWorld):
                return outlook
            if isinstance(outlook, Closed):
                raise outlook.error(self._settings.run_id)
            asks = wait.must_ask(outlook, loop.time())
            if asks or not isinstance(outlook, Pending):
                await asyncio.sleep(uniform(0, FIRST_BACKOFF_S))
                continue
            if isinstance(self.view.trouble, RendezvousStateError):
                raise self.view.trouble
            left_s = wait.left_s(loop.time())
            if left_s is not None and left_s <= 0:
                error = outlook.timeout_error(self._settings.run_id, timeout_s)
                await self._give_up(self.view.trouble or error, timeout_s)
                continue
            await self.view.wait_for_change(left_s)

    async def leave(self) -> None:
        """Remove this node from the job, which continues, so that no other node waits for it."""
        self._takes_part = False
        await self._leave_unless_wanted()
        await self._tidy()

    async def _leave_unless_wanted(self) -> None:
        def change(shared: SharedState, writer: str) -> list[Effect] | None:
            if self._takes_part:  # it has begun to join again meanwhile
                return None
            return shared_round.apply(shared, NodeLeft(self._ref), writer)

        await self._value.update(self._if_member(change))

    async def close(self, why: str) -> None:
        """End the job for all nodes. May be called again."""

        def change(shared: SharedState, writer: str) -> list[Effect] | None:
            if isinstance(self.view.member.outlook(), Closed):
                return None
            shared_round.close(shared, why, writer)
            return []

        await self._value.update(change)
        await self._tidy()

    async def _tidy(self) -> None:
        """Delete this node's counter and join requests it has processed, if the backend can.

        Errors are ignored.
        """
        with suppress(RendezvousError):
            await self._value.delete_read_requests()
            if self._backend.beating and (forgetting := self._backend.forgetting):
                await self._backend.call(forgetting.delete_beat, self._ref.node_id)

    # Joining

    async def _ask_in_time(self, candidate: Candidate, ends_at: float, timeout_s: float) -> None:
        """Ask to join the job; after `ends_at`, leave and raise, even if the store does not answer.

        Returns all the same if the round has formed meanwhile.
        """
        try:
            async with asyncio.timeout_at(ends_at):
                await self._ask_to_join(candidate)
        except TimeoutError:
            error = self.view.trouble or silence_error(self._backend.name, timeout_s)
            await self._give_up(error, timeout_s)

    async def _ask_to_join(self, candidate: Candidate) -> None:
        """Ask to join the job, and retry failed calls of the store for one lease, then raise.

        After a lease without heartbeats this node counts as lost.
        """
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
                await asyncio.sleep(uniform(0.5, 1) * POLL_PENDING_S)

    async def _try_to_join(self, event: NodeJoined) -> None:
        self._raise_if_refused()
        if self._seq > 1:  # what was concluded from the counter of its earlier part is void
            await self._heartbeat.increase()
        if self._backend.join_requests:
            request = shared_round.encode_join_request(event)
            await self._value.join_by_request(
                request, self._settings.lease_s, self.view.wait_for_change
            )
        else:
            await self._value.update(lambda shared, writer: self._apply_join(shared, event, writer))
        self._raise_if_refused()

    def _apply_join(self, shared: SharedState, event: NodeJoined, writer: str) -> list[Effect]:
        if not self._backend.beating:
            shared.beats[self._ref.node_id] = self._heartbeat.count
        return shared_round.apply(shared, event, writer)

    def _raise_if_refused(self) -> None:
        if self._value.state is not None:
            error = shared_round.join_refused(self._value.state, self._ref, self._settings)
            if error is not None:
                raise error

    async def _give_up(self, error: RendezvousError, timeout_s: float) -> None:
        """Leave the job, and raise `error`; return if this node's round has formed after all."""

        def change(shared: SharedState, writer: str) -> list[Effect] | None:
            if shared.round.members[self._ref.node_id].state is MemberState.RUNNING:
                return None
            return shared_round.apply(shared, NodeLeft(self._ref), writer)

        with suppress(RendezvousError, TimeoutError):
            async with asyncio.timeout(min(LEAVE_TIMEOUT_S, timeout_s)):
                await self._value.update(self._if_member(change))
        if not isinstance(self.view.outlook, InWorld):
            raise error

    # Keeping

    async def _keep(self) -> None:
        while True:
            try:
                await self._look()
            except RendezvousError as error:
                self.view.failed(error)
            except Exception as error:  # nothing may end the heartbeat but `stop`
                _log.exception("the rendezvous keeper failed")
                self.view.failed(RendezvousError(f"{type(error).__name__}: {error}"))
            await self._wait_until_due()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        await self._value.load()
        if isinstance(self.view.outlook, Outside | Closed):
            return
        if not self._takes_part:  # its join was given up, and taken in all the same
            await self._leave_unless_wanted()
            return
        if loop.time() - self._heartbeat.at >= self._interval_s:
            await self._heartbeat.beat()
            await self._watch_others()
            if isinstance(self.view.outlook, InWorld) and self.view.outlook == self._counted_in:
                # The round has run for an interval: no node waits for this.
                await self._value.delete_read_requests()
            self._counted_in = self.view.outlook
        for duty in self.view.member.duties(loop.time()):
            await self._do(duty)

    async def _watch_others(self) -> None:
        refs = self.view.member.watched()
        if refs and self._value.state is not None:
            beats = await self._heartbeat.of_others(refs)
            self.view.member.read_beats(beats, asyncio.get_running_loop().time())

    async def _do(self, duty: Suspect | TimerEnded) -> None:
        match duty:
            case Suspect(ref, beat, silent_s):
                why = f"it has sent no beat for {silent_s:.1f} s"

                await self._value.update(
                    self._if_member(lambda s, w: shared_round.lose(s, ref, beat, why, w)),
                    lambda: self._heartbeat.is_still(ref, beat),
                )
            case TimerEnded():
                await self._value.update(
                    self._if_member(lambda s, w: shared_round.apply(s, duty, w))
                )

    def _if_member(self, change: StateChange) -> StateChange:
        """Return a change that does what `change` does, but nothing if this node is no member."""

        def guarded(shared: SharedState, writer: str) -> list[Effect] | None:
            return change(shared, writer) if shared_round.is_member(shared, self._ref) else None

        return guarded

    async def _wait_until_due(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = max(self._heartbeat.at + self._interval_s, loop.time())
        timer_at = self.view.member.next_due()
        if timer_at is not None:
            next_at = min(next_at, timer_at)
        pending = isinstance(self.view.outlook, Pending)
        if isinstance(self.view.outlook, Outside | Closed) or self.view.trouble is not None:
            next_at = loop.time() + self._interval_s
        timeout_s = max(next_at - loop.time(), 0.001)
        token = self._value.token
        try:
            if self.view.trouble is not None:
                await self._pause()
                return
            await self._backend.wait_for_change(
                token, timeout_s, POLL_PENDING_S if pending else POLL_ACTIVE_S
            )
        except RendezvousError as error:
            self.view.failed(error)
            await self._pause()
            return
        if pending and self._value.state is not None and self.view.member.watched()[:1] != ():
            crowd = len(self._value.state.round.members)
            await asyncio.sleep(uniform(0, min(CROWD_PAUSE_S * crowd, CROWD_PAUSE_MAX_S)))

    async def _pause(self) -> None:
        """Pause before the next request to a store that failed."""
        await asyncio.sleep(min(self._interval_s, POLL_ACTIVE_S) * uniform(0.5, 1))


class HeartbeatCounter:
    """The heartbeat counter of this node, and the reader of the others' counters.

    A backend may have a place for counters; else they are in the job's state.
    """

    def __init__(self, ref: NodeRef, backend: BackendThread, value: SharedValue) -> None:
        self._ref, self._backend, self._value = ref, backend, value
        self.count = 0
        self.at = 0.0
        """The time of this node's last heartbeat, on the loop's clock."""

    async def store(self) -> None:
        """Store the counter in the backend's place for counters, if there is one."""
        if beating := self._backend.beating:
            await self._backend.call(beating.set_beat, self._ref.node_id, self.count)

    async def increase(self) -> None:
        """Raise the counter, and store it in the backend's place for counters, if there is one.

        What other nodes concluded from its earlier value is void then.
        """
        self.count += 1
        await self.store()

    async def beat(self) -> None:
        """Raise and store the counter, to show the other nodes that this one lives."""
        await self.increase()
        if not self._backend.beating:
            await self._value.update(
                lambda s, w: [] if shared_round.beat(s, self._ref, self.count, w) else None
            )
        self.at = asyncio.get_running_loop().time()

    async def of_others(self, refs: Sequence[NodeRef]) -> dict[NodeRef, int]:
        """Return the counters of the nodes; -1 for a node without one."""
        if beating := self._backend.beating:
            beats = await self._backend.call(beating.get_beats, [ref.node_id for ref in refs])
        else:
            state = self._value.state
            beats = [state.beats.get(ref.node_id, -1) if state else -1 for ref in refs]
        return dict(zip(refs, beats, strict=True))

    async def is_still(self, ref: NodeRef, beat: int) -> bool:
        """Return whether the counter of node `ref` still has the value `beat`.

        True without a look if counters are in the state, since `lose` compares them there.
        """
        if (beating := self._backend.beating) is None:  # `lose` compares those in the state
            return True
        return await self._backend.call(beating.get_beats, [ref.node_id]) == [beat]
