"""The engine of Kubernetes: all ConfigMaps with records in one namespace.

By one connection; and how old records are removed, a week or more after their last change.

Clocks of machines are not compared: the API server says when a ConfigMap was changed last, and what
time it is there, in the same answer.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.register.engines import Use, Wording
from rallypoint.register.kubernetes.api_server import LIMIT_S, ApiServer, Reply
from rallypoint.register.kubernetes.backend import (
    KEY,
    LABELS,
    KubernetesRendezvousBackend,
    name_of,
)
from rallypoint.register.kubernetes.parameters import read_kubernetes
from rallypoint.register.record import ChangedRecords, run_id_of

RETENTION = timedelta(days=7)
PAGE = 500
MAX_PAGES = 200


class KubernetesEngine:
    """The engine that keeps records in ConfigMaps of Kubernetes."""

    name = "kubernetes"

    def __init__(self, where: str, settings: Mapping[str, str], use: Use) -> None:
        self.config, self._run_id = read_kubernetes(where, settings), use.run_id
        self._limit_s = min(LIMIT_S, use.limit_s)
        self._server = ApiServer(self.config, self._limit_s)
        self._changed = ChangedRecords(self._run_id_of)

    @property
    def where(self) -> str:
        return f"the API server {self.config}"

    def prepare(self) -> list[str]:
        self.open(self._run_id or "any", None).check()
        return []

    def open(self, run_id: str, token: bytes | None) -> KubernetesRendezvousBackend:
        more = self._limit_s, self._server
        return KubernetesRendezvousBackend(self.config, run_id, token, *more)

    def sweep(self) -> None:
        with suppress(RallypointError, KeyError, ValueError, TypeError):
            sweep(self._server)

    def wording(self) -> Wording:
        namespace = self.config.namespace or "that each pod is in"
        same = f"they have the same API server ({self.config}) and namespace ({namespace})"
        return Wording("see that it runs, and is reached from here", lambda: same)

    def changed(self) -> list[str]:
        try:
            return self._changed.look(self._registers())
        except (RallypointError, KeyError, ValueError, TypeError):
            return []

    def _registers(self) -> Iterator[tuple[str, str]]:
        for page in listed(self._server):
            for item in page.items:
                yield item["metadata"]["name"], item["metadata"]["resourceVersion"]

    def _run_id_of(self, name: str) -> str:
        with suppress(KeyError, ValueError, TypeError):
            return run_id_of(name, lambda: self._stored(name), name_of)
        return ""

    def _stored(self, name: str) -> bytes:
        return b64decode(self._server.call("GET", name).body["binaryData"][KEY], validate=True)


def sweep(server: ApiServer, page: int = PAGE) -> int:
    """Remove the registers that have not changed for a week or more; return how many.

    One whose last change is not dated stays. `page` is the number of objects in one answer. Raises
    as `listed`, and KeyError, ValueError or TypeError for objects that can't be read.
    """
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
    """Yield the answers with the list of all registers, one for each page: only their metadata.

    Ends early if a list is too old to be continued. Raises as `ApiServer.call`, and
    RendezvousConnectionError if it goes on after `MAX_PAGES` pages.
    """
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
    """Return when an object was last changed; None: unknown, so it may have been a moment ago."""
    fields = metadata.get("managedFields")
    if not fields:
        return None
    return max(datetime.fromisoformat(entry["time"]) for entry in fields)
