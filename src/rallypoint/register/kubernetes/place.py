"""The API server of Kubernetes by which a job's register is kept, as the nodes of the job use it;
and how it is rid of what jobs have left in a namespace, a week or more after their last change.

Clocks of machines are not compared: the API server says when a ConfigMap was changed last, and what
time it is there, in the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from rallypoint.core.settings import HOLD_S
from rallypoint.errors import AccessError, RallypointError, RendezvousConnectionError, UsageError
from rallypoint.register.kubernetes.api_server import LIMIT_S, ApiServer, Reply
from rallypoint.register.kubernetes.backend import LABELS, KubernetesRendezvousBackend
from rallypoint.wire.kubernetes_config import KubernetesConfig

BACKEND = "--rdzv-backend kubernetes"
RETENTION = timedelta(days=7)
PAGE = 500
MAX_PAGES = 200


class KubernetesPlace:
    """A `places.Place`."""

    def __init__(self, config: KubernetesConfig, run_id: str, hold_s: float = HOLD_S) -> None:
        """`hold_s`: so long a leader may act that can't write."""
        self._config, self._run_id = config, run_id
        self._limit_s = min(LIMIT_S, hold_s / 2)

    @property
    def name(self) -> str:
        """What is waited for."""
        return f"the API server {self._config}"

    def prepare(self) -> list[str]:
        """See that the register can be read and written. A person can mend what raises UsageError;
        anything else is worth waiting for."""
        try:
            KubernetesRendezvousBackend(self._config, self._run_id).check()
        except (AccessError, UsageError) as error:
            raise UsageError(f"{BACKEND}: {error}") from error
        return []

    def unanswered(self, seconds: float, why: str) -> str:
        """What a person reads who has waited so long."""
        said = why or f"the API server {self._config} does not answer"
        return (
            f"{BACKEND}: waited {seconds:g} s: {said}; see that it runs, and is reached from here"
        )

    def is_the_same(self) -> str:
        """See `places.Place`."""
        namespace = self._config.namespace or "that each pod is in"
        return f"they have the same API server ({self._config}) and namespace ({namespace})"

    def open(self, token: bytes | None) -> KubernetesRendezvousBackend:
        """The register, under the job's token."""
        return KubernetesRendezvousBackend(self._config, self._run_id, token, self._limit_s)

    def sweep(self) -> None:
        """Remove what other jobs have left long ago, as far as that is possible."""
        with suppress(RallypointError, KeyError, ValueError, TypeError):
            sweep(ApiServer(self._config))


def sweep(server: ApiServer, page: int = PAGE) -> int:
    """Returns how many registers were removed. `page`: so many are asked for at once. Raises as
    `ApiServer.call`, and what an answer that does not parse raises."""
    found = 0
    for reply in listed(server, page):
        for item in reply.items:
            metadata = item["metadata"]
            changed_at = _changed_at(metadata)
            if changed_at is None or reply.at is None or reply.at - changed_at < RETENTION:
                continue
            only = {name: metadata[name] for name in ("uid", "resourceVersion")}
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only}
            found += server.call("DELETE", metadata["name"], options).status == 200
    return found


def listed(server: ApiServer, page: int = PAGE) -> Iterator[Reply]:
    """All registers, page by page. Raises as `sweep`, also for a list that does not end."""
    query = {
        "labelSelector": ",".join(f"{name}={value}" for name, value in LABELS.items()),
        "limit": str(page),
    }
    following = ""
    for _ in range(MAX_PAGES):
        reply = server.call("GET", query=query | ({"continue": following} if following else {}))
        if reply.status != 200:  # 410: it is too old to be continued.
            return
        yield reply
        following = reply.body.get("metadata", {}).get("continue") or ""
        if not following:
            return
    raise RendezvousConnectionError(f"a list of registers has more than {MAX_PAGES} pages")


def _changed_at(metadata: dict[str, Any]) -> datetime | None:
    """None: the API server does not say, and it may have been a moment ago."""
    fields = metadata.get("managedFields")
    if not fields:
        return None
    return max(datetime.fromisoformat(entry["time"]) for entry in fields)
