"""Fixed ranks (`--node-rank --master-addr --master-port`), and the way to the round store (F9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cluster import AgentProcess, Cluster

SUM_OF_RANKS = """\
import json, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
store = [os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]]
line = json.dumps({"sum": total.item(), "of": dist.get_world_size(), "store": store})
dist.destroy_process_group()
os.write(1, (line + "\\n").encode())
"""


def static(cluster: Cluster, rank: int, nproc: int = 1, **options: Any) -> AgentProcess:
    place: dict[str, Any] = {
        "master_addr": "127.0.0.1",
        "master_port": cluster.port,
        "node_rank": rank,
    }
    alone = {"rdzv_endpoint": None, "node_id": None, "nnodes": 2}
    return cluster.agent(f"rank{rank}", nproc, **(place | alone | options))


def test_static_ranks_are_those_of_the_command_line(cluster: Cluster) -> None:
    """Whatever the start order; a failure on one node restarts both (W13)."""
    cluster.options |= {"max_restarts": 1}
    cluster.make_token()
    one = static(cluster, 1, 2)
    one.wait_event("meeting", "waiting for the coordinator")
    zero = static(cluster, 0)
    workers = cluster.wait_workers(3, round=0)
    assert [worker.env["GROUP_RANK"] for worker in workers] == ["0", "1", "1"]
    assert [worker.node for worker in workers] == ["rank0", "rank1", "rank1"]
    assert {worker.store for worker in workers} == {f"127.0.0.1:{cluster.port}"}
    cluster.order("sys.exit(7)", round=0, rank=2)
    again = cluster.wait_workers(3, round=1)
    assert [worker.env["GROUP_RANK"] for worker in again] == ["0", "1", "1"]
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in again} == {"1"}
    assert not any(worker.is_alive for worker in workers)
    assert "rank 2 (node rank1, local rank 1) exited with code 7" in zero.said
    cluster.end_well(zero, one)


@pytest.mark.frameworks
def test_static_a_real_all_reduce_over_one_shared_port(
    cluster: Cluster, tmp_path: Path, torch_python: str
) -> None:
    script = tmp_path / "sum_of_ranks.py"
    script.write_text(SUM_OF_RANKS)
    env = {"PYTHON_EXEC": torch_python}
    nodes = [static(cluster, rank, 2, script=[str(script)], env=env) for rank in (1, 0)]
    assert [node.wait_exit() for node in nodes] == [0, 0]
    told = [json.loads(line) for node in nodes for line in node.stdout_lines]
    store = ["127.0.0.1", str(cluster.port)]
    assert told == [{"sum": 6.0, "of": 4, "store": store}] * 4


@pytest.mark.parametrize("held_by", [None, "named"])
def test_R4_a_rank_that_a_live_node_has_is_refused(cluster: Cluster, held_by: str | None) -> None:
    zero, one = static(cluster, 0), static(cluster, 1, node_id=held_by)
    workers = cluster.wait_workers(2)
    for node_id in (None, "named", "elsewhere"):
        twin = static(cluster, 1, node_id=node_id)
        line = twin.wait_only_line(2)
        holder = held_by or "rank1"
        taken = f"node rank 1 is used by another running agent (node {holder}) at 127.0.0.1:"
        assert line.startswith(f"rallypoint: {taken}")
        assert line.endswith(": give each node its own --node-rank")
        assert twin.workers() == []
        zero.wait_event("node_refused", taken)
    assert all(worker.is_alive for worker in workers)
    cluster.end_well(zero, one)
    assert cluster.workers() == workers


@pytest.mark.parametrize("node_id", [None, "spare"])
def test_a_rank_whose_node_was_killed_is_taken_by_its_replacement(
    cluster: Cluster, node_id: str | None
) -> None:
    """Also while the coordinator still waits for the killed node to come back."""
    cluster.options |= {"lease": 30}
    zero, one = static(cluster, 0), static(cluster, 1)
    cluster.wait_workers(2, round=0)
    one.kill()
    two = static(cluster, 1, node_id=node_id)
    again = cluster.wait_workers(2, round=1)
    assert [worker.env["GROUP_RANK"] for worker in again] == ["0", "1"]
    assert [worker.node for worker in again] == ["rank0", node_id or "rank1"]
    cluster.end_well(zero, two)


def test_a_rank_whose_node_is_silent_is_taken_by_its_replacement(cluster: Cluster) -> None:
    cluster.options |= {"lease": 6}
    zero, one = static(cluster, 0), static(cluster, 1)
    cluster.wait_workers(2, round=0)
    one.pause()
    zero.wait_event("round_ended", "node rank1 was lost")
    two = static(cluster, 1)
    cluster.wait_workers(2, round=1)
    one.resume()
    assert one.wait_exit() == 75
    cluster.end_well(zero, two)


def test_F9_rank_0_whose_store_nobody_reaches_is_passed_over_before_any_worker_starts(
    cluster: Cluster,
) -> None:
    """Node a says that it is reached by an address to which nobody can connect."""
    cluster.options |= {"nnodes": 2, "rdzv_conf": "join_timeout=3"}
    a = cluster.agent("a", hosts=True, local_addr="255.255.255.255")
    b = cluster.agent("b", hosts=False)
    ended = a.wait_event("round_ended", "another node becomes rank 0", round=0)
    assert "node a (255.255.255.255:" in ended.message
    assert "was not reached by 1 of 1 other node (b)" in ended.message
    workers = cluster.wait_workers(2, round=1)
    assert [worker.node for worker in workers] == ["b", "a"]
    assert cluster.workers(round=0) == []
    cluster.end_well(a, b)
