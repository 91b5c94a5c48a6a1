"""An API server that is away or slow while a job runs. With a lease of 5 s a job acts for up to
25 s without its register: the hold, and three leases."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.harness.leading_agents import hand_over_unnoticed, leader_of
from tests.harness.proxy import Proxy
from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.stand_in import Pod, cluster_of

pytestmark = [pytest.mark.fault, pytest.mark.executed]


@pytest.mark.parametrize(("seconds", "rounds"), [(15, {0}), (45, {0, 1})], ids=["short", "long"])
def test_without_an_api_server_a_job_goes_on_or_waits(
    tmp_path: Path, api: KubernetesApi, pod: Pod, seconds: int, rounds: set[int]
) -> None:
    """It is never lost, and what a restart costs is not charged."""
    with cluster_of(tmp_path, pod, f"job{seconds}") as cluster:
        agents = [cluster.agent(name) for name in "abc"]
        first = cluster.wait_workers(3, round=0)
        api.stop()
        time.sleep(seconds)  # The outage is what is tested.
        leader_of(*agents).wait_event("not_recorded", "Connection refused")
        assert {worker.is_alive for worker in first} == {seconds < 25}
        api.start()
        cluster.wait_workers(3, round=max(rounds))
        cluster.end_well(*agents)
        assert {worker.round for worker in cluster.workers()} == rounds
        assert agents[0].verdict["restarts"] == 0


def test_a_job_by_a_slow_api_server_is_only_slow(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    """Each answer takes 1.5 s, of a hold of 10 s. A leading node that dies is replaced."""
    with cluster_of(tmp_path, pod, "slow", "2:3", conf="last_call_timeout=20") as cluster:
        agents = [cluster.agent(name) for name in "abc"]
        first = cluster.wait_workers(3, round=0)
        api.slow_s = 1.5
        try:
            led_by = leader_of(*agents)
            time.sleep(15)  # Longer than the hold and the lease.
            assert all(worker.is_alive for worker in first)
            led_by.kill()
            agents.remove(led_by)
            second = cluster.wait_workers(2, round=1)
            assert {worker.node for worker in second} == {agent.name for agent in agents}
            cluster.end_well(*agents)
        finally:
            api.slow_s = 0.0
        assert agents[0].verdict["restarts"] == 0


def test_L2_a_leader_that_alone_does_not_reach_it_hands_over_and_no_worker_notices(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    with Proxy(api.port) as proxy, cluster_of(tmp_path, pod, "cut", "1:3") as cluster:
        cluster.options["rdzv_conf"] = f"{pod.conf()},last_call_timeout=20"
        own = pod.conf(proxy.port, last_call_timeout=20)
        hand_over_unnoticed(cluster, proxy, rdzv_conf=own)


def test_a_job_whose_rights_are_taken_away_for_a_while_goes_on(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    with cluster_of(tmp_path, pod, "rights") as cluster:
        agents = [cluster.agent(name) for name in "abc"]
        first = cluster.wait_workers(3, round=0)
        role = api.withdraw("Role", "training", "rallypoint")
        says = "may not update configmaps in the namespace training: `rallypoint generate rbac"
        leader_of(*agents).wait_event("not_recorded", says)
        api.apply(role)
        leader_of(*agents).wait_event("recorded_again")
        assert all(worker.is_alive for worker in first)
        cluster.end_well(*agents)
        assert {worker.round for worker in cluster.workers()} == {0}
