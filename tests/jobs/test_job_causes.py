"""Why a job of several nodes ends, or goes on: the first cause, and what success is (A3, A4)."""

from __future__ import annotations

from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.proc import state_of

LOST_PEER = "raise ConnectionResetError('Connection reset by peer')"


def wait_asleep(agent: AgentProcess) -> None:
    """Until it waits for events: everything that it had to say has been sent."""
    wait_until(lambda: state_of(agent.pid) == "S", f"{agent.name} to wait")


def test_A2_the_budget_is_the_jobs_whichever_node_fails(cluster: Cluster) -> None:
    agents = cluster.running("a", "b", max_restarts=1)
    cluster.order("sys.exit(3)", round=0, node="a")
    workers = cluster.wait_workers(2, round=1)
    assert [worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers] == ["1", "1"]
    cluster.order("sys.exit(4)", round=1, node="b")
    assert [agent.wait_exit() for agent in agents] == [1, 1]
    for agent in agents:
        told = agent.verdict
        assert (told["restarts"], told["max_restarts"]) == (1, 1)
        assert (told["cause"]["node"], told["cause"]["exit_code"]) == ("b", 4)
    assert len(cluster.workers()) == 4


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


def test_A4_a_node_lost_after_its_success_has_succeeded(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b")
    cluster.order("sys.exit(0)", node="b")
    b.wait_event("succeeded")
    wait_asleep(b)
    b.kill()
    a.wait_event("other_node_lost", "node b was lost", round=0)
    cluster.order("sys.exit(0)", node="a", round=0)
    assert a.wait_exit() == 0
    assert a.workers(1) == []
    assert a.verdict["round"] == 0
