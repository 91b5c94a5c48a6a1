"""Nodes that vanish from real jobs, and come back (R3, F1, F2, F3)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.proc import children_of, is_alive, name_of
from tests.harness.proxy import Proxy

from rallypoint.clocks import boot_time


def guard_of(agent: int) -> int:
    return next(pid for pid in children_of(agent) if name_of(pid) == "worker-guard")


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with Proxy(cluster.port) as made:
        yield made


def behind(cluster: Cluster, proxy: Proxy, names: str) -> tuple[AgentProcess, list[AgentProcess]]:
    """The host, node a, and nodes that reach it by the proxy, when all workers run."""
    endpoint = f"127.0.0.1:{proxy.port}"
    host = cluster.agent("a", hosts=True)
    others = [cluster.agent(name, hosts=False, rdzv_endpoint=endpoint) for name in names]
    cluster.wait_workers(1 + len(names), round=0)
    return host, others


@pytest.mark.executed
def test_R3_D14_survivors_learn_who_was_lost_while_their_workers_sleep(cluster: Cluster) -> None:
    a, b = cluster.agents("a", "b", nproc=2)
    first = cluster.wait_workers(4, round=0)
    b.kill()
    ended = a.wait_event("round_ended", "node b was lost: its agent died", round=0)
    assert ended.node == "a"
    workers = cluster.wait_workers(2, round=1)
    assert {worker.env["WORLD_SIZE"] for worker in workers} == {"2"}
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    assert not any(worker.is_alive for worker in first)
    cluster.end_well(a)


def test_R3_a_node_of_which_nothing_is_left_is_lost_after_the_reconnect_grace(
    cluster: Cluster,
) -> None:
    """A container that was killed, or a machine that was switched off in order."""
    a, b = cluster.agents("a", "b", reconnect_grace=0.3)
    [_, worker] = cluster.wait_workers(2, round=0)
    guard = guard_of(b.pid)
    os.kill(guard, signal.SIGSTOP)
    b.kill()
    os.kill(guard, signal.SIGKILL)
    a.wait_event("round_ended", "node b was lost: its connection broke", round=0)
    cluster.wait_workers(1, round=1)
    assert not worker.is_alive
    cluster.end_well(a)


def test_R3_nodes_that_are_lost_together_are_all_named(cluster: Cluster) -> None:
    cluster.options |= {"nnodes": "1:3", "restart_grace": 4}
    cluster.order("signal.signal(signal.SIGTERM, signal.SIG_IGN)", node="a", round=0)
    a, b, c = cluster.running("a", "b", "c")
    for lost in (b, c):
        lost.process.kill()
    named = a.wait_event("round_ended", round=0).message
    other = {"b", "c"} - {name for name in "bc" if f"node {name} was lost" in named}
    assert len(other) == 1
    a.wait_event("other_node_lost", f"node {other.pop()} was lost")
    again = a.wait_event("round_joined", round=1).message
    assert "and with it b" in again or "and with it c" in again
    cluster.end_well(a)


def test_R3_a_killed_node_is_replaced_while_rank_0_survives(cluster: Cluster) -> None:
    """Below the minimum the survivor waits; the newcomer has another name, and sorts first."""
    cluster.options |= {"nnodes": 2}
    b, c = cluster.running("b", "c")
    c.kill()
    b.wait_event("waiting", "1 more node (1 of 2 joined)")
    a = cluster.agent("a")
    workers = cluster.wait_workers(2, round=1)
    assert [worker.node for worker in workers] == ["b", "a"]
    cluster.end_well(a, b)


def test_R3_a_node_that_keeps_getting_lost_is_told_on_it_and_at_the_coordinator(
    cluster: Cluster,
) -> None:
    a, b = cluster.agents("a", "b")
    for loss in range(3):
        cluster.wait_workers(2, round=2 * loss)
        b.kill()
        cluster.wait_workers(1, round=2 * loss + 1)
        b = cluster.agent("b", hosts=False)
    why = "held back for 40 s: it was lost 3 times within ten minutes"
    a.wait_event("node_joined", f"node b joined; it is {why}")
    b.wait_event("waiting", f"waiting for the next round; this node is {why}")
    cluster.end_well(a)
    assert b.wait_exit() == 0


def test_F2_W4_a_node_paused_past_its_lease_kills_its_workers_and_rejoins(
    cluster: Cluster,
) -> None:
    cluster.options |= {"lease": 1.5, "restart_grace": 30}
    cluster.order("signal.signal(signal.SIGTERM, signal.SIG_IGN)", node="b")
    a, b = cluster.agents("a", "b")
    stale = cluster.wait_workers(2, round=0)[1]
    b.pause()
    a.wait_event("round_ended", "node b was lost: it sent no heartbeat for 1.5 s", round=0)
    wait_until(lambda: not stale.is_alive, "the worker of the paused agent to end")
    cluster.wait_workers(1, round=1)
    assert is_alive(b.pid)
    b.resume()
    b.wait_event("fenced", "the lease expired")
    suspended = b.wait_event("session_suspended", "the connection to the coordinator broke")
    assert "the workers keep running" not in suspended.message
    workers = cluster.wait_workers(2, round=2)
    assert [worker.node for worker in workers] == ["a", "b"]
    assert not stale.is_alive
    assert b.workers(1) == []
    cluster.end_well(a, b)


def test_F2_a_job_of_one_node_alone_outlives_a_pause_of_its_agent(cluster: Cluster) -> None:
    """Ctrl-Z, or a laptop that sleeps: nobody takes the place of this node meanwhile."""
    a = cluster.agent("a", nnodes=1, lease=1)
    [worker] = cluster.wait_workers(1)
    a.pause()
    over_at = boot_time() + 1.5
    wait_until(lambda: boot_time() > over_at, "the lease to pass")
    a.resume()
    assert worker.is_alive
    cluster.end_well(a)
    assert cluster.workers() == [worker]


def test_F2_without_a_coordinator_workers_run_until_the_fence(cluster: Cluster) -> None:
    summary = cluster.folder / "summary.json"
    a, b = cluster.agents("a", "b", lease=2, json_summary=str(summary))
    worker = cluster.wait_workers(2)[1]
    a.kill()
    b.wait_event("session_suspended", "the workers keep running")
    assert worker.is_alive
    assert b.wait_exit() == 75
    b.wait_event("fenced")
    assert "the coordinator was lost" in b.verdict["reason"]
    assert not worker.is_alive
    told = json.loads(summary.read_text())
    assert (told["outcome"], told["exit_code"], told["node"]) == ("infrastructure", 75, "b")
    assert [one["ended_by"] for one in told["rounds"]] == ["infrastructure"]
    assert "coordinator" in told["reason"]


def test_F1_a_cut_connection_is_resumed_and_nothing_restarts(
    cluster: Cluster, proxy: Proxy
) -> None:
    cluster.options |= {"nnodes": 2}
    a, [b] = behind(cluster, proxy, "b")
    first = cluster.workers(0)
    for number in range(3):
        proxy.cut()
        proxy.mend()
        wait_until(lambda: _count(b, "session_resumed") > number, "the session to resume")  # noqa: B023
    assert all(worker.is_alive for worker in first)
    cluster.end_well(a, b)
    assert cluster.workers() == first


def test_A3_a_node_that_is_replaced_under_its_name_was_lost_when_it_was_last_heard(
    cluster: Cluster, proxy: Proxy
) -> None:
    """What its peers tell of it before costs nothing. The other agent waits until it is lost."""
    cluster.options |= {"nnodes": 2, "lease": 30, "reconnect_grace": 10, "reset_grace": 10}
    cluster.options["restart_grace"] = 60
    a, [older] = behind(cluster, proxy, "b")
    proxy.cut()
    older.wait_event("session_suspended")
    cluster.order("sys.exit(3)", node="a", round=0)
    a.wait_event("round_ended", "exited with code 3", round=0)
    newer = cluster.agent("b", hosts=False)
    a.wait_event("round_joined", "node b was lost", round=1)
    workers = cluster.wait_workers(2, round=1)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    older.kill()
    cluster.end_well(a, newer)


def test_F3_when_many_vanish_at_once_patience_is_said_and_nobody_is_lost(
    cluster: Cluster, proxy: Proxy
) -> None:
    cluster.options |= {"nnodes": 4, "lease": 10}
    a, others = behind(cluster, proxy, "bcd")
    first = cluster.workers(0)
    proxy.cut()
    patience = a.wait_event("patience", "of 4 nodes stopped responding at once")
    assert "no node is given up for another 10 s" in patience.message
    proxy.mend()
    for agent in others:
        agent.wait_event("session_resumed")
    cluster.end_well(a, *others)
    assert cluster.workers() == first
    assert "was lost" not in a.said


def _count(agent: AgentProcess, name: str) -> int:
    return sum(event.name == name for event in agent.events)


def test_R5_a_node_whose_connection_is_broken_when_the_job_succeeds_hears_of_it(
    cluster: Cluster, proxy: Proxy
) -> None:
    """The host waits for it, as long as its lease lasts: longer than for a place in a round."""
    cluster.options |= {"nnodes": 2, "lease": 30, "reconnect_grace": 0.3}
    a, [b] = behind(cluster, proxy, "b")
    cluster.order("sys.exit(0)", node="b")
    b.wait_event("succeeded")
    proxy.mute()
    cluster.order("sys.exit(0)", node="a")
    a.wait_event("verdict")
    proxy.cut()
    wait_until(lambda: proxy.turned_away > 5, "more attempts than fit into the grace")
    assert a.process.poll() is None
    proxy.mend()
    assert (a.wait_exit(), b.wait_exit()) == (0, 0)
