"""One etcd lease for all keys of a run, which expire together.

They expire within `ttl` seconds after the last node of the run has gone. The lease is found by a
key that is attached to it. A node that finds none asks etcd for a lease; if two nodes do so at
once, the second one revokes its own.
"""

from __future__ import annotations

import math
import time

from rallypoint.elastic.etcd.client import EtcdClient
from rallypoint.errors import ParameterError
from rallypoint.register.etcd.backend import if_unchanged
from rallypoint.register.etcd.gateway import encoded

TTL_S = 7200
"""Torch's default for the ttl, in seconds."""
KEPT_ALIVE = 3
"""The divisor of the ttl: `number` renews the lease once a third of the ttl has passed."""


class CommonLease:
    """The etcd lease that the keys of one run share; renewed only when `number` is called.

    Any thread may use it.
    """

    def __init__(self, client: EtcdClient, key: str, ttl: float | None = None) -> None:
        """Make an object for the lease to which `key` of etcd is attached; neither need exist yet.

        A lease lasts `ttl` seconds without a renewal (None: two hours). The `ttl` of the node that
        makes the lease counts for all nodes. Does no I/O. Raises ParameterError for a `ttl` below
        1 s, or without an end.
        """
        self._client, self._key = client, encoded(key)
        self._ttl_s = TTL_S if ttl is None else ttl
        if not 1 <= self._ttl_s < math.inf:
            raise ParameterError(f"ttl={ttl!r}: needs 1 second or more")
        self._number, self._kept_at = 0, 0.0
        self.lasts_s = self._ttl_s
        """The ttl of the present lease in seconds, by the node that made it."""

    def number(self) -> int:
        """Return the id of the lease in etcd, after renewing it if a third of its ttl has passed.

        Finds or makes a lease if there is none. Blocks. Raises as `EtcdClient.call`.
        """
        now = time.monotonic()
        if not self._number or now - self._kept_at >= self.lasts_s / KEPT_ALIVE:
            if not self._lasts(self._number):
                self._number = self._find()
            self._kept_at = now
        return self._number

    def has_ended(self) -> None:
        """Forget the lease, because it has expired; `number` then finds or makes another one."""
        self._number = 0

    def _lasts(self, number: int) -> bool:
        """Renew the lease of this id, and return whether it still existed; False for 0."""
        if not number:
            return False
        answer = self._client.call("/v3/lease/keepalive", {"ID": str(number)})
        ttl_s = int(answer.get("result", {}).get("TTL", "0"))
        if ttl_s > 0:
            self.lasts_s = float(ttl_s)
        return ttl_s > 0

    def _find(self) -> int:
        while True:
            kvs = self._client.call("/v3/kv/range", {"key": self._key}).get("kvs")
            number = int(kvs[0].get("lease", "0")) if kvs else 0
            if self._lasts(number):
                return number
            ttl = str(math.ceil(self._ttl_s))
            new = str(self._client.call("/v3/lease/grant", {"TTL": ttl})["ID"])
            there = int(kvs[0]["mod_revision"]) if kvs else 0
            swap = {
                "compare": [if_unchanged(self._key, there)],
                "success": [{"request_put": {"key": self._key, "lease": new}}],
            }
            if self._client.call("/v3/kv/txn", swap).get("succeeded"):
                self.lasts_s = self._ttl_s
                return int(new)
            self._client.call("/v3/lease/revoke", {"ID": new})
