"""`--quiet`: a job that succeeds prints nothing, and one that fails prints what it must."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, log_format="text", quiet=True) as found:
        yield found


def test_a_job_of_two_nodes_that_succeeds_prints_nothing(cluster: Cluster) -> None:
    cluster.options["nnodes"] = 2
    a, b = cluster.running("a", "b", nproc=2, round=None)
    cluster.end_well(a, b)
    assert (a.stderr_lines, b.stderr_lines) == ([], [])


@pytest.mark.parametrize(("code", "said"), [(0, []), (3, ["round_ended", "verdict"])])
def test_in_json_too_only_a_job_that_fails_prints_its_verdict(
    cluster: Cluster, code: int, said: list[str]
) -> None:
    cluster.options["log_format"] = "json"
    [a] = cluster.running("a", hosts=None, round=None)
    cluster.order(f"sys.exit({code})")
    a.wait_exit()
    assert [event.name for event in a.events] == said


def test_a_job_that_grows_and_succeeds_prints_nothing(cluster: Cluster) -> None:
    [a] = cluster.running("a", round=None)
    b = cluster.agent("b", hosts=False)
    cluster.wait_workers(2)
    cluster.end_well(a, b)
    assert (a.stderr_lines, b.stderr_lines) == ([], [])


def test_a_failure_that_a_restart_heals_is_printed_by_every_node(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", nnodes=2, max_restarts=1)
    cluster.order("sys.exit(3)", round=0, rank=1)
    cluster.wait_workers(2, round=1)
    cluster.end_well(a, b)
    for agent in (a, b):
        assert "round 0 ended: rank 1" in agent.stderr_lines[0]
    assert "restart 1 of 1" in a.stderr_lines[1]
    assert not [line for line in a.stderr_lines + b.stderr_lines if " joined" in line]


def test_a_job_that_fails_prints_its_verdict(cluster: Cluster) -> None:
    cluster.options["nnodes"] = 2
    a, b = cluster.running("a", "b", round=None)
    cluster.order("sys.exit(3)", rank=1)
    assert (a.wait_exit(), b.wait_exit()) == (1, 1)
    for agent in (a, b):
        ended, verdict, *_ = agent.stderr_lines
        assert "round 0 ended: rank 1" in ended
        assert verdict.startswith("rallypoint: job job failed: rank 1")
