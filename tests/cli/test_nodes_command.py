"""`rallypoint nodes`: a person sees what a job holds back, excludes a machine, and allows it."""

from __future__ import annotations

import json

import pytest
from tests.harness.cluster import Cluster, wait_until
from tests.harness.commands import ask


def nodes(cluster: Cluster, *words: str) -> list[str]:
    done = ask(cluster, "nodes", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("by", ["b", "machine-b"], ids=["by node", "by machine"])
def test_A11_a_person_excludes_a_machine_and_allows_it_again(cluster: Cluster, by: str) -> None:
    a = cluster.agent("a", hosts=True, machine_id="machine-a")
    b = cluster.agent("b", hosts=False, machine_id="machine-b")
    cluster.wait_workers(2, round=0)
    assert nodes(cluster) == ["no machine is held back"]
    (said,) = nodes(cluster, "exclude", "b")
    assert said.startswith("the machine of node b is excluded from all further rounds; ")
    assert said.endswith("rallypoint nodes allow b lets it in again")
    assert b.wait_exit() == 143
    cluster.wait_workers(1, round=1)
    head, row = nodes(cluster)
    assert head.split() == ["node", "since", "until", "why"]
    assert row.startswith("b on machine-b (not in the job)  ")
    assert "it is allowed" in row
    (held,) = json.loads(nodes(cluster, "--json")[0])
    assert (held["node"], held["machine"], held["left_s"]) == ("b", "machine-b", None)
    status = ask(cluster, "status").stdout
    assert "machine-b" in status or "node b" in status, status
    assert "exclude" in ask(cluster, "events").stdout

    again = cluster.agent("c", machine_id="machine-b")
    again.wait_event("waiting", "held back")
    nodes(cluster, "allow", by)
    cluster.wait_workers(2, round=2)
    assert nodes(cluster) == ["no machine is held back"]
    cluster.end_well(a, again)
    assert a.verdict["restarts"] == 0


def test_A11_a_machine_that_is_held_back_is_shown_with_the_reason(cluster: Cluster) -> None:
    cluster.options |= {"max_restarts": 2, "nnodes": "1:2"}
    [a] = cluster.running("a", machine_id="machine-a")
    for round_ in (1, 2):
        cluster.order("sys.exit(3)", node="b", round=round_)
    b = cluster.agent("b", hosts=False, machine_id="machine-b")
    b.wait_event("waiting", "held back")
    wait_until(lambda: len(nodes(cluster)) == 2, "the machine to be shown")
    row = nodes(cluster)[1]
    assert row.startswith("b on machine-b  ")
    assert row.endswith("its workers failed 2 times within an hour"), row
    assert "held back" in ask(cluster, "status").stdout
    assert "held back" in ask(cluster, "events").stdout
    nodes(cluster, "allow", "b")
    cluster.wait_workers(2)
    cluster.end_well(a, b)
    assert a.verdict["restarts"] == 1


def test_A11_a_mistake_in_a_node_s_name_is_one_line(cluster: Cluster) -> None:
    cluster.agents("a")
    cluster.wait_workers(1)
    for deed in ("exclude", "allow"):
        done = ask(cluster, "nodes", deed, "z")
        assert (done.returncode, done.stdout) == (2, "")
        assert "'z'" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
    nothing = ask(cluster, "nodes", "exclude")
    assert nothing.returncode == 2
    assert "nodes exclude needs a NODE" in nothing.stderr
    wrong = ask(cluster, "nodes", "forget", "a")
    assert wrong.returncode == 2
    assert "exclude or allow" in wrong.stderr
