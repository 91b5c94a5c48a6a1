"""A register in etcd: one key per job, whose mod revision is the token of a version.

A swap is a transaction that stores if the key still has that revision, and else reads what is
there; a lost answer is no matter (`swapping_backend.py`). A late request finds another revision and
stores nothing. The key has no lease, since a record must
outlive whoever wrote it.

What is assumed of etcd: it is one cluster, which is not reset to an older backup while jobs run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import Struct

from rallypoint.errors import AccessError, ParameterError, RecordError, RendezvousConnectionError
from rallypoint.register.contract import Token
from rallypoint.register.directory.backend import job_directory
from rallypoint.register.etcd.gateway import ATTEMPT_S, Gateway, decoded, encoded
from rallypoint.register.swapping import Swapped, SwappingBackend, VersionFound
from rallypoint.register.version_file import UnreadableVersionError, VersionFile, VersionFormat
from rallypoint.wire.etcd_config import EtcdConfig

MAX_STATE = 1 << 20
"""Bytes. etcd takes requests of 1.5 MiB as a rule."""
_AGAIN_S = 0.5


class Revision(Struct, frozen=True):
    """Which version of a key this is."""

    number: int


class EtcdBackend(SwappingBackend):
    """The register of one job. A wait for a change has connections of its own."""

    store, max_state, token_type = "etcd", MAX_STATE, Revision

    def __init__(
        self,
        config: EtcdConfig,
        run_id: str,
        token: bytes | None = None,
        attempt_s: float = ATTEMPT_S,
    ) -> None:
        """`token`: the job's, by which versions are authenticated; None: they are not.
        `attempt_s`: after so long another member is asked. Does no I/O."""
        if not run_id:
            raise ParameterError("run_id='': a register needs the name of its job")
        self._key = key_of(config.prefix, run_id)
        self._layout = VersionFormat(run_id, token, "another etcd_prefix")
        self._gateway, self._watching = Gateway(config, attempt_s), Gateway(config, attempt_s)
        self._is_stopped = False

    @property
    def name(self) -> str:
        return "etcd"

    def _read(self) -> VersionFound | None:
        return self._version(self._gateway.call("/v3/kv/range", {"key": encoded(self._key)}))

    def _swap(self, version: VersionFile, token: Token | None) -> Swapped:
        key = encoded(self._key)
        put = {"key": key, "value": encoded(self._layout.encode(self._key, version))}
        answer = self._gateway.call(
            "/v3/kv/txn",
            {
                "compare": [if_unchanged(key, 0 if token is None else token.number)],
                "success": [{"request_put": put | {"lease": str(self._lease())}}],
                "failure": [{"request_range": {"key": key}}],
            },
        )
        if answer.get("succeeded"):
            return Swapped(Revision(revision_of(answer)))
        there = self._version(answer["responses"][0]["response_range"])
        return Swapped(None, there, self._gateway.has_repeated)

    def _explained(self) -> AbstractContextManager[None]:
        return explained()

    def try_writing(self) -> None:
        """See that etcd would take a version. Stores nothing; raises as `get_state`."""
        with explained():
            self._gateway.call("/v3/kv/txn", swap_of_nothing(self._key))

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Until the key has another revision. A watch only wakes: what it says is not read."""
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
        """End a wait in another thread."""
        self._is_stopped = True
        self._watching.abort()

    def _lease(self) -> int:
        """Which lease of etcd the next version is on; 0: it stays."""
        return 0

    def _version(self, answer: dict[str, Any]) -> VersionFound | None:
        kvs = answer.get("kvs")
        if not kvs:
            return None
        (kv,) = kvs
        data = decoded(kv.get("value", ""))
        try:
            version = self._layout.decode(self._key, data)
        except UnreadableVersionError as error:
            raise RecordError(f"the key {self._key} in etcd {error}") from error
        return version, Revision(int(kv["mod_revision"]))


def key_of(prefix: str, run_id: str) -> str:
    """Where the register of a job is; the name is unlike that of any other run id."""
    return f"{prefix}/jobs/{job_directory(run_id)}"


def if_unchanged(key: str, revision: int) -> dict[str, str]:
    """The condition of a transaction; 0: that there is no such key."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def number_given(answer: dict[str, Any]) -> int:
    """How often a key has been put, this time included: 1, 2, 3 and so on for those who put it."""
    return int(answer.get("prev_kv", {}).get("version", "0")) + 1


def swap_of_nothing(key: str) -> dict[str, Any]:
    """A transaction that needs all that a swap needs (a quorum, the permissions, space), and can't
    store anything: no version is below 0."""
    name = encoded(key)
    return {
        "compare": [{"key": name, "target": "VERSION", "result": "LESS", "version": "0"}],
        "success": [{"request_put": {"key": name}}],
        "failure": [{"request_range": {"key": name, "keys_only": True}}],
    }


def revision_of(answer: dict[str, Any]) -> int:
    """Of the whole of etcd when it answered."""
    return int(answer["header"]["revision"])


@contextmanager
def explained() -> Iterator[None]:
    """While a job runs nothing is refused for good: users and proxies are mended."""
    try:
        yield
    except (AccessError, ParameterError) as error:
        raise RendezvousConnectionError(f"can't use etcd: {error}") from error
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise RendezvousConnectionError(
            f"etcd gave an answer that does not parse ({type(error).__name__}: {error})"
        ) from error
