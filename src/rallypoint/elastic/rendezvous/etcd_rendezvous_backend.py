"""A rendezvous in etcd between peers, for a program's own `DynamicRendezvousHandler`.

All keys of a run are on one lease, which its nodes keep alive with their heartbeats: nothing is
left in etcd when they all have been away for its `ttl`. (The register of a job, from which this
inherits the swap, is on none.)

No node polls: etcd wakes those that wait. Numbers are given out by etcd, which counts how often a
key is put: each of a thousand nodes that join at once makes two requests, and none in vain.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from rallypoint.elastic.etcd.client import EtcdClient
from rallypoint.elastic.etcd.lease import CommonLease
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    create_handler,
)
from rallypoint.elastic.rendezvous.etcd_store import EtcdStore
from rallypoint.errors import ParameterError, UsageError
from rallypoint.register.contract import Token
from rallypoint.register.etcd.backend import EtcdBackend, explained, number_given
from rallypoint.register.etcd.gateway import LeaseEndedError, encoded
from rallypoint.register.etcd.parameters import FIELDS, checked_prefix
from rallypoint.register.version_file import VersionFormat, register_name

T = TypeVar("T")

AT_ONCE = 100
"""The most keys in one transaction; etcd's default limit is 128."""
MAX_JOIN_REQUESTS = 1024


class EtcdRendezvousBackend(EtcdBackend):
    """A rendezvous backend that keeps the state of one run id in etcd.

    The arguments are torch's, except the client.
    """

    def __init__(
        self,
        client: EtcdClient,
        run_id: str,
        key_prefix: str | None = None,
        ttl: float | None = None,
    ) -> None:
        """Make a backend; all its keys begin with `key_prefix`.

        None is `/rendezvous` below the client's prefix: by default /rallypoint/rendezvous. etcd
        deletes all keys of the run within `ttl` seconds after its last node's last heartbeat (None:
        two hours). That must be several intervals of heartbeats. Does no I/O. Raises
        ParameterError.
        """
        if key_prefix is None:
            key_prefix = f"{client.config.prefix}/rendezvous"
        try:
            prefix = checked_prefix("key_prefix", key_prefix)
        except UsageError as error:
            raise ParameterError(str(error)) from None
        super().__init__(replace(client.config, prefix=prefix), run_id)
        self._layout = VersionFormat(run_id, None, "another key_prefix")
        self.lease = CommonLease(client, f"{self._key}/lease", ttl)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        """Set the state if the present one's token is `token` (None: there is no state).

        Returns the state that is there then, its token, and whether it was set; None if there is
        none.
        """
        return self._leased(partial(super().set_state, state, token))

    def set_beat(self, node: str, beat: int) -> None:
        """Set the heartbeat counter of a node, which has its own key."""
        self._put(f"beats/{node}", str(beat))

    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        """Return the heartbeat counters of the nodes, by one request for every hundred.

        A node without a counter has -1.
        """
        keys = [{"key": self._name(f"beats/{node}")} for node in nodes]
        found: list[int] = []
        for begin in range(0, len(keys), AT_ONCE):
            part = [{"request_range": key} for key in keys[begin : begin + AT_ONCE]]
            with explained():  # A value may be anybody's.
                for response in self._all(part):
                    kvs = response["response_range"].get("kvs")
                    found.append(int(_value(kvs[0])) if kvs else -1)
        return found

    def post_join_request(self, request: bytes) -> int:
        """Store a join request under the next number, and return the number.

        The number is the version of a key that is written for each request.
        """
        number = number_given(self._put("requests", b""))
        self._put(f"requests/{number:019}", request)
        return number

    def join_requests_after(self, number: int) -> list[bytes | None]:
        """Return the join requests after this number, at most MAX_JOIN_REQUESTS of them.

        None stands for one that is missing.
        """
        later = {
            "key": self._name(f"requests/{number + 1:019}"),
            "range_end": self._name("requests0"),
            "limit": str(MAX_JOIN_REQUESTS),
        }
        count = {"key": self._name("requests"), "keys_only": True}
        counted, found = self._all([{"request_range": count}, {"request_range": later}])
        kvs = counted["response_range"].get("kvs")
        last = int(kvs[0].get("version", "0")) if kvs else 0
        with explained():
            there = {
                int(b64decode(kv["key"])[-19:]): _value(kv)
                for kv in found["response_range"].get("kvs", ())
            }
        last = min(last, number + MAX_JOIN_REQUESTS)
        return [there.get(each) for each in range(number + 1, last + 1)]

    def delete_join_requests(self, numbers: Sequence[int]) -> None:
        """Delete join requests, by one request to etcd for every hundred."""
        keys = [self._name(f"requests/{number:019}") for number in numbers]
        for begin in range(0, len(keys), AT_ONCE):
            part = keys[begin : begin + AT_ONCE]
            self._all([{"request_delete_range": {"key": key}} for key in part])

    def delete_beat(self, node: str) -> None:
        """Delete the heartbeat counter of the node."""
        self._all([{"request_delete_range": {"key": self._name(f"beats/{node}")}}])

    def _name(self, name: str) -> str:
        return encoded(f"{self._key}/{name}")

    def _lease(self) -> int:
        return self.lease.number()

    def _put(self, name: str, value: str | bytes) -> dict[str, Any]:
        body = {"key": self._name(name), "value": encoded(value), "prev_kv": True}

        def put() -> dict[str, Any]:
            return self._gateway.call("/v3/kv/put", body | {"lease": str(self._lease())})

        with explained():
            return self._leased(put)

    def _leased(self, call: Callable[[], T]) -> T:
        """Return the result of `call`; repeat it with a new lease if the lease has expired."""
        try:
            return call()
        except LeaseEndedError:
            self.lease.has_ended()
            return call()

    def _all(self, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Carry out operations in one transaction of etcd, and return the response to each."""
        with explained():
            answer = self._gateway.call("/v3/kv/txn", {"success": operations})
            responses: list[dict[str, Any]] = answer["responses"]
        return responses


def _value(kv: dict[str, str]) -> bytes:
    return b64decode(kv.get("value", ""))


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """Return the backend that `params` describe, and a store in the same etcd.

    The keys of the store expire with the backend's lease. The keys of `params.config` are those of
    `EtcdClient`. Does no I/O. Raises ParameterError.
    """
    options = {name: str(params.config[name]) for name in FIELDS if name in params.config}
    client = EtcdClient(params.endpoint, **options)
    backend = EtcdRendezvousBackend(client, params.run_id)
    prefix = f"{client.config.prefix}/stores/{register_name(params.run_id)}"
    return backend, EtcdStore(client, prefix, lease=backend.lease)


def create_handler_from(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Return the handler of the backend `etcd`. Raises as `create_backend` does."""
    backend, store = create_backend(params)
    return create_handler(store, backend, params)
