"""An etcd that is away for longer than a leader's hold. With the default lease of 15 s a job acts
for up to 55 s without its register: the hold, and three leases."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.etcd.servers import Etcd, cluster_of
from tests.harness.leading_agents import hand_over_unnoticed, leader_of
from tests.harness.proxy import Proxy

pytestmark = [pytest.mark.fault, pytest.mark.executed]


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(40, {0, 1}), (180, {0, 1, 2})], ids=["unnoticed", "three minutes"]
)
def test_L2_without_a_quorum_a_job_goes_on_or_waits_and_knows_what_it_has_used(
    tmp_path: Path, three: Etcd, seconds: int, rounds: set[int]
) -> None:
    """A restart before is the only one that was charged: the next failure is one too many."""
    with cluster_of(tmp_path, three, f"job{seconds}", lease=15, max_restarts=1) as cluster:
        agents = [cluster.agent(name) for name in "abc"]
        cluster.wait_workers(3, round=0)
        cluster.order("sys.exit(3)", round=0, rank=1)
        running = cluster.wait_workers(3, round=1)
        lost = [number for number in range(3) if number != three.leader]
        for number in lost:
            three.kill(number)
        time.sleep(seconds)  # The outage is what is tested.
        leader_of(*agents).wait_event("not_recorded", "etcd has no leader")
        assert {worker.is_alive for worker in running} == {seconds < 55}
        for number in lost:
            three.start(number)
        three.wait_ready()
        cluster.wait_workers(3, round=max(rounds))
        cluster.order("sys.exit(3)", round=max(rounds), rank=2)
        assert [agent.wait_exit() for agent in agents] == [1, 1, 1]
        assert {worker.round for worker in cluster.workers()} == rounds
        assert agents[0].verdict["restarts"] == 1


def test_L2_a_leader_that_alone_does_not_reach_etcd_hands_over_and_no_worker_notices(
    tmp_path: Path, three: Etcd
) -> None:
    with Proxy(three.ports[0]) as proxy, cluster_of(tmp_path, three, "cut", "1:3") as cluster:
        cluster.options["rdzv_conf"] = "last_call_timeout=20"
        hand_over_unnoticed(cluster, proxy, rdzv_endpoint=f"127.0.0.1:{proxy.port}")
