"""The last lines on a node where nothing went wrong (A7): what happened, and on which other."""

from __future__ import annotations

import re

import pytest
from tests.harness.cluster import Cluster

# Text has no events to wait for; only workers tell how far the job is.
AS_TEXT = {"log_format": "text"}


@pytest.mark.parametrize(
    ("order", "how"),
    [
        ("raise ValueError('the batch is empty')", "exited with code 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    ],
    ids=["exception", "signal"],
)
def test_A7_a_healthy_node_names_the_worker_of_another(
    cluster: Cluster, order: str, how: str
) -> None:
    cluster.options |= AS_TEXT
    a, b = cluster.agents("a", "b", nproc=2)
    culprit = cluster.wait_workers(4)[3]
    cluster.order(order, rank=3)
    assert [a.wait_exit(), b.wait_exit()] == [1, 1]
    found = [n for n, line in enumerate(a.lines) if line.startswith("rallypoint: job job failed")]
    assert len(found) == 1, a.lines
    first, *rest = a.lines[found[0] :]
    who = f"rank 3 (node b, local rank 1, pid {culprit.pid})"
    assert re.search(rf"failed: {re.escape(who)} {how} at \d\d:\d\d:\d\d\.\d\d\d", first), first
    if "code" in how:
        text = "\n".join(rest)
        assert "error: ValueError: the batch is empty" in text
        assert "Traceback (most recent call last):" in text


def test_of_five_nodes_only_the_failed_workers_and_rank_0s_print_the_whole_report(
    cluster: Cluster,
) -> None:
    cluster.options |= AS_TEXT | {
        "nnodes": 5,
        "log_dir": str(cluster.folder / "logs"),
        "redirects": "2",
    }
    agents = cluster.agents(*"abcde")
    workers = cluster.wait_workers(5)
    cluster.order("raise ValueError('the batch is empty')", rank=2)
    assert [agent.wait_exit() for agent in agents] == [1] * 5
    assert [worker.node for worker in workers] == list("abcde")
    for agent in agents:
        ours = "\n".join(agent.lines)
        first, *rest = ours[ours.index("rallypoint: job job failed: rank 2 (node c") :].splitlines()
        if agent.name in "ac":
            assert "    error: ValueError: the batch is empty" in rest
        else:
            assert re.search(r"; log: .*/stderr.log \(on c\)$", first)
            assert rest == []
