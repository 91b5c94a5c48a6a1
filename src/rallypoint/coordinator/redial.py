"""Reaching a coordinator again, wherever its name points by now.

The addresses that were right last are tried first, since a broken connection has little time to
come back and a name server may be out of reach with the coordinator. Then the name is looked up
anew: a pod that was replaced has its old name and another address. A name server that does not
answer keeps nobody from the next attempt for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rallypoint.config import Endpoint
from rallypoint.coordinator.client_connection import ClientConnection, dial
from rallypoint.coordinator.endpoint import NotYet, Resolved, resolve
from rallypoint.errors import (
    AccessError,
    ProtocolError,
    RendezvousConnectionError,
    RendezvousRefusedError,
)
from rallypoint.wire.address import Address

LookUp = Callable[[Endpoint], Awaitable[Resolved | NotYet]]
FIRST_LOOK_UP_S = 1.0
LONGEST_LOOK_UP_S = 32.0
"""The time for looking up doubles up to this: a slow name server is heard in the end."""


class Redial:
    """Dials an endpoint, once for each call."""

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: Sequence[Address],
        run_id: str,
        token: bytes | None,
        look_up: LookUp = resolve,
        look_up_s: float = FIRST_LOOK_UP_S,
    ) -> None:
        """`addresses`: what the endpoint was found to mean last. `look_up_s`: how long the first
        look-up may take."""
        self._endpoint, self._addresses = endpoint, tuple(addresses)
        self._run_id, self._token, self._look_up = run_id, token, look_up
        self._look_up_s = look_up_s

    async def __call__(self) -> ClientConnection:
        """Raises as `dial` does; RendezvousConnectionError also when the name does not resolve, or
        has moved to where nobody listens yet: only the next refusal there is one."""
        try:
            return await dial(self._addresses, self._run_id, self._token)
        except (RendezvousConnectionError, AccessError, ProtocolError):
            found = await self._looked_up()
            if found is None:
                raise
            if isinstance(found, NotYet):
                raise RendezvousConnectionError(
                    f"can't reach the coordinator at {self._endpoint}: {found.reason}"
                ) from None
            untried = set(found.addresses) - set(self._addresses)
            self._addresses = found.addresses
            if not untried:
                raise
        moved_to = [address for address in found.addresses if address in untried]
        try:
            return await dial(moved_to, self._run_id, self._token)
        except RendezvousRefusedError as error:
            # Who has just got the name may be starting, however long another one refused before.
            raise RendezvousConnectionError(str(error)) from error

    async def _looked_up(self) -> Resolved | NotYet | None:
        """None: no answer in time."""
        try:
            async with asyncio.timeout(self._look_up_s):
                return await self._look_up(self._endpoint)
        except TimeoutError:
            self._look_up_s = min(2 * self._look_up_s, LONGEST_LOOK_UP_S)
            return None
