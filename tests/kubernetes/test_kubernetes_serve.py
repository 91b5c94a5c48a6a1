"""`rallypoint serve --candidate` by the records of jobs in Kubernetes: real coordinators, agents
and workers, a stand-in of the API server."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.harness.cluster import AgentProcess, Cluster, free_port
from tests.harness.engines import kubernetes_engine, write_record
from tests.harness.leading_agents import leader_of
from tests.kubernetes.stand_in import Pod, cluster_of

from rallypoint.register.kubernetes.parameters import KubernetesConfig


@pytest.mark.fault
@pytest.mark.executed
def test_L1_a_candidate_takes_over_from_a_killed_node_and_another_one_from_it(
    tmp_path: Path, pod: Pod
) -> None:
    with cluster_of(tmp_path, pod, "Job_1", "1:2", conf="last_call_timeout=600") as cluster:
        agents = [cluster.agent(name) for name in "ab"]
        cluster.wait_workers(2, round=0)
        first = candidate_of(cluster, pod)
        leader = leader_of(*agents)
        leader.kill()
        agents.remove(leader)
        first.wait_event("taken_over", "job Job_1: took over round 0 with 1 of 2 nodes")
        (worker,) = cluster.wait_workers(1, round=1)
        second = candidate_of(cluster, pod)
        first.signal(signal.SIGTERM)
        second.wait_event("taken_over", "job Job_1: took over round 1 with 1 of 1 node")
        assert worker.is_alive
        cluster.end_well(*agents)


def candidate_of(cluster: Cluster, pod: Pod) -> AgentProcess:
    """It is listed when this returns."""
    namespace = str(cluster.options["rdzv_endpoint"])
    where = ("--rdzv-backend", "kubernetes", "--rdzv-endpoint", namespace)
    conf = ("--rdzv-conf", pod.conf())
    candidate = cluster.serve(*where, *conf, "--candidate", port=free_port())
    candidate.wait_event("waits_to_lead", "job Job_1: ready to take over from 127.0.0.1:")
    return candidate


def test_L1_jobs_are_found_by_their_registers_when_these_have_changed(
    config: KubernetesConfig,
) -> None:
    registers = kubernetes_engine(config)
    assert registers.prepare() == []
    registers.changed()
    foreign, backend = registers.open("foreign", None), registers.open("A_Job", b"token")
    assert foreign.set_state(b"no record") is not None
    write_record(backend, "A_Job", 0)
    assert registers.changed() == []  # It does not name its job yet.
    for beat in (1, 2):
        write_record(backend, "A_Job", beat)
        assert registers.changed() == ["A_Job"]
        assert registers.changed() == []
