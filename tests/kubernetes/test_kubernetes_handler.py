"""Nodes that a program brings together by a backend in Kubernetes, without a coordinator."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.stand_in import Pod, names

from rallypoint.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from rallypoint.elastic.stores.file_store import FileStore
from rallypoint.register.kubernetes.backend import KubernetesRendezvousBackend, name_of


def test_three_nodes_agree_on_their_ranks_by_a_config_map(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    store = FileStore(str(tmp_path / "store"), 3)
    handlers = [
        DynamicRendezvousHandler.from_backend(
            "job", store, KubernetesRendezvousBackend(pod.config(), "job"), 3, 3, "127.0.0.1"
        )
        for _ in range(3)
    ]
    try:
        with ThreadPoolExecutor(3) as pool:
            found = [*pool.map(lambda handler: handler.next_rendezvous(), handlers)]
        assert sorted(info.rank for info in found) == [0, 1, 2]
        assert {info.world_size for info in found} == {3}
        assert {handler.get_backend() for handler in handlers} == {"kubernetes"}
    finally:
        for handler in handlers:
            handler.shutdown()
    assert names(api) == [name_of("job")]
