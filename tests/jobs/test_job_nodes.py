"""Who a node is, how it goes, and what all must agree on, in real jobs (R4, R5, R7, F7)."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from tests.harness.cluster import AgentProcess, Cluster


def test_R4_names_are_sorted_naturally_whatever_the_order_of_arrival(cluster: Cluster) -> None:
    """Nodes may differ in workers and roles."""
    cluster.options |= {"nnodes": 3}
    n10 = cluster.agent("n10", 2, role="trainer", hosts=True)
    n10.wait_event("waiting", "2 more nodes")
    n2 = cluster.agent("n2", 1, role="reader", local_addr="localhost")
    n1 = cluster.agent("n1", 1, role="trainer")
    workers = cluster.wait_workers(4, round=0)
    names = ("RANK", "GROUP_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "LOCAL_RANK")
    told = [(worker.node, *(worker.env[name] for name in names)) for worker in workers]
    assert told == [
        ("n1", "0", "0", "trainer", "0", "3", "0"),
        ("n2", "1", "1", "reader", "0", "1", "0"),
        ("n10", "2", "2", "trainer", "1", "3", "0"),
        ("n10", "3", "2", "trainer", "2", "3", "1"),
    ]
    cluster.end_well(n1, n2, n10)


USED = re.compile(
    r"rallypoint: node id 'b' is used by another running agent at 127\.0\.0\.1:(\d+); "
    r"this one is at 127\.0\.0\.1:(\d+): give each machine its own --node-id, or none"
)


def refused(duplicate: AgentProcess) -> tuple[int, int]:
    """The ports of the agent that runs and of this one, which has ended."""
    line = duplicate.wait_only_line(2)
    found = USED.fullmatch(line)
    assert found is not None, line
    assert duplicate.workers() == []
    return int(found[1]), int(found[2])


def test_R4_duplicates_that_are_started_again_and_again_do_not_end_a_healthy_job(
    cluster: Cluster,
) -> None:
    """Two more machines have a node's id, and a scheduler starts their agents again."""
    cluster.options |= {"nnodes": "2:4", "max_node_losses": 1}
    a, b = cluster.agents("a", "b")
    workers = cluster.wait_workers(2, round=0)
    ports = set()
    for _ in range(3):
        for duplicate in [cluster.agent("b", hosts=False) for _ in range(2)]:
            used, own = refused(duplicate)
            ports.add(used)
            assert used != own
    assert len(ports) == 1, "the same agent holds the id all the time"
    assert "this one is at 127.0.0.1" in a.wait_event("node_refused").message
    assert all(worker.is_alive for worker in workers)
    assert not any(event.name == "round_ended" for event in a.events)
    cluster.end_well(a, b)
    assert cluster.workers() == workers


def test_R4_a_machine_that_vanished_is_replaced_by_one_with_its_id(cluster: Cluster) -> None:
    """As soon as its lease is over. It is told when it is back, and may not take part any more."""
    cluster.options |= {"nnodes": 2}
    a, older = cluster.agents("a", "b")
    stale = cluster.wait_workers(2, round=0)[1]
    older.pause()
    newer = cluster.agent("b")
    newer.wait_event("waiting", "node id 'b': it is held by an agent at 127.0.0.1:")
    newer.wait_event("waiting", ", which has not been heard for ")
    a.wait_event("round_ended", "node b was lost: it sent no heartbeat for 5 s")
    workers = cluster.wait_workers(2, round=1)
    older.resume()
    assert older.wait_exit() == 75
    assert older.verdict["reason"] == "another agent has joined as node b"
    assert not stale.is_alive
    cluster.end_well(a, newer)
    assert newer.workers(1) == workers[1:]


def test_R4_an_agent_that_was_killed_is_replaced_at_once_by_one_with_its_id(
    cluster: Cluster,
) -> None:
    """Its guard has reported its death: nobody waits for its lease."""
    cluster.options |= {"nnodes": 2, "lease": 600}
    a, older = cluster.running("a", "b")
    older.kill()
    newer = cluster.agent("b")
    cluster.wait_workers(2, round=1)
    assert "its agent died" in a.wait_event("round_ended").message
    cluster.end_well(a, newer)


def test_R5_the_host_lingers_until_every_member_has_the_verdict(cluster: Cluster) -> None:
    """Also one that merely stands by, and does not answer for a while."""
    cluster.options |= {"lease": 20, "nnodes": 1}
    [a] = cluster.running("a", hosts=None, round=None)
    b = cluster.agent("b")
    b.wait_event("waiting", "a place (standing by)")
    b.pause()
    cluster.order("sys.exit(0)")
    assert a.wait_event("verdict").fields["outcome"] == "succeeded"
    with pytest.raises(subprocess.TimeoutExpired):
        a.process.wait(1.0)
    b.resume()
    assert [a.wait_exit(), b.wait_exit()] == [0, 0]


def test_R7_settings_that_differ_are_refused_with_both_sides(cluster: Cluster) -> None:
    cluster.options |= {"nnodes": "1:2", "max_restarts": 2}
    a = cluster.agent("a")
    first = cluster.wait_workers(1)
    conflicts: list[tuple[dict[str, Any], str, str, str, str]] = [
        ({"nnodes": "2"}, "min_nodes", "2", "1", "--nnodes (min_nodes)"),
        ({"nnodes": "1:3"}, "max_nodes", "3", "2", "--nnodes (max_nodes)"),
        ({"max_restarts": 3}, "max_restarts", "3", "2", "--max-restarts"),
        ({"lease": 4}, "lease_s", "4.0", "5.0", "--lease (lease_s)"),
    ]
    for number, (options, name, theirs, ours, option) in enumerate(conflicts):
        b = cluster.agent(f"b{number}", **options)
        assert b.wait_exit() == 2
        line = (
            f"this node was started with {name}={theirs} but the job runs with {name}={ours}: "
            f"start every node of a job with the same {option}"
        )
        assert b.lines == [f"rallypoint: {line}"]
        assert line in a.wait_event("node_refused", f"{name}=").message
        assert b.workers() == []
    summary = cluster.folder / "summary.json"
    c = cluster.agent("c", nnodes="1:3", max_restarts=3, json_summary=str(summary))
    assert c.wait_exit() == 2
    line = (
        "rallypoint: this node was started with max_nodes=3, max_restarts=3 but the job runs with "
        "max_nodes=2, max_restarts=2: start every node of a job with the same "
        "--nnodes (max_nodes), --max-restarts"
    )
    assert c.lines == [line]
    told = json.loads(summary.read_text())
    assert (told["outcome"], told["exit_code"], told["rounds"]) == ("usage", 2, [])
    assert "max_restarts" in told["reason"]
    cluster.end_well(a)
    assert cluster.workers() == first


def test_F7_a_local_addr_wins_over_the_address_of_the_session(cluster: Cluster) -> None:
    cluster.options |= {"nnodes": 2}
    a = cluster.agent("a", hosts=True, local_addr="localhost")
    b = cluster.agent("b", hosts=False)
    assert {w.env["MASTER_ADDR"] for w in cluster.wait_workers(2)} == {"localhost"}
    cluster.end_well(a, b)
