"""`rallypoint stacks`: what the workers of all nodes do just now."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.harness.cluster import Cluster, free_port, wait_until
from tests.harness.limits import patience
from tests.harness.prepared import processes

TRAINS = """
from rallypoint import worker
worker.progress(0)
def all_reduce():
    while "go" not in globals(): obey(); time.sleep(0.02)
def load_batch():
    all_reduce()
(load_batch if me[2] == "2" else all_reduce)()
"""
LIMIT_S = 60.0


def stacks(
    cluster: Cluster, *words: str, job: str = "job", port: int = 0
) -> subprocess.CompletedProcess[str]:
    at = f"127.0.0.1:{port or cluster.port}"
    line = [sys.executable, "-m", "rallypoint", "stacks", *words]
    line += ["--rdzv-endpoint", at, "--job", job]
    return processes.run(line, env=cluster.environ(), capture_output=True, timeout=LIMIT_S)


def functions(cluster: Cluster) -> dict[int, list[str]]:
    """By rank those that its stack names."""
    done = stacks(cluster, "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["rank"]: [part.split()[0] for part in one["stacks"].split(" in ")] for one in found}


def test_V6_the_odd_rank_is_first_and_the_others_are_one_group(
    cluster: Cluster, tmp_path: Path
) -> None:
    a, b = cluster.agents("a", "b", nproc=2, lease=60)
    cluster.wait_workers(4)
    nothing = stacks(cluster)
    assert nothing.returncode == 0, nothing.stderr
    assert "python" in nothing.stdout, "the kernel names the program of a worker without progress"
    cluster.order(TRAINS)

    def hangs() -> bool:
        found = functions(cluster)
        return all("all_reduce" in found[rank] for rank in range(4))

    wait_until(hangs, "all workers to hang")

    def lines_of(*words: str) -> list[str]:
        done = stacks(cluster, *words)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    def is_settled() -> list[str]:
        """All are seen in the same line of their loops."""
        lines = lines_of()
        return lines if sum(not line.startswith(" ") for line in lines) == 2 else []

    lines = wait_until(is_settled, "two groups")
    assert lines[0] == "rank 2 (b):"
    assert any(line.split()[0] == "load_batch" for line in lines[1:])
    others = lines.index("ranks 0-1, 3 (a, b):")
    assert not any("load_batch" in line for line in lines[others:])
    assert lines_of("2")[0] == "rank 2 (b):"
    one_node = [json.loads(line) for line in lines_of("b", "--json")]
    assert [(one["rank"], one["node"], one["round"]) for one in one_node] == [
        (2, "b", 0),
        (3, "b", 0),
    ]
    assert [json.loads(line)["rank"] for line in lines_of("0", "b", "--json")] == [0, 2, 3]

    other = tmp_path / "token"
    other.touch(0o600)
    other.write_text("ab" * 32)
    for failed, code, said in (
        (stacks(cluster, "4"), 2, "there is no rank 4 in round 0; the last is 3"),
        (stacks(cluster, "2-4"), 2, "there is no rank 2-4 in round 0; the last is 3"),
        (stacks(cluster, "c"), 2, "there is no node 'c' in round 0; there are a, b"),
        (stacks(cluster, "3-2"), 2, "3-2: needs a rank, or the first and the last one: 0-7"),
        (stacks(cluster, job="another"), 2, "wrong token for job 'another'"),
        (stacks(cluster, "--token-file", str(other)), 2, "wrong token for job 'job'"),
        (stacks(cluster, port=free_port()), 75, "can't reach the coordinator"),
    ):
        assert failed.returncode == code, failed.stderr
        assert said in failed.stderr
        assert len(failed.stderr.splitlines()) == 1
        assert failed.stdout == ""

    b.pause()
    silent = stacks(cluster, "--json")
    b.resume()
    assert silent.returncode == 0
    assert silent.stderr == "nothing from node b: no answer within 5 s\n"
    assert [json.loads(line)["rank"] for line in silent.stdout.splitlines()] == [0, 1]
    cluster.order("go = 1")
    cluster.end_well(a, b)
    gone = stacks(cluster)
    assert gone.returncode == 75
    assert len(gone.stderr.splitlines()) == 1


def test_a_job_that_has_ended_has_no_stacks(cluster: Cluster) -> None:
    cluster.serve()
    a = cluster.agent("a", nnodes="1")
    b = cluster.agent("b", nnodes="2", rdzv_id="second")
    cluster.wait_workers(1)
    b.wait_event("waiting", "1 of 2 joined")
    waits = stacks(cluster, job="second").stderr
    assert waits == ("rallypoint stacks: no workers run yet: the job's first round has not begun\n")
    cluster.end_well(a)
    over = stacks(cluster)
    assert over.returncode == 2
    assert over.stderr == ("rallypoint stacks: the job has ended: all workers exited with code 0\n")
    b.kill()
    assert b.process.wait(patience(LIMIT_S)) != 0
