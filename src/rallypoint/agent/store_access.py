"""This node's access to the round store: its own, when it is rank 0, and enrolment in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rallypoint.config import Endpoint
from rallypoint.core.model import Assignment, Stamp
from rallypoint.errors import EnrolmentError
from rallypoint.rendezvous.endpoint import NotYet, resolve
from rallypoint.store.enrol import enrol
from rallypoint.store.round_store import RoundStore
from rallypoint.wire.address import Address
from rallypoint.wire.keys import round_store_key

ENROL_TIMEOUT_S = 15.0
"""How long reaching the round store may take, unless the join timeout is shorter."""
NO_SECRET = b"rallypoint --insecure"


class StoreAccess:
    """Opens and closes the round store of this node, and enrols with that of rank 0."""

    def __init__(
        self, run_id: str, timeout_s: float = ENROL_TIMEOUT_S, networks: Sequence[str] = ()
    ) -> None:
        self._networks = networks  # that may use this node's store without enrolling
        self._run_id, self._timeout_s = run_id, min(timeout_s, ENROL_TIMEOUT_S)
        self._secret: bytes | None = None
        self._store: RoundStore | None = None
        self._endpoint_addresses: Sequence[Address] = ()

    def use(
        self, secret: bytes | None, store: RoundStore | None, shared: Sequence[Address] = ()
    ) -> None:
        """What was learnt while meeting. `shared`: the endpoint, whose port the store shares."""
        self._secret, self._store, self._endpoint_addresses = secret, store, shared

    def open(self, stamp: Stamp) -> None:
        """This node is rank 0 of the round."""
        if self._store is not None:
            self._store.open(
                stamp.round,
                self._key(stamp),
                open_access=self._secret is None,
                networks=self._networks,
            )

    def close(self) -> None:
        """The round has ended. Safe to call again."""
        if self._store is not None:
            self._store.close()

    async def enrol(self, stamp: Stamp, assignment: Assignment, node_id: str) -> None:
        """Reach the round store of rank 0. Raises EnrolmentError with both addresses."""
        host = await self._host(assignment)
        await enrol(host, assignment.master_port, self._key(stamp), node_id, self._timeout_s)

    async def _host(self, assignment: Assignment) -> str:
        if self._endpoint_addresses:
            return self._endpoint_addresses[0].host
        endpoint = Endpoint(assignment.master_addr, assignment.master_port)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while isinstance(found := await resolve(endpoint), NotYet):
            if asyncio.get_running_loop().time() > deadline:
                raise EnrolmentError(f"the round store's address {endpoint}: {found.reason}")
            await asyncio.sleep(0.5)
        return found.addresses[0].host

    def _key(self, stamp: Stamp) -> bytes:
        secret = self._secret or NO_SECRET
        return round_store_key(secret, self._run_id, stamp.incarnation, stamp.epoch, stamp.round)
