"""Workers that listen by `rallypoint.worker` are asked for a checkpoint (A4, A5, R2)."""

from __future__ import annotations

import signal

from tests.harness.cluster import AgentProcess, Cluster, Worker, wait_until

LISTEN = "from rallypoint import worker; worker.should_restart_at_checkpoint()"
ASKED = "assert worker.drain_requested(); os.write(1, b'asked\\n')"
SAVE = "worker.checkpoint_saved(7)"


def listening(cluster: Cluster, *agents: AgentProcess, round: int = 0) -> None:
    """All workers of the round have begun to listen."""
    cluster.order(LISTEN + "; os.write(1, b'listens\\n')", round=round)
    for agent in agents:
        wait_line(agent, "listens")


def one_and_one_that_waits(cluster: Cluster) -> tuple[AgentProcess, AgentProcess, Worker]:
    """A job of one node, the node that waits for a checkpoint of it, and its worker."""
    cluster.options |= {"on_join": "at-checkpoint"}
    a = cluster.agent("a")
    [first] = cluster.wait_workers(1, round=0)
    b = cluster.agent("b")
    a.wait_event("checkpoint", "1 more node waits for a checkpoint")
    return a, b, first


def wait_line(agent: AgentProcess, line: str) -> None:
    wait_until(lambda: line in agent.stdout_lines, f"{line!r} of {agent.name}")


def test_A5_a_node_leaves_when_all_have_saved_and_the_rest_goes_on(cluster: Cluster) -> None:
    cluster.options |= {"drain_deadline": 600, "max_restarts": 0}
    a, b = cluster.agents("a", "b")
    first = cluster.wait_workers(2, round=0)
    listening(cluster, a, b)
    b.signal(signal.SIGTERM)
    for agent in (a, b):
        agent.wait_event("checkpoint_wanted", "node b is leaving: it got SIGTERM")
    cluster.order(ASKED, round=0)
    wait_line(a, "asked")
    wait_line(b, "asked")
    cluster.order(SAVE, round=0, node="b")
    b.wait_event("checkpoint_saved")
    assert all(worker.is_alive for worker in first), "one of two has saved"
    cluster.order(SAVE, round=0, node="a")
    assert b.wait_exit() == 143
    a.wait_event("checkpoint", "have saved a checkpoint")
    cluster.wait_workers(1, round=1)
    cluster.end_well(a)
    assert a.verdict["restarts"] == 0


def test_A5_a_checkpoint_that_is_not_saved_in_time_holds_up_nobody(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", drain_deadline=1)
    listening(cluster, a, b)
    b.signal(signal.SIGTERM)
    assert b.wait_exit() == 143
    a.wait_event("checkpoint", "2 nodes reported no checkpoint within 0.8 s (a, b)")
    cluster.wait_workers(1, round=1)
    cluster.end_well(a)


def test_R2_late_nodes_are_admitted_at_a_checkpoint(cluster: Cluster) -> None:
    a, b, first = one_and_one_that_waits(cluster)
    listening(cluster, a)  # only now: workers that listen late are asked all the same
    assert first.is_alive
    cluster.order(
        "while not worker.should_restart_at_checkpoint(): time.sleep(0.01)\n"
        "assert not worker.drain_requested()\n" + SAVE,
        round=0,
    )
    workers = cluster.wait_workers(2, round=1)
    assert not first.is_alive
    assert [worker.node for worker in workers] == ["a", "b"]
    cluster.end_well(a, b)
    assert a.verdict["restarts"] == 0


def test_A4_exit_0_after_the_checkpoint_of_a_growth_is_no_success(cluster: Cluster) -> None:
    """What `examples/digits/train.py` does: save, and leave the loop. One node is faster."""
    cluster.options |= {"on_join": "at-checkpoint", "nnodes": "2:3"}
    a, b = cluster.agent("a", hosts=True), cluster.agent("b", hosts=False)
    first = cluster.wait_workers(2, round=0)
    listening(cluster, a, b)
    c = cluster.agent("c")
    a.wait_event("checkpoint", "1 more node waits for a checkpoint")
    cluster.order(SAVE + "; sys.exit(0)", round=0, node="a")
    a.wait_event("succeeded", round=0)
    assert [worker.is_alive for worker in first] == [False, True]
    cluster.order(SAVE + "; sys.exit(0)", round=0, node="b")
    cluster.wait_workers(3, round=1)
    cluster.end_well(a, b, c)


def test_A4_a_job_that_ends_while_nodes_wait_has_succeeded(cluster: Cluster) -> None:
    a, b, _ = one_and_one_that_waits(cluster)
    listening(cluster, a)
    cluster.end_well(a, b)
    assert len(cluster.workers()) == 1


def test_R2_nobody_is_interrupted_for_a_growth_who_never_saves(cluster: Cluster) -> None:
    a, b, first = one_and_one_that_waits(cluster)
    b.signal(signal.SIGTERM)
    assert b.wait_exit() == 143, "it waited in vain"
    c = cluster.agent("c")
    c.wait_event("waiting")
    cluster.end_well(a, c)
    assert first.round == 0
    assert cluster.workers() == [first]
