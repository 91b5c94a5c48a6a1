"""The registers of all jobs in one namespace of Kubernetes, for a process that is no node of any
(`rallypoint serve`). One thread uses them, and they share a connection."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress

from rallypoint.core.settings import HOLD_S
from rallypoint.errors import RallypointError, RecordError
from rallypoint.register.directory.store import recorded_run_id
from rallypoint.register.kubernetes.api_server import LIMIT_S, ApiServer, Object
from rallypoint.register.kubernetes.backend import KEY, KubernetesRendezvousBackend, name_of
from rallypoint.register.kubernetes.place import KubernetesPlace, listed, sweep
from rallypoint.register.version_file import UnreadableVersionError, UnsealedFormat
from rallypoint.wire.kubernetes_config import KubernetesConfig


class KubernetesRegisters:
    """`places.Registers`."""

    def __init__(self, config: KubernetesConfig, hold_s: float = HOLD_S) -> None:
        """`hold_s`: so long a leader may act that can't write. Does no I/O."""
        self._config = config
        self._server = ApiServer(config, min(LIMIT_S, hold_s / 2))
        self._versions: dict[str, str] = {}
        """By name, as of the last call of `changed`."""
        self._run_ids: dict[str, str] = {}
        """By name, as far as they are known."""

    @property
    def name(self) -> str:
        """Where jobs are kept."""
        return f"ConfigMaps of the API server {self._config}"

    def prepare(self) -> list[str]:
        """See `KubernetesPlace.prepare`."""
        return KubernetesPlace(self._config, "any").prepare()

    def open(self, run_id: str, token: bytes | None) -> KubernetesRendezvousBackend:
        """See `places.Registers`, also for the other methods."""
        return _Shared(self._server, self._config, run_id, token)

    def sweep(self) -> None:
        with suppress(RallypointError, KeyError, ValueError, TypeError):
            sweep(self._server)

    def life_locks(self) -> None:
        """See `places.Registers`."""

    def changed(self) -> list[str]:
        seen: dict[str, str] = {}
        found: list[str] = []
        try:
            for item in self._items():
                name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
                if self._versions.get(name) != version:
                    if not (run_id := self._run_id(name)):
                        continue  # The record of a job that has just begun does not name it.
                    found.append(run_id)
                seen[name] = version
        except (RallypointError, KeyError, ValueError, TypeError):
            return []
        self._versions = seen
        self._run_ids = {name: self._run_ids[name] for name in seen if name in self._run_ids}
        return found

    def _items(self) -> Iterator[Object]:
        """Their metadata."""
        for page in listed(self._server):
            yield from page.items

    def _run_id(self, name: str) -> str:
        """Of the job with this register; empty: it is not known."""
        if name in self._run_ids:
            return self._run_ids[name]
        with suppress(RecordError, UnreadableVersionError, KeyError, ValueError, TypeError):
            data = b64decode(self._server.call("GET", name).body["binaryData"][KEY], validate=True)
            run_id = recorded_run_id(UnsealedFormat().decode("", data).content)
            if run_id and name_of(run_id) == name:
                self._run_ids[name] = run_id
                return run_id
        return ""


class _Shared(KubernetesRendezvousBackend):
    def __init__(
        self, server: ApiServer, config: KubernetesConfig, run_id: str, token: bytes | None
    ) -> None:
        super().__init__(config, run_id, token)
        self._server = server
