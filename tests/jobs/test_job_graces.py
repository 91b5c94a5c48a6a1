"""How long workers have to stop although nobody signalled their own node (A5, W7)."""

from __future__ import annotations

import signal

import pytest
from tests.harness.cluster import AgentProcess, Cluster

IGNORE_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
SAY_BYE = "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), os._exit(0)))"
on_each_occasion = pytest.mark.parametrize("occasion", ["failure", "loss", "growth"])


def stop_workers_of_a(cluster: Cluster, occasion: str) -> AgentProcess:
    """Because of another node; then see the job to its end."""
    if occasion == "growth":
        a = cluster.agent("a")
        first = cluster.wait_workers(1, round=0)
        b = cluster.agent("b")
        cluster.wait_workers(2, round=1)
        assert not any(worker.is_alive for worker in first)
        cluster.end_well(a, b)
        return a
    a, b = cluster.agents("a", "b")
    first = cluster.wait_workers(2, round=0)
    if occasion == "failure":
        cluster.order("sys.exit(3)", node="b")
        assert [a.wait_exit(), b.wait_exit()] == [1, 1]
        assert a.verdict["cause"]["node"] == "b"
        assert cluster.workers() == first
    else:
        b.kill()
        cluster.wait_workers(1, round=1)
        assert not any(worker.is_alive for worker in first)
        cluster.end_well(a)
        assert b.process.returncode == -signal.SIGKILL
    assert not any(worker.is_alive for worker in first)
    return a


@on_each_occasion
def test_A5_W7_workers_that_ignore_sigterm_hold_up_nobody(cluster: Cluster, occasion: str) -> None:
    """The grace of a restart counts, not that of a node that was told to leave."""
    cluster.options |= {"restart_grace": 0.3, "shutdown_timeout": 600, "max_restarts": 0}
    cluster.order(IGNORE_SIGTERM, round=0, node="a")
    a = stop_workers_of_a(cluster, occasion)
    assert [event.round for event in a.events if event.name == "killing"] == [0]


@on_each_occasion
def test_A5_W7_workers_have_their_grace_to_say_goodbye(cluster: Cluster, occasion: str) -> None:
    cluster.options |= {"restart_grace": 600, "shutdown_timeout": 0, "max_restarts": 0}
    cluster.order(SAY_BYE, round=0, node="a")
    a = stop_workers_of_a(cluster, occasion)
    assert a.stdout_lines.count("bye") == 1
    assert "killing" not in [event.name for event in a.events]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_A5_W7_the_shutdown_timeout_counts_on_every_node(
    cluster: Cluster, number: int, code: int
) -> None:
    """Also where another node was cancelled, or the host left: nobody waits for the deaf."""
    cluster.options |= {"restart_grace": 600, "shutdown_timeout": 0.3}
    cluster.order("[signal.signal(n, signal.SIG_IGN) for n in (2, 15)]", node="b")
    a, b = cluster.agents("a", "b")
    workers = cluster.wait_workers(2)
    a.signal(number)
    assert [a.wait_exit(), b.wait_exit()] == [code, code]
    assert not any(worker.is_alive for worker in workers)
    assert "killing" in [event.name for event in b.events]


def test_A5_W7_a_node_that_was_replaced_kills_its_workers_at_once(cluster: Cluster) -> None:
    cluster.options |= {"restart_grace": 600, "shutdown_timeout": 600}
    cluster.order(IGNORE_SIGTERM, round=0, node="b")
    a, b = cluster.agents("a", "b")
    first = cluster.wait_workers(2, round=0)
    cluster.order("os._exit(0)", round=0, node="a")  # it need not be waited for
    b.pause()
    newer = cluster.agent("b", hosts=False)
    cluster.wait_workers(2, round=1)
    assert not next(worker for worker in first if worker.node == "b").is_alive
    b.resume()
    assert b.wait_exit() == 75
    cluster.end_well(a, newer)


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
