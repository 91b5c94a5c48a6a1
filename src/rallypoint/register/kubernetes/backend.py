"""A register in Kubernetes: one ConfigMap per job.

Its uid and resourceVersion are the token of a version.

A swap is a PUT with both, or a POST for the first version; the API server refuses one that comes
late, with 409. A ConfigMap without data counts as no version: it was made for the job, which then
needs no right to make any, and the first version is a PUT there. A lost answer is no matter
(`swapping.py`). What is read is the newest version: a GET without resourceVersion asks
etcd's quorum. Lists and watches may be older than that, so they only wake.

What is assumed of Kubernetes: its etcd is not reset to an older backup while jobs run.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from msgspec import Struct

from rallypoint.errors import AccessError, ParameterError, RecordError, RendezvousConnectionError
from rallypoint.register.contract import Token
from rallypoint.register.kubernetes.api_server import LIMIT_S, ApiServer, Object, Query, Reply
from rallypoint.register.kubernetes.parameters import KubernetesConfig
from rallypoint.register.swapping import Stored, Swapped, SwappingBackend
from rallypoint.register.version_file import VersionFormat, register_name

MAX_STATE = 1_000_000
"""The longest state in bytes. A ConfigMap takes at most 1 MiB."""
LABELS = {
    "app.kubernetes.io/managed-by": "rallypoint",
    "app.kubernetes.io/component": "register",
}
"""The labels of the ConfigMap of every register."""
KEY = "register"
"""The key of the value within `binaryData`."""
DRY_RUN = {"dryRun": "All"}
_AGAIN_S = 0.5


class ObjectVersion(Struct, frozen=True):
    """The uid and the resourceVersion of an object, as the token of a version."""

    uid: str
    version: str


class KubernetesRendezvousBackend(SwappingBackend):
    """The state of one job in a ConfigMap.

    For a `DynamicRendezvousHandler`, or for the coordinators of a job. Methods block; each request
    to the API server takes at most 5 s by default. A wait for a change has its own connection.
    """

    store, max_state, token_type = "Kubernetes", MAX_STATE, ObjectVersion

    def __init__(
        self,
        config: KubernetesConfig,
        run_id: str,
        token: bytes | None = None,
        limit_s: float = LIMIT_S,
        server: ApiServer | None = None,
    ) -> None:
        """`config`: see `kubernetes_config`.

        `token`: the job's secret, which authenticates versions; None: they are not. `limit_s`: the
        time limit of each request, in seconds. `server`: the client that this register shares with
        others, with its own limit; None: it gets its own. Does no I/O. Raises ParameterError for an
        empty run id.
        """
        super().__init__(run_id, name_of(run_id), VersionFormat(run_id, token, "another namespace"))
        self._server = ApiServer(config, limit_s) if server is None else server
        self._watching = ApiServer(config, limit_s)
        self._is_stopped = False

    @property
    def name(self) -> str:
        return "kubernetes"

    def check(self) -> None:
        """Check that the register can be read, created if missing, and changed; store nothing.

        Raises AccessError and ParameterError for faults that the user can fix, and
        RendezvousConnectionError.
        """
        found = self._server.call("GET", self._key)
        # Both are judged as if they were meant, also by who may do that.
        if found.status != 200:
            self._server.call("POST", body=config_map(self._key), query=DRY_RUN)
        self._server.call("PUT", self._key, config_map(self._key), DRY_RUN)

    def try_writing(self) -> None:
        """Check that the register could be written, without storing anything.

        Raises RendezvousConnectionError.
        """
        with _explained():
            self.check()

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Wait up to `timeout` seconds for another version than `token`; return whether it may be.

        `token` None: the ConfigMap had no version. The caller then reads it.
        Returns True also when the API server can't be reached, without waiting out the time.
        """
        ends_at = time.monotonic() + timeout
        wanted = [] if token is None else [token]
        name = {"fieldSelector": f"metadata.name={self._key}"}
        try:
            with _explained():
                while not self._is_stopped:
                    listed = self._watching.call("GET", query=name)
                    there = [_version_of(item) for item in listed.items if _is_used(item)]
                    has_changed = there != wanted
                    left_s = ends_at - time.monotonic()
                    if has_changed or left_s <= 0:
                        return has_changed
                    since = listed.body["metadata"]["resourceVersion"]
                    if self._is_woken(left_s, {**name, "resourceVersion": since}):
                        return True
                    # It was ended early, or what the list has said is forgotten there (410).
                    time.sleep(min(_AGAIN_S, max(ends_at - time.monotonic(), 0.0)))
        except RendezvousConnectionError:
            if not self._is_stopped:
                time.sleep(min(_AGAIN_S, max(ends_at - time.monotonic(), 0.0)))
        return True

    def stop_waiting(self) -> None:
        """End another thread's `wait_for_change` early. No further wait is meant to follow."""
        self._is_stopped = True
        self._watching.abort()

    def _is_woken(self, seconds: float, query: Query) -> bool:
        """Return whether the API server has sent a change of the objects that `query` selects.

        False: it sent none for so many seconds, or has ended the watch, perhaps with an error.
        """
        watch = self._watching.watch(seconds, {**query, "allowWatchBookmarks": "true"})
        with closing(watch) as events:
            for event in events:
                if event.get("type") != "BOOKMARK":
                    return event.get("type") != "ERROR"
        return False

    def _read(self) -> Stored | None:
        return self._stored(self._server.call("GET", self._key))

    def _stored(self, reply: Reply) -> Stored | None:
        if reply.status != 200 or not _is_used(reply.body):
            return None
        try:
            data = b64decode(reply.body["binaryData"][KEY], validate=True)
        except (KeyError, TypeError, ValueError):
            raise RecordError(
                f"{self._described()} was not written by Rallypoint (it has no {KEY}): delete it, "
                "or use another namespace or run id"
            ) from None
        return data, _version_of(reply.body)

    def _swap(self, data: bytes, token: Token | None) -> Swapped:
        if token is None:
            there = self._server.call("GET", self._key)
            if found := self._stored(there):
                return Swapped(None, found)
            token = _version_of(there.body) if there.status == 200 else None
        body = config_map(self._key, token, b64encode(data).decode())
        if token is None:
            reply = self._server.call("POST", body=body)
        else:
            reply = self._server.call("PUT", self._key, body)
        if reply.status in (200, 201):
            return Swapped(_version_of(reply.body))
        has_repeated = self._server.has_repeated
        return Swapped(None, self._read(), has_repeated)

    def _described(self) -> str:
        return f"the ConfigMap {self._key} in the namespace {self._server.namespace}"

    def _explained(self) -> AbstractContextManager[None]:
        return _explained()


def name_of(run_id: str) -> str:
    """Return the name of the ConfigMap of a job; it is unlike that of any other run id."""
    return register_name(run_id).lower().replace("_", "-")


def config_map(name: str, token: ObjectVersion | None = None, value: str = "") -> Object:
    """Return the ConfigMap object to send to the API server.

    `token` is that of the only version that it may replace; None: it names none. `value` is base64.
    """
    metadata: Object = {"name": name, "labels": LABELS}
    if token is not None:
        metadata |= {"uid": token.uid, "resourceVersion": token.version}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "binaryData": {KEY: value},
    }


def _is_used(body: Object) -> bool:
    return bool(body.get("data") or body.get("binaryData"))


def _version_of(body: Object) -> ObjectVersion:
    return ObjectVersion(body["metadata"]["uid"], body["metadata"]["resourceVersion"])


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of the API server within the block into RendezvousConnectionError.

    They are AccessError, ParameterError and those of answers that do not parse. The caller may
    retry: an administrator may fix rights and files.
    """
    try:
        yield
    except (AccessError, ParameterError) as error:
        raise RendezvousConnectionError(f"can't use the register: {error}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise RendezvousConnectionError(
            f"the API server gave an answer that does not parse ({type(error).__name__}: {error})"
        ) from error
