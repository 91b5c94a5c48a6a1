"""What an agent leaves with its guard, so that the coordinator learns at once when it has died."""

from __future__ import annotations

import os
from collections.abc import Callable

from rallypoint.rendezvous.connection import ClientConnection
from rallypoint.rendezvous.meeting import Met
from rallypoint.rendezvous.session import CoordinatorSession
from rallypoint.wire import death_notice
from rallypoint.wire.death_notice import SECRET_BYTES, DeathNotice


class DeathNotices:
    """A notice, with a secret of its own, for each connection of a session."""

    def __init__(
        self, session: CoordinatorSession, met: Met, leave: Callable[[bytes], None]
    ) -> None:
        self._session, self._met, self._leave = session, met, leave

    def attaching(self, connection: ClientConnection, generation: int) -> bytes:
        """Leave the notice of a new connection; returns the commitment that goes with it."""
        secret = os.urandom(SECRET_BYTES)
        notice = DeathNotice(
            connection.peer.host,
            connection.peer.port,
            self._session.run_id,
            self._met.token,
            self._session.incarnation,
            generation,
            secret,
        )
        self._leave(death_notice.encode(notice))
        return death_notice.commitment(secret)
