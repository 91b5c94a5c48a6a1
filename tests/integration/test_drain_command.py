"""`rallypoint drain NODE`: a person has a node leave (A5)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.integration.cluster import Cluster, free_port
from tests.prepared import processes

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def drain(cluster: Cluster, *words: str, rdzv_id: str = "job") -> subprocess.CompletedProcess[str]:
    place = ("--rdzv-endpoint", str(cluster.options["rdzv_endpoint"]), "--rdzv-id", rdzv_id)
    return processes.run(
        [sys.executable, "-m", "rallypoint", "drain", *place, *words],
        env=cluster.environ(),
        capture_output=True,
        timeout=60,
    )


@pytest.mark.parametrize("serves", [False, True], ids=["embedded", "serve"])
def test_A5_drain_has_a_node_leave_and_waits_for_it(cluster: Cluster, serves: bool) -> None:
    if serves:
        cluster.serve()
    a, b = cluster.agents("a", "b", hosts=None if serves else True)
    cluster.wait_workers(2, round=0)
    done = drain(cluster, "b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["node b was asked to leave", "node b has left"]
    assert b.wait_exit() == 143
    assert b.verdict["reason"] == "this node left the job: it was drained (rallypoint drain)"
    a.wait_event("round_ended", "node b is leaving: it was drained", round=0)
    cluster.wait_workers(1, round=1)
    again = drain(cluster, "b")
    assert again.returncode == 2
    assert "there is no node 'b' in the job; there are a" in again.stderr
    cluster.end_well(a)
    assert a.verdict["restarts"] == 0


@pytest.mark.executed
def test_A5_drain_may_return_before_the_node_has_left(cluster: Cluster) -> None:
    cluster.options |= {"shutdown_timeout": 600}
    cluster.order(DEAF, node="b", round=0)
    a, b = cluster.agents("a", "b")
    cluster.wait_workers(2, round=0)
    assert drain(cluster, "b", "--no-wait").stdout == "node b was asked to leave\n"
    cluster.wait_workers(1, round=1)
    assert b.process.poll() is None
    assert drain(cluster, "b", "--no-wait").stdout == "node b is leaving already\n"
    b.signal(15)
    b.wait_event("signal", "leaving already")
    b.signal_again(15)
    assert b.wait_exit() == 143
    cluster.end_well(a)


def test_A5_draining_the_host_ends_the_job_as_preempted(cluster: Cluster) -> None:
    a, b = cluster.agents("a", "b")
    cluster.wait_workers(2)
    done = drain(cluster, "a")
    assert done.returncode == 0
    last = done.stdout.splitlines()[-1]
    assert last.startswith("node a has left, and the job has ended: node a, which hosts"), last
    assert [a.wait_exit(), b.wait_exit()] == [143, 143]
    assert a.verdict["outcome"] == b.verdict["outcome"] == "preempted"


def test_A7_drain_names_what_is_wrong_in_one_line(cluster: Cluster) -> None:
    a, b = cluster.agents("a", "b")
    cluster.wait_workers(2)
    other = drain(cluster, "a", rdzv_id="another")
    assert other.returncode == 2
    assert "wrong token for job 'another', or another job uses this endpoint" in other.stderr
    assert "--rdzv-id" in other.stderr
    nobody = drain(cluster, "z")
    assert nobody.returncode == 2
    assert "there is no node 'z' in the job; there are a, b" in nobody.stderr
    garbled = drain(cluster, "z\n\x1b[31m")
    assert garbled.returncode == 2
    assert garbled.stderr.isascii()
    assert "\x1b" not in garbled.stderr
    stranger = drain(cluster, "a", "--insecure")
    assert stranger.returncode == 2
    cluster.end_well(a, b)
    cluster.options |= {"rdzv_endpoint": f"127.0.0.1:{free_port()}"}
    gone = drain(cluster, "a")
    assert gone.returncode == 75
    assert "can't reach the coordinator" in gone.stderr
    for failed in (other, nobody, garbled, stranger, gone):
        assert len(failed.stderr.splitlines()) == 1
        assert failed.stdout == ""
