"""`rallypoint stacks`: what the workers of all nodes do just now."""

from __future__ import annotations

import json

from tests.harness.cluster import Cluster, wait_until
from tests.harness.commands import ask, is_refused
from tests.harness.limits import patience

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


def functions(cluster: Cluster) -> dict[int, list[str]]:
    """By rank those that its stack names."""
    done = ask(cluster, "stacks", "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["rank"]: [part.split()[0] for part in one["stacks"].split(" in ")] for one in found}


def test_V6_the_odd_rank_is_first_and_the_others_are_one_group(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", nproc=2, lease=60, round=None)
    nothing = ask(cluster, "stacks")
    assert nothing.returncode == 0, nothing.stderr
    assert "python" in nothing.stdout, "the kernel names the program of a worker without progress"
    cluster.order(TRAINS)

    def hangs() -> bool:
        found = functions(cluster)
        return all("all_reduce" in found[rank] for rank in range(4))

    wait_until(hangs, "all workers to hang")

    def lines_of(*words: str) -> list[str]:
        done = ask(cluster, "stacks", *words)
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

    for failed, code, said in (
        (ask(cluster, "stacks", "4"), 2, "there is no rank 4 in round 0; the last is 3"),
        (ask(cluster, "stacks", "2-4"), 2, "there is no rank 2-4 in round 0; the last is 3"),
        (ask(cluster, "stacks", "c"), 2, "there is no node 'c' in round 0; there are a, b"),
        (ask(cluster, "stacks", "3-2"), 2, "3-2: needs a rank, or the first and the last one: 0-7"),
    ):
        is_refused(failed, code, said)

    b.pause()
    silent = ask(cluster, "stacks", "--json")
    b.resume()
    assert silent.returncode == 0
    assert silent.stderr == "nothing from node b: no answer within 5 s\n"
    assert [json.loads(line)["rank"] for line in silent.stdout.splitlines()] == [0, 1]
    cluster.order("go = 1")
    cluster.end_well(a, b)
    gone = ask(cluster, "stacks")
    assert gone.returncode == 75
    assert len(gone.stderr.splitlines()) == 1


def test_a_job_that_has_ended_has_no_stacks(cluster: Cluster) -> None:
    cluster.serve()
    a = cluster.agent("a", nnodes="1")
    b = cluster.agent("b", nnodes="2", rdzv_id="second")
    cluster.wait_workers(1)
    b.wait_event("waiting", "1 of 2 joined")
    waits = ask(cluster, "stacks", job="second").stderr
    assert waits == ("rallypoint stacks: no workers run yet: the job's first round has not begun\n")
    cluster.end_well(a)
    over = ask(cluster, "stacks")
    assert over.returncode == 2
    assert over.stderr == ("rallypoint stacks: the job has ended: all workers exited with code 0\n")
    b.kill()
    assert b.process.wait(patience(LIMIT_S)) != 0
