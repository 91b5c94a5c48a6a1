"""A register in etcd: one key per job, whose mod revision is the token of a version.

A swap is a transaction that stores if the key still has that revision, and else reads what is
there; a lost answer is no matter (`swapping.py`). A late request finds another revision and
stores nothing. The key has no lease, since a record must outlive whoever wrote it.

What is assumed of etcd: it is one cluster, which is not reset to an older backup while jobs run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rallypoint.errors import AccessError, ParameterError, RendezvousConnectionError
from rallypoint.register.contract import Token
from rallypoint.register.etcd.gateway import ATTEMPT_S, Gateway, decoded, encoded
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.swapping import Stored, Swapped, SwappingBackend
from rallypoint.register.version_file import VersionFormat, register_name

if TYPE_CHECKING:  # It makes the backends.
    from rallypoint.register.etcd.store import EtcdEngine

MAX_STATE = 1 << 20
"""The longest state in bytes. etcd takes requests of at most 1.5 MiB by default."""
_AGAIN_S = 0.5


class Revision(Struct, frozen=True):
    """The mod revision of a key, as the token of a version."""

    number: int


class EtcdBackend(SwappingBackend):
    """The register of one job in etcd. A wait for a change has its own connections."""

    store, max_state, token_type = "etcd", MAX_STATE, Revision

    def __init__(
        self,
        config: EtcdConfig,
        run_id: str,
        token: bytes | None = None,
        attempt_s: float = ATTEMPT_S,
        records: EtcdEngine | None = None,
    ) -> None:
        """`token`: the job's secret, which authenticates versions; None: they are not.

        `attempt_s`: the seconds without an answer after which another member of etcd is asked.
        `records`: the engine whose connection and reads this register shares; None: it has its own.
        Does no I/O. Raises ParameterError for an empty run id.
        """
        layout = VersionFormat(run_id, token, "another etcd_prefix")
        super().__init__(run_id, key_of(config.prefix, run_id), layout)
        self._records, self._written_at = records, 0.0
        self._gateway = Gateway(config, attempt_s) if records is None else records.gateway
        self._watching = Gateway(config, attempt_s)
        self._is_stopped = False

    @property
    def name(self) -> str:
        return "etcd"

    def _read(self) -> Stored | None:
        if self._records is None:
            return _stored(self._gateway.call("/v3/kv/range", {"key": encoded(self._key)}))
        kv = self._records.newest(self._key, self._written_at)
        return _stored({} if kv is None else {"kvs": [kv]})

    def _swap(self, data: bytes, token: Token | None) -> Swapped:
        key = encoded(self._key)
        put = {"key": key, "value": encoded(data), "lease": str(self._lease())}
        body = {
            "compare": [if_unchanged(key, 0 if token is None else token.number)],
            "success": [{"request_put": put}],
            "failure": [{"request_range": {"key": key}}],
        }
        try:
            answer = self._gateway.call("/v3/kv/txn", body)
        finally:
            self._written_at = time.monotonic()
        if answer.get("succeeded"):
            return Swapped(Revision(revision_of(answer)))
        there = _stored(answer["responses"][0]["response_range"])
        return Swapped(None, there, self._gateway.has_repeated)

    def _described(self) -> str:
        return f"the key {self._key} in etcd"

    def _explained(self) -> AbstractContextManager[None]:
        return explained()

    def try_writing(self) -> None:
        """Check that etcd would store a version now, without storing one.

        Raises RendezvousConnectionError.
        """
        with explained():
            self._gateway.call("/v3/kv/txn", swap_of_nothing(self._key))

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Wait up to `timeout` seconds for another revision than `token`; return whether it may be.

        `token` None: the key did not exist. The caller then reads the key.
        Returns True also when etcd can't be reached, without waiting out the time.
        """
        ends_at = time.monotonic() + timeout
        try:
            with explained():
                answer = self._watching.call("/v3/kv/range", {"key": encoded(self._key)})
                there = answer.get("kvs")
                now = Revision(int(there[0]["mod_revision"])) if there else None
                left_s = ends_at - time.monotonic()
                if now != token or left_s <= 0:
                    return now != token
                return self._watching.watch(self._key, revision_of(answer) + 1, left_s)
        except RendezvousConnectionError:
            if not self._is_stopped:
                time.sleep(min(_AGAIN_S, max(ends_at - time.monotonic(), 0.0)))
            return True

    def stop_waiting(self) -> None:
        """End another thread's `wait_for_change` early. No further wait is meant to follow."""
        self._is_stopped = True
        self._watching.abort()

    def _lease(self) -> int:
        """Return the id of the etcd lease for the next version: 0, which is none.

        A subclass may give versions a lease.
        """
        return 0


def _stored(answer: dict[str, Any]) -> Stored | None:
    kvs = answer.get("kvs")
    if not kvs:
        return None
    (kv,) = kvs
    return decoded(kv.get("value", "")), Revision(int(kv["mod_revision"]))


def key_of(prefix: str, run_id: str) -> str:
    """Return the key of a job's register in etcd. It is unlike that of any other run id."""
    return f"{prefix}/jobs/{register_name(run_id)}"


def if_unchanged(key: str, revision: int) -> dict[str, str]:
    """Return a transaction's condition that the key, in base64, still has this mod revision.

    Revision 0: that there is no such key.
    """
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def number_given(answer: dict[str, Any]) -> int:
    """Return the version that a put gave its key: 1 if it created the key, then 2, 3 and so on.

    `answer` is that to the put, which has asked for the previous value (`prev_kv`).
    """
    return int(answer.get("prev_kv", {}).get("version", "0")) + 1


def swap_of_nothing(key: str) -> dict[str, Any]:
    """Return a transaction that needs the same as a swap, and can't store anything.

    It needs a quorum, the permissions and space; its condition is never true, because no version is
    below 0.
    """
    name = encoded(key)
    return {
        "compare": [{"key": name, "target": "VERSION", "result": "LESS", "version": "0"}],
        "success": [{"request_put": {"key": name}}],
        "failure": [{"request_range": {"key": name, "keys_only": True}}],
    }


def revision_of(answer: dict[str, Any]) -> int:
    """Return etcd's global revision at the time of the answer."""
    return int(answer["header"]["revision"])


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of etcd within the block into RendezvousConnectionError.

    They are AccessError, ParameterError and those of answers that do not parse. The caller may
    retry: an administrator may fix users and proxies.
    """
    try:
        yield
    except (AccessError, ParameterError) as error:
        raise RendezvousConnectionError(f"can't use etcd: {error}") from error
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise RendezvousConnectionError(
            f"etcd gave an answer that does not parse ({type(error).__name__}: {error})"
        ) from error
