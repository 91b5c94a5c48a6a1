"""Which nodes take part and in which order, as a person asked for, in real jobs (R1, R2, R4)."""

from __future__ import annotations

from pathlib import Path

from tests.harness.cluster import Cluster


def test_R4_nodes_are_ranked_by_what_a_command_or_a_file_says_and_a_spare_takes_a_lost_place(
    cluster: Cluster, tmp_path: Path
) -> None:
    rack = tmp_path / "rack"
    rack.write_text("rack-1\n")
    cluster.options |= {"nnodes": 3, "spares": 1}
    a = cluster.agent("a", topology="cmd:echo rack-2", hosts=True)
    a.wait_event("waiting", "1 more node")
    b = cluster.agent("b", topology=f"file:{rack}")
    first = cluster.wait_workers(2, round=0)
    assert [worker.node for worker in first] == ["b", "a"]
    c = cluster.agent("c", topology="rack-3")
    c.wait_event("waiting", "a place (standing by)")
    b.kill()
    workers = cluster.wait_workers(2, round=1)
    assert {worker.node for worker in workers} == {"a", "c"}
    cluster.end_well(a, c)


def test_R1_a_job_of_a_multiple_of_workers_goes_on_with_fewer_nodes_and_grows_again(
    cluster: Cluster,
) -> None:
    cluster.options |= {
        "nnodes": "1:4",
        "world_multiple_of": 4,
        "join_settle": 0,
        "min_growth_interval": 0,
    }
    a = cluster.agent("a", 2)
    a.wait_event("waiting", "enough nodes for a multiple of 4 workers (1 node joined)")
    b = cluster.agent("b", 2)
    cluster.wait_workers(4, round=0)
    c = cluster.agent("c", 2)
    c.wait_event("waiting", "the next round")
    assert c.workers() == []
    d = cluster.agent("d", 2)
    cluster.wait_workers(8, round=1)
    d.kill()
    workers = cluster.wait_workers(4, round=2)
    assert [worker.node for worker in workers] == ["a", "a", "b", "b"]
    c.wait_event("waiting", "a place (standing by)")
    cluster.end_well(a, b, c)
