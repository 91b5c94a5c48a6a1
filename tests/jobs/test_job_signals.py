"""Signals to the agents of a job of several nodes (A5): leave, stop, cancel."""

from __future__ import annotations

import signal

import pytest
from tests.harness.cluster import Cluster

EXIT_0_ON_SIGTERM = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"


def test_A5_one_node_leaves_and_the_others_go_on(cluster: Cluster) -> None:
    """That its workers exit with code 0 is not the job's success (A4), nor is the job closed (R5).

    The budget is 0: leaving costs none.
    """
    cluster.order(EXIT_0_ON_SIGTERM, round=0)
    a, b = cluster.agents("a", "b")
    first = cluster.wait_workers(2, round=0)
    b.signal(signal.SIGTERM)
    assert b.wait_exit() == 128 + signal.SIGTERM
    a.wait_event("round_ended", "node b is leaving: it got SIGTERM", round=0)
    cluster.wait_workers(1, round=1)
    assert not any(worker.is_alive for worker in first)
    c = cluster.agent("c")
    workers = cluster.wait_workers(2, round=2)
    assert [worker.node for worker in workers] == ["a", "c"]
    cluster.end_well(a, c)


def test_A5_when_the_host_leaves_the_job_is_preempted(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", round=None)
    a.signal(signal.SIGTERM)
    assert [a.wait_exit(), b.wait_exit()] == [143, 143]
    for agent in (a, b):
        assert agent.verdict["outcome"] == "preempted"
        reason = agent.verdict["reason"]
        assert "node a, which hosts the coordinator, is leaving: it got SIGTERM" in reason
    assert len(cluster.workers()) == 2


@pytest.mark.parametrize("serves", [False, True], ids=["embedded", "serve"])
def test_A5_when_every_node_leaves_nobody_restarts(cluster: Cluster, serves: bool) -> None:
    """It is one stop of the whole job, for one reason."""
    cluster.options |= {"nnodes": "1:3"}
    cluster.order(EXIT_0_ON_SIGTERM)
    if serves:
        cluster.serve()
    a, b, c = cluster.running("a", "b", "c", hosts=None, round=None)
    for agent in (c, b, a):
        agent.signal(signal.SIGTERM)
    assert [agent.wait_exit() for agent in (a, b, c)] == [143] * 3
    assert len(cluster.workers()) == 3
    if serves:
        # Who was told first may be gone before the last one is told.
        reasons = {agent.verdict["reason"] for agent in (a, b, c)}
        alone, together = "this node left the job: it got SIGTERM", "every node is leaving"
        assert f"{together}: it got SIGTERM" in reasons
        assert reasons <= {alone, f"{together}: it got SIGTERM"}


def test_A5_an_interrupt_cancels_the_job_everywhere(cluster: Cluster) -> None:
    cluster.order("signal.signal(signal.SIGINT, lambda *_: (os.write(1, b'!\\n'), os._exit(0)))")
    a, b = cluster.agents("a", "b")
    workers = cluster.wait_workers(2)
    b.signal(signal.SIGINT)
    assert [a.wait_exit(), b.wait_exit()] == [130, 130]
    for agent in (a, b):
        assert agent.stdout_lines[-1] == "!", "its worker got the interrupt"
        assert agent.verdict["outcome"] == "cancelled"
        assert "cancelled on node b: got SIGINT" in agent.verdict["reason"]
    assert cluster.workers() == workers


def test_A5_a_second_signal_skips_the_grace(cluster: Cluster) -> None:
    """Of the node that got it; the others go on."""
    cluster.options |= {"shutdown_timeout": 600}
    cluster.order("signal.signal(signal.SIGTERM, signal.SIG_IGN)", node="b")
    a, b = cluster.running("a", "b")
    b.signal(signal.SIGTERM)
    cluster.wait_workers(1, round=1)
    assert b.process.poll() is None
    b.signal_again(signal.SIGTERM)
    assert b.wait_exit() == 143
    cluster.end_well(a)
