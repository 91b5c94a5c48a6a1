"""The engine of etcd: all records under one prefix, by one connection.

And how old records are removed, a week or more after their last change.

A candidate looks at the record of each job every second. One range brings the records of all: each
of them has changed in the last two seconds, so a list of keys would not spare a read for each. The
record of a job that is alone here is read by itself.

etcd dates nothing, and clocks of machines are not compared. So a mark says which revision etcd had,
with a lease of a week that nothing else has: when the lease has ended, what has changed no later
than that revision is a week old. Then the next mark is set. The mark itself has no lease.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rallypoint.errors import RallypointError
from rallypoint.register.engines import Use, Wording
from rallypoint.register.etcd.answers import next_key
from rallypoint.register.etcd.backend import (
    EtcdBackend,
    explained,
    if_unchanged,
    key_of,
    revision_of,
    swap_of_nothing,
)
from rallypoint.register.etcd.gateway import ATTEMPT_S, Gateway, decoded, encoded
from rallypoint.register.etcd.parameters import read_etcd
from rallypoint.register.record import ChangedRecords, run_id_of
from rallypoint.register.version_file import is_register

RETENTION_S = 7 * 86400
SWEEP_PAGE = 500
PAGE = 200
"""The largest number of records in one answer; a record is usually below 1 KB."""
FRESH_S = 0.25
"""The seconds for which a reading of the records of all jobs is used again."""
_ATTEMPTS = 2.5
"""How many attempts at one member each fit into the wanted time limit of a call."""
_REGISTER = re.compile(rb"rallypoint-.*-[0-9a-f]{32}")
_MARK = re.compile(rb"(\d{1,19}) (\d{1,19})")


class EtcdEngine:
    """The engine that keeps records in etcd."""

    name = "etcd"

    def __init__(self, where: str, settings: Mapping[str, str], use: Use) -> None:
        self.config, self._run_id = read_etcd(where, settings), use.run_id
        self._attempt_s = min(ATTEMPT_S, use.limit_s / _ATTEMPTS)
        self.gateway = Gateway(self.config, self._attempt_s)
        """The client that all registers share for reads and writes, but not for waits. So a hanging
        member delays them only once."""
        self._jobs = f"{self.config.prefix}/jobs/"
        self._opened: set[str] = set()
        """The run ids of the registers that were opened."""
        self._changed = ChangedRecords(self._run_id_of)
        self._kvs: dict[str, dict[str, Any]] = {}
        """The key-value pairs of all jobs by key, as read at the monotonic time `_read_at`."""
        self._read_at = 0.0

    @property
    def where(self) -> str:
        return f"etcd at {self.config}"

    def prepare(self) -> list[str]:
        run_id, prefix = self._run_id, self.config.prefix
        key = key_of(prefix, run_id) if run_id else f"{self._jobs}rallypoint-"
        self.gateway.call("/v3/kv/txn", swap_of_nothing(key))
        return []

    def open(self, run_id: str, token: bytes | None) -> EtcdBackend:
        self._opened.add(run_id)
        return EtcdBackend(self.config, run_id, token, self._attempt_s, self)

    def sweep(self) -> None:
        with suppress(RallypointError, KeyError, ValueError, TypeError):
            sweep(self.gateway, self.config.prefix)

    def wording(self) -> Wording:
        same = f"{self.config} are the members of one etcd, and named by all of them"
        return Wording("see that it runs there", lambda: same)

    def changed(self) -> list[str]:
        try:
            with explained():
                return self._changed.look(self._registers())
        except RallypointError:
            return []

    def _registers(self) -> Iterator[tuple[str, str]]:
        for kv in self._range(keys_only=True):
            if is_register(name := _key_in(kv).removeprefix(self._jobs)):
                yield name, kv["mod_revision"]

    def newest(self, key: str, after: float) -> dict[str, Any] | None:
        """Return etcd's key-value pair of a job's record; None if there is none.

        It is read now if this engine has opened one register only. Else one reading of all records
        serves for `FRESH_S`, if it began after the monotonic time `after`.
        """
        if len(self._opened) < 2:
            return self._one(key)
        if self._read_at < max(after, time.monotonic() - FRESH_S):
            began_at = time.monotonic()
            self._kvs = {_key_in(kv): kv for kv in self._range()}
            self._read_at = began_at
        return self._kvs.get(key)

    def _one(self, key: str) -> dict[str, Any] | None:
        kvs = self.gateway.call("/v3/kv/range", {"key": encoded(key)}).get("kvs")
        return kvs[0] if kvs else None

    def _range(self, *, keys_only: bool = False) -> Iterator[dict[str, Any]]:
        end = f"{self.config.prefix}/jobs0"
        return _pages(self.gateway, self._jobs, end, {"limit": str(PAGE), "keys_only": keys_only})

    def _run_id_of(self, name: str) -> str:
        return run_id_of(name, lambda: _value_in(self._one(self._jobs + name) or {}))


def sweep(gateway: Gateway, prefix: str, page: int = SWEEP_PAGE) -> int:
    """Remove the registers unchanged since the mark in etcd, if it is a week old; return how many.

    A lease of a week shows that. Returns 0 while it lasts, or if there was no mark. Unless it
    lasts, this sets the next mark. `page` is the number of keys in one answer. Raises as
    `Gateway.call`, and UnreadableJsonError.
    """
    name = encoded(f"{prefix}/mark")
    answer = gateway.call("/v3/kv/range", {"key": name})
    now, found, mark_at = revision_of(answer), 0, 0
    if kvs := answer.get("kvs"):
        mark_at = int(kvs[0]["mod_revision"])
        mark = _MARK.fullmatch(decoded(kvs[0].get("value", "")))
        if mark is not None:
            if _lasts(gateway, int(mark[2])):
                return 0
            found = _remove_unchanged(gateway, prefix, int(mark[1]), page)
    granted = gateway.call("/v3/lease/grant", {"TTL": str(RETENTION_S)})
    value = encoded(f"{now} {granted['ID']}")
    after = gateway.call(
        "/v3/kv/txn",
        {
            "compare": [if_unchanged(name, mark_at)],
            "success": [{"request_put": {"key": name, "value": value}}],
        },
    )
    if not after.get("succeeded"):  # Another node was faster.
        gateway.call("/v3/lease/revoke", {"ID": granted["ID"]})
    return found


def _lasts(gateway: Gateway, lease: int) -> bool:
    answer = gateway.call("/v3/lease/timetolive", {"ID": str(lease)})
    return int(answer.get("TTL", "0")) > 0


def _remove_unchanged(gateway: Gateway, prefix: str, revision: int, limit: int) -> int:
    """Remove the registers unchanged since etcd had this global revision; return how many.

    `limit`: the number of keys in one answer.
    """
    first, found = f"{prefix}/jobs/", 0
    more = {"limit": str(limit), "keys_only": True, "max_mod_revision": str(revision)}
    for kv in _pages(gateway, first, f"{prefix}/jobs0", more):
        if not _REGISTER.fullmatch(decoded(kv["key"]).removeprefix(first.encode())):
            continue
        after = gateway.call(
            "/v3/kv/txn",
            {
                "compare": [if_unchanged(kv["key"], int(kv["mod_revision"]))],
                "success": [{"request_delete_range": {"key": kv["key"]}}],
            },
        )
        found += bool(after.get("succeeded"))
    return found


def _pages(
    gateway: Gateway, first: str, end: str, more: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield etcd's key-value pairs from the key `first` to before `end`; reads page by page.

    `more`: further fields of each request, such as `limit`.
    """
    begin: bytes | None = first.encode()
    while begin is not None:
        request = {"key": encoded(begin), "range_end": encoded(end), **more}
        page: dict[str, Any] = gateway.call("/v3/kv/range", request)
        yield from page.get("kvs", [])
        begin = next_key(page, begin)


def _key_in(kv: dict[str, Any]) -> str:
    return decoded(kv["key"]).decode("utf-8", "replace")


def _value_in(kv: dict[str, Any]) -> bytes:
    return decoded(kv.get("value", ""))
