"""An older record of a running job is put back into its register by somebody without the token, in
each kind of register."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.fault.etcd_leaders import EtcdLeaderCluster
from tests.fault.kubernetes_leaders import KubernetesLeaderCluster
from tests.fault.leaders import LeaderCluster
from tests.harness.cluster import AgentProcess, Worker, wait_until

from rallypoint.process.death_report import NEXT_LEADER_S

KINDS = {
    "directory": LeaderCluster,
    "etcd": EtcdLeaderCluster,
    "kubernetes": KubernetesLeaderCluster,
}
BEATS = 3
"""The record that is put back is older by so many."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[LeaderCluster]:
    return KINDS[request.param]


def started(cluster: LeaderCluster) -> list[AgentProcess]:
    """Three agents whose first round has begun."""
    cluster.options["rdzv_conf"] = f"{cluster.conf}last_call_timeout=30"
    return cluster.running(*"abc", hosts=None)


def wait_beats(cluster: LeaderCluster) -> None:
    """Wait until the leader has written its record so many times more."""
    record = cluster.record()
    assert record is not None
    first = record.beat
    wait_until(lambda: (r := cluster.record()) and r.beat >= first + BEATS, "the leader to write")


def second_round(cluster: LeaderCluster) -> tuple[dict[str, bytes], list[Worker]]:
    """What was stored in the first round, and the workers of the second one, which has cost the
    only restart."""
    older = cluster.stored()
    os.kill(cluster.workers()[2].pid, signal.SIGKILL)
    workers = cluster.wait_workers(3, round=1)
    wait_beats(cluster)
    return older, workers


def check_two_rounds(cluster: LeaderCluster) -> None:
    """The job that has ended had two rounds, and every node was in the same life of it."""
    workers = cluster.workers()
    assert [worker.round for worker in workers] == [0, 0, 0, 1, 1, 1]
    assert len({worker.env["RALLYPOINT_INCARNATION"] for worker in workers}) == 1
    for agent in cluster.all_agents:
        assert agent.verdict["restarts"] == 1


@pytest.mark.parametrize("times", [1, 20])
def test_L9_no_worker_notices_that_an_older_record_is_put_back_again_and_again(
    tmp_path: Path, kind: type[LeaderCluster], times: int
) -> None:
    """The record of the first round is put back so often while the second one runs."""
    with kind(tmp_path, *"abc", nnodes="3", max_restarts=1, lease=10) as cluster:
        agents = started(cluster)
        older, workers = second_round(cluster)
        for number in range(times):
            cluster.put_back(older)
            time.sleep(0.05 + number * 0.03)  # Also at the moment when the leader writes.
        wait_until(lambda: cluster.epoch() > 1, "the leader to claim the job again")
        wait_beats(cluster)
        assert all(worker.is_alive for worker in workers)
        cluster.end_well(*agents)
        check_two_rounds(cluster)


def test_L9_the_one_agent_that_lives_keeps_rounds_from_running_twice(
    tmp_path: Path, kind: type[LeaderCluster]
) -> None:
    """The leader and another agent are killed, an older record is put back, and both are started
    again: the job goes on, in a round that has not run yet."""
    with kind(tmp_path, *"abc", nnodes="3", max_restarts=0, lease=4) as cluster:
        started(cluster)
        older = cluster.stored()
        leader = cluster.wait_leader()
        other, survivor = [node for node in cluster.all_agents if node is not leader]
        other.kill()
        again = [cluster.agent(other.name)]
        cluster.wait_workers(3, round=1)
        for node in (leader, again[0]):
            node.kill()
        cluster.put_back(older)
        agents = [survivor, *(cluster.agent(node.name) for node in (leader, other))]
        cluster.wait_workers(3, round=2)
        cluster.end_well(*agents)
        told = [(w.env["RALLYPOINT_INCARNATION"], w.round, w.rank) for w in cluster.workers()]
        assert len(told) == len(set(told)) == 9, told
        assert survivor.verdict["restarts"] == 0
        # The guards of the dead look for the next leader, also if they are late.
        wait_until(lambda: not cluster.processes(), "the guards to end", NEXT_LEADER_S + 10.0)
