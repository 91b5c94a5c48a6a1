"""The registers of all jobs under one prefix of an etcd, for a process that is no node of any
(`rallypoint serve`). One thread uses them, and they share a connection: a member that hangs costs
one wait, and not one for each job.

A candidate looks at the record of each job every second. One range brings the records of all: each
of them has changed in the last two seconds, so a list of keys would not spare a read for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from rallypoint.core.settings import HOLD_S
from rallypoint.errors import RallypointError
from rallypoint.register.contract import Token
from rallypoint.register.directory.backend import job_directory
from rallypoint.register.directory.store import is_register, readable_run_id, recorded_run_id
from rallypoint.register.etcd.answers import next_key
from rallypoint.register.etcd.backend import EtcdBackend, Revision, explained
from rallypoint.register.etcd.gateway import ATTEMPT_S, Gateway, decoded, encoded
from rallypoint.register.etcd.place import check_access, sweep
from rallypoint.register.version_file import UnreadableVersionError, UnsealedFormat
from rallypoint.wire.etcd_config import EtcdConfig

PAGE = 200
"""So many records, of less than 1 KB as a rule, are asked for at once."""
FRESH_S = 0.25
"""What was read so lately is not read again for another job."""


class EtcdRegisters:
    """`places.Registers`."""

    def __init__(self, config: EtcdConfig, hold_s: float = HOLD_S) -> None:
        """`hold_s`: so long a leader may act that can't write. Does no I/O."""
        self._config = config
        self._gateway = Gateway(config, min(ATTEMPT_S, hold_s / 5))
        self._jobs = f"{config.prefix}/jobs/"
        self._revisions: dict[str, int] = {}
        """By name, as of the last call of `changed`."""
        self._kvs: dict[str, dict[str, Any]] = {}
        """By key, as of `_read_at`."""
        self._read_at = 0.0

    @property
    def name(self) -> str:
        """Where jobs are kept."""
        return f"etcd at {self._config}"

    def prepare(self) -> list[str]:
        """See `EtcdPlace.prepare`."""
        check_access(self._config, f"{self._jobs}rallypoint-")
        return []

    def open(self, run_id: str, token: bytes | None) -> EtcdBackend:
        """The register of one job."""
        return _Shared(self, self._config, run_id, token)

    def sweep(self) -> None:
        """See `EtcdPlace.sweep`."""
        with suppress(RallypointError, KeyError, ValueError, TypeError):
            sweep(self._gateway, self._config.prefix)

    def life_locks(self) -> None:
        """See `places.Registers`, also for `changed`."""

    def changed(self) -> list[str]:
        seen, found = dict[str, int](), []
        try:
            with explained():
                for kv in self._range(keys_only=True):
                    name = decoded(kv["key"]).decode("utf-8", "replace").removeprefix(self._jobs)
                    revision = int(kv["mod_revision"])
                    if not is_register(name):
                        continue
                    if self._revisions.get(name) != revision:
                        if not (run_id := readable_run_id(name) or self._recorded(name)):
                            continue  # The record of a job that has just begun does not name it.
                        found.append(run_id)
                    seen[name] = revision
        except RallypointError:
            return []
        self._revisions = seen
        return found

    def newest(self, key: str, after: float) -> dict[str, Any] | None:
        """What is stored under the key of a job, read after this time of the monotonic clock."""
        if self._read_at < max(after, time.monotonic() - FRESH_S):
            began_at = time.monotonic()
            self._kvs = {decoded(kv["key"]).decode("utf-8", "replace"): kv for kv in self._range()}
            self._read_at = began_at
        return self._kvs.get(key)

    @property
    def gateway(self) -> Gateway:
        """All use this one."""
        return self._gateway

    def _range(self, *, keys_only: bool = False) -> Iterator[dict[str, Any]]:
        begin: bytes | None = self._jobs.encode()
        end = f"{self._config.prefix}/jobs0".encode()
        while begin is not None:
            page: dict[str, Any] = self._gateway.call(
                "/v3/kv/range",
                {
                    "key": encoded(begin),
                    "range_end": encoded(end),
                    "limit": str(PAGE),
                    "keys_only": keys_only,
                },
            )
            yield from page.get("kvs", [])
            begin = next_key(page, begin)

    def _recorded(self, name: str) -> str:
        request = {"key": encoded(self._jobs + name)}
        kvs = self._gateway.call("/v3/kv/range", request).get("kvs", [])
        with suppress(RallypointError, UnreadableVersionError):
            for kv in kvs:
                version = UnsealedFormat().decode("", decoded(kv.get("value", "")))
                run_id = recorded_run_id(version.content)
                return run_id if job_directory(run_id) == name else ""
        return ""


class _Shared(EtcdBackend):
    """Reads what was read for all."""

    def __init__(
        self, registers: EtcdRegisters, config: EtcdConfig, run_id: str, token: bytes | None
    ) -> None:
        super().__init__(config, run_id, token)
        self._registers, self._gateway = registers, registers.gateway
        self._written_at = 0.0
        """What was read before that is old."""

    def get_state(self) -> tuple[bytes, Revision] | None:
        with explained():
            kv = self._registers.newest(self._key, self._written_at)
            there = self._version({} if kv is None else {"kvs": [kv]})
        return None if there is None else (there[0].content, there[1])

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        try:
            return super().set_state(state, token)
        finally:
            self._written_at = time.monotonic()
