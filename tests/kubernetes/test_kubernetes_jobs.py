"""A job by an API server of Kubernetes: any node may lead it, and any node may be lost. Real
agents, plain workers, a stand-in of the API server."""

from __future__ import annotations

from pathlib import Path

from tests.harness.cluster import Option
from tests.harness.leading_agents import drain_leader, leader_of, lose_leader
from tests.harness.mad_records import survives_mad_records
from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.stand_in import Pod, cluster_of, names

from rallypoint.register.kubernetes.backend import KubernetesRendezvousBackend, name_of


def test_L6_agents_that_lead_are_lost_one_after_another_while_tokens_are_replaced(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    """No worker is restarted but for a lost node; then the last leader is told to go."""
    waits: dict[str, Option] = {"lease": 30, "conf": "last_call_timeout=20"}
    with cluster_of(tmp_path, pod, "job", "1:4", **waits) as cluster:
        agents = [cluster.agent(name) for name in "abcd"]
        first = cluster.wait_workers(4, round=0)
        leader_of(*agents)
        pod.rotate()
        lose_leader(cluster, agents, first)
        pod.rotate()
        drain_leader(cluster, agents, "--rdzv-conf", pod.conf())
    assert names(api) == [name_of("job")]


def test_L9_a_leader_writes_its_record_again_over_a_mad_one(tmp_path: Path, pod: Pod) -> None:
    def open_register(token: bytes) -> KubernetesRendezvousBackend:
        return KubernetesRendezvousBackend(pod.config(), "mad", token)

    with cluster_of(tmp_path, pod, "mad", "3", lease=30) as cluster:
        survives_mad_records(cluster, "mad", open_register)
