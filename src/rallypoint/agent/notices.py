"""The notes of a node for other processes on its machine.

They are the notice by which its guard reports its death, the note of its job for commands of its
user, and the note of its place for the next agent.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from rallypoint.config import AccessConfig, RendezvousConfig
from rallypoint.coordinator.client.discovery import has_own_token
from rallypoint.core.model import DeadPlace, Epoch
from rallypoint.core.session import AgentEnd
from rallypoint.process.scratch import LocalJob, leave_note
from rallypoint.wire import death_notice
from rallypoint.wire.address import Address
from rallypoint.wire.death_notice import SECRET_BYTES, DeathNotice


class Notices:
    """The notes of an agent for its guard, its user's commands, and the next agent of its machine.

    For the thread of the loop.
    """

    def __init__(
        self,
        rendezvous: RendezvousConfig,
        access: AccessConfig,
        tell_guard: Callable[[bytes], None] | None,
        scratch: str,
    ) -> None:
        """Make the notes of an agent.

        `tell_guard` passes the guard its notice; None: this agent has no guard. `scratch` is the
        agent's own directory; empty: there is none.
        """
        self._rendezvous, self._access = rendezvous, access
        self._tell_guard, self._scratch = tell_guard, scratch
        self._noted: DeadPlace | None = None
        """The place in the note for the next agent on this machine."""
        self._notice: Callable[[], bytes] | None = None
        """Makes the notice for the guard; it changes with the place of this node."""

    def connected(self, token: bytes | None, peer: Address) -> None:
        """Write the note by which commands of this user on this machine find the job.

        `peer` is the address of its coordinator.
        """
        if not self._scratch:
            return
        rendezvous, access = self._rendezvous, self._access
        has_own = rendezvous.handler is not None or has_own_token(rendezvous, access)
        secret = (token or b"") if has_own else b""
        where, insecure = str(peer), access.insecure and not has_own
        note = LocalJob(rendezvous.run_id, where, insecure, os.getpid(), secret)
        leave_note(self._scratch, msgspec.json.encode(note))

    def attaching(
        self, token: bytes | None, end: AgentEnd, led: Epoch | None, peer: Address, generation: int
    ) -> bytes:
        """Leave the guard a notice of this agent's death; return the commitment to its secret.

        The guard would send the notice to `peer`, the coordinator, and the secret is new for each
        connection. If this node leads, by the epoch `led`, the guard would release the job's
        register instead, and the result is empty. It is empty without a guard too.
        """
        run_id, life = self._rendezvous.run_id, end.identity.incarnation
        register = self._rendezvous.register
        if led is not None:
            # The guard releases the register: there is no other coordinator to tell.
            assert register is not None
            where = register, run_id, token, led, life
            self._notice = lambda: death_notice.encode_release(*where, end.dead_place)
            self._renew()
            return b""
        secret = os.urandom(SECRET_BYTES)
        notice = DeathNotice(peer.host, peer.port, run_id, token, life, generation, secret)
        notice = death_notice.with_register(notice, register)
        self._notice = lambda: death_notice.encode(
            replace(notice, place=end.dead_place, may_follow=_may_follow(end))
        )
        self._renew()
        return b"" if self._tell_guard is None else death_notice.commitment(secret)

    def _renew(self) -> None:
        if self._notice is not None and self._tell_guard is not None:
            self._tell_guard(self._notice())

    def placed(self, end: AgentEnd) -> None:
        """Renew the notes of this node's place, after it was attached or assigned a place.

        The guard and the next agent on this machine report that place. The next agent gets a note
        only if another coordinator can take over the job.
        """
        self._renew()
        place = end.dead_place
        if _may_follow(end) and place not in (None, self._noted) and self._scratch:
            from rallypoint.agent.former_agents import note_place

            assert place is not None
            self._noted = place
            note_place(self._scratch, self._rendezvous.run_id, place)

    def over(self) -> None:
        """Withdraw the guard's notice: the node has left the job, so there is no loss to report."""
        self._notice = None
        if self._tell_guard is not None:
            self._tell_guard(b"")


def _may_follow(end: AgentEnd) -> bool:
    """Return whether another coordinator may take over the job."""
    return end.attached is not None and end.attached.is_replaceable
