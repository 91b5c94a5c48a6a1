"""An etcd in which a job's register is kept, as the nodes of the job use it; and how it is rid of
what jobs have left there, a week or more after their last change.

etcd dates nothing, and clocks of machines are not compared. So a mark says which revision etcd had,
with a lease of a week that nothing else has: when the lease has ended, what has changed no later
than that revision is a week old. Then the next mark is set. The mark itself has no lease.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from rallypoint.core.settings import HOLD_S
from rallypoint.errors import AccessError, RallypointError, UsageError
from rallypoint.register.etcd.answers import next_key
from rallypoint.register.etcd.backend import (
    EtcdBackend,
    if_unchanged,
    key_of,
    revision_of,
    swap_of_nothing,
)
from rallypoint.register.etcd.gateway import ATTEMPT_S, Gateway, decoded, encoded
from rallypoint.wire.etcd_config import EtcdConfig

FLAG = "--rdzv-endpoint"
RETENTION_S = 7 * 86400
PAGE = 500
_REGISTER = re.compile(rb"rallypoint-.*-[0-9a-f]{32}")
_MARK = re.compile(rb"(\d{1,19}) (\d{1,19})")


class EtcdPlace:
    """A `places.Place`."""

    def __init__(self, config: EtcdConfig, run_id: str, hold_s: float = HOLD_S) -> None:
        """`hold_s`: so long a leader may act that can't write."""
        self._config, self._run_id = config, run_id
        self._attempt_s = min(ATTEMPT_S, hold_s / 5)

    @property
    def name(self) -> str:
        """What is waited for."""
        return f"etcd at {self._config}"

    def prepare(self) -> list[str]:
        """See that the register can be read and written. A person can mend what raises UsageError;
        anything else is worth waiting for."""
        check_access(self._config, key_of(self._config.prefix, self._run_id))
        return []

    def unanswered(self, seconds: float, why: str) -> str:
        """What a person reads who has waited so long."""
        said = why or "etcd does not answer"
        return f"{FLAG} {self._config}: waited {seconds:g} s: {said}; see that it runs there"

    def is_the_same(self) -> str:
        """See `places.Place`."""
        return f"{self._config} are the members of one etcd, and named by all of them"

    def open(self, token: bytes | None) -> EtcdBackend:
        """The register, under the job's token."""
        return EtcdBackend(self._config, self._run_id, token, self._attempt_s)

    def sweep(self) -> None:
        """Remove what other jobs have left long ago, as far as that is possible."""
        with suppress(RallypointError, KeyError, ValueError, TypeError):
            sweep(Gateway(self._config), self._config.prefix)


def check_access(config: EtcdConfig, key: str) -> None:
    """See that this key can be read and written. Raises as `EtcdPlace.prepare`."""
    try:
        Gateway(config).call("/v3/kv/txn", swap_of_nothing(key))
    except (AccessError, UsageError) as error:
        raise UsageError(f"{FLAG} {config}: {error}") from error


def sweep(gateway: Gateway, prefix: str, page: int = PAGE) -> int:
    """Returns how many registers were removed. `page`: so many keys are asked for at once. Raises
    as `Gateway.call`, and what an answer that does not parse raises."""
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
    """Registers that have not changed since this revision. What changes meanwhile stays."""
    first, end = f"{prefix}/jobs/".encode(), f"{prefix}/jobs0".encode()
    found = 0
    begin: bytes | None = first
    while begin is not None:
        page: dict[str, Any] = gateway.call(
            "/v3/kv/range",
            {
                "key": encoded(begin),
                "range_end": encoded(end),
                "limit": str(limit),
                "keys_only": True,
                "max_mod_revision": str(revision),
            },
        )
        for kv in page.get("kvs", []):
            if not _REGISTER.fullmatch(decoded(kv["key"]).removeprefix(first)):
                continue
            after = gateway.call(
                "/v3/kv/txn",
                {
                    "compare": [if_unchanged(kv["key"], int(kv["mod_revision"]))],
                    "success": [{"request_delete_range": {"key": kv["key"]}}],
                },
            )
            found += bool(after.get("succeeded"))
        begin = next_key(page, begin)
    return found
