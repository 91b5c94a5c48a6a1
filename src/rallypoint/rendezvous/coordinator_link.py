"""A handler's link to the coordinator: its session, and the coordinator itself if it lives here.

A coordinator that is hosted here outlives the session of the handler that could bind the endpoint:
it stays until everybody has gone, or until that handler is shut down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from rallypoint.core.model import Outcome
from rallypoint.errors import RendezvousClosedError, RendezvousConnectionError
from rallypoint.rendezvous.coordinator_member import FAREWELL_S, CoordinatorMember
from rallypoint.rendezvous.coordinator_parameters import CoordinatorSettings
from rallypoint.rendezvous.meeting import Met, embed, meet
from rallypoint.rendezvous.session import CoordinatorSession, Identity


class CoordinatorLink:
    """For the thread of the loop on which it is made."""

    def __init__(self, settings: CoordinatorSettings, on_change: Callable[[], None]) -> None:
        self._settings, self._on_change = settings, on_change
        self._meeting = asyncio.Lock()
        self._hosted: Met | None = None
        """How this process met its own coordinator, while that stands."""
        self._lingering: asyncio.Task[None] | None = None
        self.member: CoordinatorMember | None = None
        """Attached, or about to be; None: nobody was asked yet, or this node has left."""
        self._session: CoordinatorSession | None = None
        """The last one, also when it has been hung up; None: a job that it knew has timed out."""
        self.local_host = ""
        """The address that the session comes from."""
        self.closed = ""
        """Why nobody is to be met any more; empty: no reason is known."""

    async def meet(self) -> CoordinatorMember:
        """The member, after finding or hosting the coordinator if need be.

        Raises RendezvousClosedError and what `meeting.meet` raises.
        """
        async with self._meeting:
            if self.closed:
                raise RendezvousClosedError(self.closed)
            if self.member is not None:
                if not isinstance(self.member.trouble, RendezvousConnectionError):
                    return self.member
                await self.drop()
            return await self._meet()

    async def _meet(self) -> CoordinatorMember:
        config, access, shared = self._settings.config, self._settings.access, self._settings.shared
        if self._hosted is not None:
            config = replace(config, is_host=False)
        met = await meet(config, access, embed(shared, access), lambda text: None)
        if met.coordinator is not None:
            self._hosted = met
        self.local_host = met.connection.local_host
        member = CoordinatorMember(self._on_change, config.enrol_timeout_s)
        session = CoordinatorSession(
            Identity.fresh(config.node_id or ""),
            shared,
            config.lease_s,
            met.dial,
            member,
            former=self._session.attached if self._session is not None else None,
        )
        self._session = session
        member.use(session)
        self.member = member
        session.open(met.connection)
        return member

    async def drop(self) -> None:
        """Hang up: this node has left. A job that has ended is remembered, but for a timeout."""
        member, self.member = self.member, None
        timed_out = False
        if member is not None:
            if member.verdict is not None:
                timed_out = member.verdict.outcome is Outcome.TIMED_OUT
                self.closed = "" if timed_out else member.verdict.text
            await member.leave()
        if self._hosted is not None and self._lingering is None:
            self._lingering = asyncio.get_running_loop().create_task(self._linger())
        if timed_out:
            self._session = None
            # That job is over, but not the next one that meets here.
            await self.end_hosting(FAREWELL_S)

    async def end_hosting(self, limit_s: float | None) -> None:
        """When everybody has gone, or after so long; None: however long. After `drop`."""
        if self._lingering is not None:
            await asyncio.wait((self._lingering,), timeout=limit_s)
        if self._lingering is not None:
            self._lingering.cancel()
            await asyncio.wait((self._lingering,))

    async def _linger(self) -> None:
        assert self._hosted is not None
        coordinator = self._hosted.coordinator
        assert coordinator is not None
        try:
            await coordinator.wait_empty()
        finally:
            coordinator.close()
            self._hosted = self._lingering = None
