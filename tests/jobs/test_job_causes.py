"""Why a job of several nodes ends, or goes on: the first cause, and what success is (A3, A4)."""

from __future__ import annotations

from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.proc import state_of

LOST_PEER = "raise ConnectionResetError('Connection reset by peer')"


def verdict_without_time(agent: AgentProcess) -> dict[str, object]:
    return {name: value for name, value in agent.verdict.items() if name != "elapsed_s"}


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


def test_A3_a_failing_peer_ends_the_job_at_once_with_one_cause_for_all(cluster: Cluster) -> None:
    """A healthy node learns it, and why, although its own workers sleep (A7 there)."""
    agents = cluster.agents("a", "b", "c", nnodes=3)
    workers = cluster.wait_workers(3)
    cluster.order("print('out of cheese', file=sys.stderr); sys.exit(3)", rank=1)
    assert [agent.wait_exit() for agent in agents] == [1, 1, 1]
    verdicts = [verdict_without_time(agent) for agent in agents]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    cause = verdicts[0]["cause"]
    assert isinstance(cause, dict)
    told = {name: cause[name] for name in ("node", "rank", "local_rank", "pid", "exit_code")}
    expected = {"node": "b", "rank": 1, "local_rank": 0, "pid": workers[1].pid, "exit_code": 3}
    assert told == expected
    assert cause["detail"] == ["out of cheese"]
    assert not any(worker.is_alive for worker in workers)


def test_A3_a_lost_node_outranks_its_peers_errors_and_costs_no_budget(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b")
    b.kill()
    cluster.order(LOST_PEER, round=0, node="a")
    (worker,) = cluster.wait_workers(1, round=1)
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert "node b was lost" in a.wait_event("round_joined", round=1).message
    cluster.end_well(a)


def test_A3_a_fatal_signal_outranks_an_exception_that_tells_of_it(cluster: Cluster) -> None:
    """The agent looks away meanwhile, so that it can't tell who was first; one is collateral."""
    a, b = cluster.agents("a", "b", nproc=2)
    workers = cluster.wait_workers(4)
    b.pause()
    cluster.order(LOST_PEER, rank=2)
    wait_until(lambda: not workers[2].is_alive, "rank 2 to fail")
    cluster.order("os.kill(os.getpid(), signal.SIGKILL)", rank=3)
    wait_until(lambda: not workers[3].is_alive, "rank 3 to die")
    b.resume()
    assert [a.wait_exit(), b.wait_exit()] == [1, 1]
    for agent in (a, b):
        assert agent.verdict["cause"]["rank"] == 3
        assert agent.verdict["cause"]["signal"] == "SIGKILL"
        assert agent.verdict["collateral"] == 1


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
