"""`rallypoint events`: what happened to a job, as it happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cluster import Cluster, wait_until
from tests.harness.commands import ask, is_refused, line_of, rallypoint, start
from tests.harness.limits import patience

LIMIT_S = 60.0


def texts(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the lines say, with the mark and without the time."""
    assert done.returncode == 0, done.stderr
    found = [re.fullmatch(r"\d\d:\d\d:\d\d ([! ]) (.*)", line) for line in done.stdout.splitlines()]
    return [f"{each[1]} {each[2]}" for each in found if each is not None]


def follow(cluster: Cluster, out: Path) -> subprocess.Popen[Any]:
    with out.open("wb") as file:
        return start(cluster, "events", "-f", stdout=file, stderr=None)


def tells_of(out: Path, text: str) -> bool:
    return text in out.read_text()


def test_V2_events_tell_the_story_of_a_job_and_follow_it_to_its_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Also of one that a coordinator for many jobs hosts."""
    cluster.serve()
    (a,) = cluster.running("a", nnodes="1", max_restarts=2, hosts=None)
    out, left = tmp_path / "followed", tmp_path / "left"
    following, leaver = follow(cluster, out), follow(cluster, left)
    for each in (out, left):
        wait_until(partial(tells_of, each, "round 0: 1 node"), "a follower")
    leaver.kill()
    leaver.wait()
    cluster.order("sys.exit(3)", round=0)
    cluster.wait_workers(1, round=1)
    failed = ask(cluster, "events", "--failed")
    assert texts(failed) == [
        "! round 0 ended: rank 0 (node a, local rank 0) exited with code 3",
        "! restart 1 of 2 (node a)",
    ]
    wait_until(partial(tells_of, out, "round 1: 1 node"), "the next round")
    cluster.end_well(a)
    assert following.wait(patience(LIMIT_S)) == 0
    told = texts(subprocess.CompletedProcess([], 0, out.read_text(), ""))
    assert told == [
        "  node a joined",
        "  round 0: 1 node, 1 worker",
        "! round 0 ended: rank 0 (node a, local rank 0) exited with code 3",
        "! restart 1 of 2 (node a)",
        "  round 1: 1 node, 1 worker (rank 0 (node a, local rank 0) exited with code 3)",
        "  job succeeded: all workers exited with code 0",
    ]
    # The job has ended by now, and a coordinator for many still knows it.
    assert texts(ask(cluster, "events")) == texts(ask(cluster, "events", "-f")) == told
    newest = ask(cluster, "events", "--last", "3")
    assert newest.stdout.splitlines()[0] == "... 4 earlier events: --all, or --last N"
    assert texts(newest) == told[-2:]
    assert texts(ask(cluster, "events", "--all", "--since", "1h")) == told
    records = [json.loads(line) for line in ask(cluster, "events", "--json").stdout.splitlines()]
    assert [record["number"] for record in records] == list(range(1, 7))
    assert [record["event"] for record in records][-1] == "verdict"
    assert [record["is_wrong"] for record in records].count(True) == 2
    assert ask(cluster, "events", "--failed", "--since", "23456d").returncode == 0
    assert ask(cluster, "events", "--json", "--last", "1").stdout.count("\n") == 1


def test_V2_who_follows_sees_all_events_of_a_job_that_was_begun_anew(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Though its coordinator, which knows nothing of the one before, has fewer to tell."""
    server = cluster.serve()
    (a,) = cluster.agents("a", nnodes="1", max_restarts=9, hosts=None, lease=60)
    for round_ in range(4):
        (worker,) = cluster.wait_workers(1, round=round_)
        cluster.order(f"if os.getpid() == {worker.pid}: sys.exit({round_ + 1})")
    out = tmp_path / "followed"
    following = follow(cluster, out)
    wait_until(partial(tells_of, out, "round 4: 1 node"), "a follower")
    before = len(out.read_text().splitlines())
    server.kill()
    cluster.serve()
    a.wait_event("session_anew")
    wait_until(lambda: len(out.read_text().splitlines()) > before, "the follower to come")
    cluster.end_well(a)
    assert following.wait(patience(LIMIT_S)) == 0
    told = subprocess.CompletedProcess([], 0, "\n".join(out.read_text().splitlines()[before:]), "")
    assert texts(told) == [
        "  node a joined",
        "  round 0: 1 node, 1 worker",
        "  job succeeded: all workers exited with code 0",
    ]


def test_events_of_no_more_than_a_screen(cluster: Cluster) -> None:
    cluster.options |= {"rdzv_id": f"mine-{os.getpid()}-{cluster.port}"}
    job = str(cluster.options["rdzv_id"])
    (a,) = cluster.agents("a", nnodes="1", max_restarts=9)
    for round_ in range(9):
        cluster.wait_workers(1, round=round_)
        cluster.order(f"sys.exit({round_ + 1})", round=round_)
    cluster.wait_workers(1, round=9)
    # It is found without an endpoint.
    done = rallypoint(cluster, "events", "--job", job)
    assert len(done.stdout.splitlines()) == 24, done.stderr
    assert done.stdout.startswith("... 6 earlier events: --all, or --last N\n")
    assert len(texts(ask(cluster, "events", "--all", job=job))) == 29
    cluster.end_well(a)


def test_events_name_what_is_wrong_in_one_line(cluster: Cluster) -> None:
    (a,) = cluster.running("a", nnodes="1", rdzv_id="job", round=None)
    cases = [
        (
            ask(cluster, "events", "--since", "yesterday"),
            2,
            "--since yesterday: needs an age like 90s",
        ),
        (ask(cluster, "events", "--last", "0"), 2, "--last 0: needs 1 to"),
        (ask(cluster, "events", "--last", "3", "--all"), 2, "--all shows more than that"),
    ]
    cluster.end_well(a)
    for failed, code, said in cases:
        is_refused(failed, code, said)


@pytest.mark.executed
def test_a_reader_that_leaves_ends_events_quietly(cluster: Cluster) -> None:
    (a,) = cluster.running("a", nnodes="1", max_restarts=1)
    line = " ".join(line_of(cluster, "events", "-f"))
    reading = subprocess.Popen(
        ["bash", "-c", f"set -o pipefail; {line} | head -n 1"],
        env=cluster.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reading.stdout is not None
    assert "node a joined" in reading.stdout.readline()
    cluster.order("sys.exit(3)", round=0)
    out, err = reading.communicate(timeout=patience(LIMIT_S))
    assert (reading.returncode, out, err) == (0, "", "")
    cluster.wait_workers(1, round=1)
    cluster.end_well(a)
