"""A node leaves by plan (A4, A5, R3): the job's workers may save a checkpoint together first."""

from __future__ import annotations

import signal

import pytest
from tests.harness.cluster import AgentProcess, Cluster

LISTEN = "signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'saved\\n'), os._exit(0)))"
"""What a program does that saves a checkpoint and ends when it is told so."""
DEAF = "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGUSR1, signal.SIGTERM)]"


@pytest.fixture
def listening(cluster: Cluster) -> Cluster:
    cluster.options |= {"drain_signal": "USR1", "drain_deadline": 60}
    return cluster


def goes_on(cluster: Cluster, stays: AgentProcess, leaves: AgentProcess) -> None:
    """The second of two nodes leaves as it was told by SIGTERM; the first one alone ends the job
    well, in the next round."""
    assert leaves.wait_exit() == 143
    cluster.wait_workers(1, round=1)
    cluster.end_well(stays)


def restarts(agent: AgentProcess) -> int:
    return int(agent.verdict["restarts"])


def test_A4_all_exit_with_0_for_a_drain_and_the_rest_goes_on(listening: Cluster) -> None:
    """Every worker saves and ends well, as Megatron's do: that is neither success nor failure."""
    listening.options["max_restarts"] = 3
    listening.order(LISTEN, round=0)
    a, b, c = listening.agents("a", "b", "c", nnodes="1:3")
    first = listening.wait_workers(3, round=0)
    b.signal(signal.SIGTERM)
    assert b.wait_exit() == 143
    assert "it got SIGTERM" in b.verdict["reason"]
    second = listening.wait_workers(2, round=1)
    assert [worker.node for worker in second] == ["a", "c"]
    assert not any(worker.is_alive for worker in first)
    for agent in (a, b, c):
        assert agent.stdout_lines.count("saved") == 1, "every worker was asked, once"
        agent.wait_event("checkpoint_saved", round=0)
    listening.end_well(a, c)
    assert restarts(a) == restarts(c) == 0
    assert [agent.verdict["max_restarts"] for agent in (a, b, c)] == [3, 3, 3]


@pytest.mark.parametrize(("count", "serves"), [(1, True), (2, True), (3, False)])
def test_A4_exit_0_of_all_is_preempted_when_nobody_is_left(
    listening: Cluster, count: int, serves: bool
) -> None:
    """It is one stop of the whole job, for one reason."""
    if serves:
        listening.serve()
    listening.order(LISTEN)
    agents = listening.agents(*"abc"[:count], hosts=None, nnodes=f"{count}:{count}")
    listening.wait_workers(count)
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.wait_exit() for agent in agents] == [143] * count
    assert len(listening.workers()) == count
    assert {agent.verdict["outcome"] for agent in agents} == {"preempted"}
    if serves and count > 1:
        # Who was told first may be gone before the last one is told.
        reasons = {agent.verdict["reason"] for agent in agents}
        alone, together = "this node left the job", "every node is leaving"
        assert f"{together}: it got SIGTERM" in reasons
        assert reasons <= {f"{said}: it got SIGTERM" for said in (alone, together)}


@pytest.mark.parametrize("first", ["a", "b"])
def test_A4_exit_0_before_the_agent_s_own_signal_is_no_success(
    listening: Cluster, first: str
) -> None:
    """The workers of node a heard of the drain from others. A scheduler signals every process of
    node b, and its workers are faster than the agent."""
    agents = dict(zip("ab", listening.running("a", "b"), strict=True))
    listening.order("sys.exit(0)", round=0, node=first)
    agents[first].wait_event("succeeded", round=0)
    agents["b"].signal(signal.SIGTERM)
    goes_on(listening, agents["a"], agents["b"])


def test_A5_the_host_leaves_after_the_checkpoint_and_the_job_is_preempted(
    listening: Cluster,
) -> None:
    listening.order(LISTEN)
    a, b = listening.running("a", "b", round=None)
    a.signal(signal.SIGTERM)
    assert [a.wait_exit(), b.wait_exit()] == [143, 143]
    for agent in (a, b):
        assert agent.verdict["outcome"] == "preempted"
        why = "node a, which hosts the coordinator, is leaving: it got SIGTERM"
        assert why in agent.verdict["reason"]
        assert agent.stdout_lines.count("saved") == 1
    assert len(listening.workers()) == 2


def test_A5_W7_the_drain_deadline_bounds_it_all(listening: Cluster) -> None:
    """Workers that save nothing and ignore SIGTERM: neither the other nodes nor this one wait."""
    listening.options |= {"shutdown_timeout": 600, "restart_grace": 0.3}
    listening.order(DEAF, round=0)
    a, b = listening.agents("a", "b", drain_deadline=2)
    first = listening.wait_workers(2, round=0)
    b.signal(signal.SIGTERM)
    assert b.wait_exit() == 143
    assert "2 s of the drain" in b.wait_event("killing").message
    listening.wait_workers(1, round=1)
    late = a.wait_event("checkpoint", "reported no checkpoint within 1.6 s (a, b)")
    assert "continuing without" in late.message
    assert not any(worker.is_alive for worker in first)
    listening.end_well(a)
    assert restarts(a) == 0


def test_A5_a_second_signal_skips_the_checkpoint(listening: Cluster) -> None:
    listening.order(DEAF, round=0)
    a, b = listening.running("a", "b")
    b.signal(signal.SIGTERM)
    b.wait_event("checkpoint_wanted")
    b.signal_again(signal.SIGTERM)
    goes_on(listening, a, b)


def test_A5_a_worker_that_dies_of_the_drain_costs_nothing(listening: Cluster) -> None:
    """Its node has been told to go: the others don't wait for a checkpoint that can't come."""
    listening.options |= {"max_restarts": 0}
    listening.order("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", round=0, node="a")
    a, b = listening.agents("a", "b")  # b's worker dies of SIGUSR1
    listening.wait_workers(2, round=0)
    b.signal(signal.SIGTERM)
    goes_on(listening, a, b)


def test_R3_a_node_lost_in_its_notice_has_left(listening: Cluster) -> None:
    """It said that it would go: it is not counted among the lost."""
    listening.options |= {"max_node_losses": 0}
    listening.order(DEAF, round=0)
    a, b = listening.running("a", "b")
    b.signal(signal.SIGTERM)
    a.wait_event("checkpoint_wanted")
    b.kill()
    listening.wait_workers(1, round=1)
    listening.end_well(a)
