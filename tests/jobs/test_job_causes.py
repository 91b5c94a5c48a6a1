"""Why a job of several nodes ends, or goes on: the first cause, and what success is (A3, A4)."""

from __future__ import annotations

from tests.harness.cluster import Cluster

LOST_PEER = "raise ConnectionResetError('Connection reset by peer')"


def test_A3_a_lost_node_outranks_its_peers_errors_and_costs_no_budget(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b")
    b.kill()
    cluster.order(LOST_PEER, round=0, node="a")
    (worker,) = cluster.wait_workers(1, round=1)
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert "node b was lost" in a.wait_event("round_joined", round=1).message
    cluster.end_well(a)


def test_A4_an_early_finisher_waits_and_is_run_again(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", max_restarts=1)
    cluster.order("sys.exit(0)", round=0, node="b")
    b.wait_event("succeeded", round=0)
    cluster.order("sys.exit(3)", round=0, node="a")
    workers = cluster.wait_workers(2, round=1)
    assert [worker.node for worker in workers] == ["a", "b"]
    cluster.end_well(a, b)
    assert a.verdict["restarts"] == 1
