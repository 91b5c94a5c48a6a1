"""A job by an API server of Kubernetes: any node may lead it, and any node may be lost. Real
agents, plain workers, a stand-in of the API server."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.harness.cluster import Option, wait_until
from tests.harness.commands import drain
from tests.harness.leading_agents import leader_of, leads
from tests.harness.mad_records import survives_mad_records
from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.stand_in import Pod, cluster_of, names

from rallypoint.cli.exit_codes import SIGNALLED
from rallypoint.register.kubernetes.backend import KubernetesRendezvousBackend, name_of


def test_L6_agents_that_lead_are_lost_one_after_another_while_tokens_are_replaced(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    """No worker is restarted but for a lost node; then the last leader is told to go."""
    waits: dict[str, Option] = {"lease": 30, "conf": "last_call_timeout=20"}
    with cluster_of(tmp_path, pod, "job", "1:4", **waits) as cluster:
        agents = [cluster.agent(name) for name in "abcd"]
        first = cluster.wait_workers(4, round=0)
        led_by = leader_of(*agents)
        pod.rotate()

        lost = led_by.name
        led_by.kill()
        agents.remove(led_by)
        for agent in agents:
            agent.wait_event("round_ended", f"node {lost} was lost")
        cluster.wait_workers(3, round=1)
        assert not any(worker.is_alive for worker in first)
        led_by = leader_of(*agents)
        # Its guard has written that.
        led_by.wait_event("taken_over", f"the one that led has died ({lost})")
        pod.rotate()

        leaving = drain(cluster, led_by.name, "--rdzv-conf", pod.conf())
        assert (leaving.returncode, leaving.stderr) == (0, "")
        assert led_by.wait_exit() == SIGNALLED + signal.SIGTERM
        agents.remove(led_by)
        wait_until(lambda: all(a.workers(2) or a.workers(3) for a in agents), "workers")
        wait_until(lambda: any(leads(agent) for agent in agents), "the next leader")
        cluster.end_well(*agents)
        assert agents[0].verdict["restarts"] == 0
        assert max(worker.round for worker in cluster.workers()) <= 3
    assert names(api) == [name_of("job")]


def test_L9_a_leader_writes_its_record_again_over_a_mad_one(tmp_path: Path, pod: Pod) -> None:
    def open_register(token: bytes) -> KubernetesRendezvousBackend:
        return KubernetesRendezvousBackend(pod.config(), "mad", token)

    with cluster_of(tmp_path, pod, "mad", "3", lease=30) as cluster:
        survives_mad_records(cluster, "mad", open_register)
