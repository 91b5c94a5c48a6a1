"""The client that names an etcd cluster, for the classes that torch has as well.

client = EtcdClient("e1:2379,e2:2379,e3:2379", user="me", password_file="password")
backend = EtcdRendezvousBackend(client, "my-job")
store = EtcdStore(client, "/my-job/store")
handler = DynamicRendezvousHandler.from_backend("my-job", store, backend, 2, 4)
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rallypoint.errors import ParameterError, RallypointError, UsageError
from rallypoint.register.etcd.gateway import Gateway
from rallypoint.register.etcd.parameters import FIELDS, read_etcd

_IDLE = 4
"""The largest number of idle connections that are kept open."""


class EtcdClient:
    """A client of an etcd cluster of version 3.4 or later.

    Several threads may use it at once, and so may a forked child.
    """

    def __init__(self, endpoints: str, **options: str) -> None:
        """Make a client of the members `endpoints`: HOST[:PORT], separated by commas.

        `options` are spelt as the keys of `--rdzv-conf` (docs/coordinator.md): `protocol`,
        `cacert`, `cert`, `key`, `user`, `password` or `password_file`, and `etcd_prefix`. Does no
        I/O. Raises ParameterError.
        """
        unknown = sorted(options.keys() - FIELDS)
        if unknown:
            raise ParameterError(
                f"{unknown[0]}={options[unknown[0]]!r}: is not an option of an EtcdClient: known "
                f"are {', '.join(FIELDS)}"
            )
        try:
            self.config = read_etcd(endpoints, options, os.path.abspath)
        except UsageError as error:
            raise ParameterError(f"EtcdClient: {error}") from None
        self._idle: deque[Gateway] = deque(maxlen=_IDLE)
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"EtcdClient({str(self.config)!r})"

    @contextmanager
    def gateway(self) -> Iterator[Gateway]:
        """Yield a connection that only this thread uses within the block."""
        if self._pid != os.getpid():  # Those of the parent process are its own.
            self._idle, self._pid = deque(maxlen=_IDLE), os.getpid()
        try:
            gateway = self._idle.pop()
        except IndexError:
            gateway = Gateway(self.config)
        try:
            yield gateway
        except RallypointError:
            self._idle.append(gateway)  # It knows which member answers.
            raise
        self._idle.append(gateway)

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request to etcd's JSON gateway: `call("/v3/kv/range", {...})`.

        Members are asked in turn until one answers. Blocks for 5 s at most, and for the
        time of a name server. The request may be executed twice, and also if an error is raised.

        Raises RendezvousConnectionError if no member answers, and for most refusals of etcd;
        AccessError if a user, password or permission is wrong or missing; ParameterError if no
        endpoint is an etcd, or a file for TLS can't be used.
        """
        with self.gateway() as gateway:
            return gateway.call(path, body)
