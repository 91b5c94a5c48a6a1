"""`--history`: what happened to a job is in a file, agrees with all else that tells of it, and is
read when the job is gone."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.harness.cluster import Cluster, wait_until
from tests.harness.commands import rallypoint
from tests.harness.leading_agents import cluster_of, leader_of
from tests.harness.narrowed import known

from rallypoint.core.watch.history_file import Recorded, read

LIMIT_S = 60.0
STEPS = """
from rallypoint import worker
for step in range({}):
    worker.progress(step)
"""


def recorded(path: Path) -> Recorded:
    return read(path.read_bytes().split(b"\n"))


def metrics_of(url: str) -> dict[str, float]:
    """By name and the value of the one label, if there is one besides those of all."""
    found = {}
    with urlopen(url) as page:
        for line in page.read().decode().splitlines():
            sample = re.fullmatch(r"rallypoint_(\w+)(\{.*\})? (.*)", line)
            if sample is not None:
                reason = re.search(r'reason="(\w+)"', sample[2] or "")
                name = f"{sample[1]} {reason[1]}" if reason else sample[1]
                found[name] = float(sample[3])
    return found


def test_history_events_summary_and_metrics_tell_the_same(cluster: Cluster, tmp_path: Path) -> None:
    history, events = tmp_path / "history.jsonl", tmp_path / "events.jsonl"
    summary = tmp_path / "summary.json"
    a = cluster.agent(
        "a",
        nnodes="2:3",
        max_restarts=2,
        hosts=True,
        history=str(history),
        event_log_handler=f"jsonl:{events}",
        json_summary=str(summary),
        metrics_port="127.0.0.1:0",
    )
    b = cluster.agent("b", nnodes="2:3", max_restarts=2, hosts=False, metrics_port="127.0.0.1:0")
    c = cluster.agent("c", nnodes="2:3", max_restarts=2, hosts=False)
    cluster.wait_workers(3, round=0)
    cluster.order(STEPS.format(20), round=0)
    wait_until(lambda: status_of(cluster)["step"] == 19, "the last step")
    cluster.order("raise RuntimeError('loss is NaN')", round=0, node="b")
    cluster.wait_workers(3, round=1)
    cluster.order(STEPS.format(10), round=1)
    wait_until(lambda: status_of(cluster)["step"] == 9, "a step of the next round")
    c.kill()
    cluster.wait_workers(2, round=2)
    live = status_of(cluster)
    page, of_b = (metrics_of(each.wait_event("metrics").message.split()[-1]) for each in (a, b))
    cluster.end_well(a, b)
    found, told = recorded(history), json.loads(summary.read_text())
    assert [begin.job for begin in found.begins] == ["job"]
    assert found.lost == 0
    # Rounds, their ends and why they were formed.
    rounds = [
        (one.round, one.nodes, one.workers, one.why, one.end, one.end_text) for one in found.rounds
    ]
    fields = ("round", "nodes", "workers", "why", "ended_by", "ended_why")
    assert rounds == [tuple(one[name] for name in fields) for one in told["rounds"]]
    assert [one[4] for one in rounds] == ["failure", "loss", "succeeded"]
    assert found.status is not None
    end = found.status.view
    assert (end.verdict and end.verdict.outcome, end.round) == (told["outcome"], told["round"])
    assert end.verdict is not None
    assert end.verdict.text == told["reason"]
    # Causes.
    cause = known(found.rounds[0].cause)
    assert (cause.node, cause.rank, cause.exit_code) == ("b", 1, 1)
    assert "RuntimeError: loss is NaN" in cause.detail
    lost = known(found.rounds[1].cause)
    assert (lost.node, lost.rank) == ("c", None)
    # Restarts and losses.
    emitted = [json.loads(line) for line in events.read_text().splitlines()]
    names = [each["name"].removeprefix("rallypoint.") for each in emitted]
    mine = [entry.event for entry in found.entries]
    for name in ("round_formed", "restart", "node_lost", "node_joined", "verdict"):
        assert mine.count(name) == names.count(name), name
        said = [each["metadata"]["reason"] for each in emitted if each["name"].endswith(name)]
        assert [entry.text for entry in found.entries if entry.event == name] == said
    (gone,) = (each["metadata"] for each in emitted if each["name"] == "rallypoint.node_lost")
    assert (gone["about"], gone["node"], gone["round"]) == ("c", "a", 1)
    assert gone["reason"].startswith("node c was lost: ")
    assert mine.count("round_ended") == names.count("round_ended") == 2
    assert end.restarts_used == told["restarts_used"] == 1
    counted = [each["counted"] for each in told["restarts"]]
    assert counted == [True, False]
    assert end.goodput.faults == 2
    assert page["restarts_total failure"] == live["restarts_used"] == 1
    assert page["restarts_total loss"] == page["node_losses_total"] == mine.count("node_lost") == 1
    assert page["restarts_remaining"] == live["max_restarts"] - live["restarts_used"]
    assert page["round"] == live["round"] == 2
    assert page["nodes"] == of_b["nodes"] == 2
    assert "job_seconds" in page
    assert "job_seconds" not in of_b, "the host knows"
    # Steps: each round's, and those that were lost with it.
    assert [one.last_step for one in found.rounds] == [19, 9, -1]
    reached = [one["progress"] and one["progress"]["step"] for one in told["rounds"]]
    assert reached == [19, 9, None]
    # Where the time went is all of it.
    assert sum(part.seconds for part in end.goodput.parts) == pytest.approx(end.goodput.wall_s)


def status_at(cluster: Cluster) -> dict[str, Any]:
    """Also while no node leads."""
    where = cluster.options["rdzv_endpoint"]
    done = wait_until(
        lambda: answered(rallypoint(cluster, "status", where, "--job", "job", "--json")), "a leader"
    )
    assert done is not None
    view: dict[str, Any] = json.loads(done.stdout)
    return view


def answered(
    done: subprocess.CompletedProcess[str],
) -> subprocess.CompletedProcess[str] | None:
    return None if done.returncode else done


def status_of(cluster: Cluster) -> dict[str, Any]:
    where = cluster.options["rdzv_endpoint"]
    done = rallypoint(cluster, "status", where, "--job", "job", "--json")
    assert done.returncode == 0, done.stderr
    view: dict[str, Any] = json.loads(done.stdout)
    return view


def test_a_coordinator_of_many_jobs_writes_a_file_for_each(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "histories"
    cluster.serve("--history", str(folder))
    a = cluster.agent("a", nnodes="1", rdzv_id="one")
    b = cluster.agent("b", nnodes="1", rdzv_id="an/other")
    cluster.wait_workers(2)
    cluster.end_well(a, b)
    for name, job, node in (("one", "one", "a"), ("an%2Fother", "an/other", "b")):
        path = folder / f"{name}.jsonl"
        wait_until(lambda path=path: has_ended(path), "the file")  # type: ignore[misc]
        found = recorded(path)
        assert [begin.job for begin in found.begins] == [job]
        assert found.entries[0].text == f"node {node} joined"
        events, status = rallypoint(cluster, "events", path), rallypoint(cluster, "status", path)
        assert events.stdout.endswith(" job succeeded: all workers exited with code 0\n")
        head, line = status.stdout.splitlines()[:2]
        assert re.fullmatch(rf"as {re.escape(str(path))} had it at \d\d:\d\d:\d\d:", head)
        assert line.startswith(f"job {job}: succeeded 0 s ago, round 0: all workers exited")
        as_json = json.loads(rallypoint(cluster, "status", path, "--json").stdout)
        assert (as_json["state"], as_json["rounds"]) == ("succeeded", 1)


def has_ended(path: Path) -> bool:
    found = recorded(path)
    return found.status is not None and found.status.view.verdict is not None


def test_what_is_no_history_is_refused_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    garbage, missing = tmp_path / "garbage.jsonl", tmp_path / "missing.jsonl"
    garbage.write_bytes(os.urandom(3000))
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    history = tmp_path / "history"
    history.write_text('{"kind":"begin","job":"x","incarnation":1,"time":1.0}\n')
    cases = [
        (("events", garbage), f"{garbage}: is not a file that --history has written"),
        (("status", garbage), f"{garbage}: is not a file that --history has written"),
        (("events", missing), f"{missing}: can't be read: No such file or directory"),
        (("events", pipe), f"{pipe}: is no file that --history has written, but a pipe"),
        (("status", history), f"{history}: no status of the job is in it yet"),
        (("events", history, "-f"), "--follow: a file of --history is read, and no job is asked"),
        (("status", history, "--watch"), "--watch: a file of --history is read"),
        (("events", history, "--job", "x"), "--job x: a file of --history is read"),
        (("serve", "--host", "127.0.0.1", "--history", garbage), f"--history {garbage}/: can't be"),
        (
            ("run", "--history", "/no/x", __file__),
            "--history /no/x: can't be written: No such file",
        ),
    ]
    for words, said in cases:
        failed = rallypoint(cluster, *words)
        assert failed.returncode == 2, failed.stderr
        assert said in failed.stderr
        assert len(failed.stderr.splitlines()) == 1
        assert failed.stdout == ""
    assert rallypoint(cluster, "events", history).stdout == "nothing has happened yet\n"


def test_the_next_leader_goes_on_with_the_same_file(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "2:3") as cluster:
        history = tmp_path / "history.jsonl"
        agents = cluster.running(*"abc", history=str(history), max_restarts=1, hosts=None)
        leader = leader_of(*agents)
        others = [agent for agent in agents if agent is not leader]
        cluster.order("raise RuntimeError('loss is NaN')", round=0, node=others[0].name)
        cluster.wait_workers(3, round=1)
        cluster.order(STEPS.format(20), round=1)
        wait_until(lambda: status_at(cluster)["step"] == 19, "the last step")
        # The record that has it is written with the next beat of the leader.
        order = "from rallypoint import worker; worker.progress(20)"
        cluster.order(order, round=1)
        wait_until(lambda: status_at(cluster)["since_s"] > 5.0, "a beat")
        before = status_at(cluster)
        leader.kill()
        cluster.wait_workers(2, round=2)
        # Each node tells again, with a heartbeat, how the rounds before went.
        wait_until(lambda: len(status_at(cluster)["past"]) == 2, "the rounds before the takeover")
        after = status_at(cluster)
        for name in ("age_s", "furthest_step", "rounds"):
            assert after[name] >= before[name], name
        assert after["goodput"]["useful_s"] >= 1.0
        assert after["goodput"]["faults"] == 2
        assert after["rounds"] == 3
        assert [past["end"] for past in after["past"]] == ["failure", "loss"]
        (told,) = before["past"]
        again = after["past"][0]
        for name in ("round", "nodes", "workers", "why", "end", "end_text"):
            assert again[name] == told[name], name
        assert again["cause"]["node"] == told["cause"]["node"] == others[0].name
        assert "RuntimeError: loss is NaN" in again["cause"]["detail"]
        assert {"rendezvous", "spawn", "detect", "stop"} <= again["slowest"].keys()
        assert {"rendezvous", "spawn", "detect", "stop"} <= told["slowest"].keys()
        assert after["past"][1]["why"] == told["end_text"]
        spent = sum(part["seconds"] for part in after["goodput"]["parts"])
        assert spent == pytest.approx(after["goodput"]["wall_s"], rel=0.005)
        text = rallypoint(
            cluster, "status", cluster.options["rdzv_endpoint"], "--job", "job"
        ).stdout
        assert re.search(
            r"unknown     earlier events are kept only by the node that led before \d\d:", text
        )
        cluster.end_well(*others)
        found = recorded(history)
        assert [begin.took_over for begin in found.begins] == [False, True]
        assert found.begins[0].incarnation == found.begins[1].incarnation
        texts = [entry.text for entry in found.entries]
        assert sum(text.startswith("took over round 1 ") for text in texts) == 1
        assert texts[-1] == "job succeeded: all workers exited with code 0"
        numbers = [entry.number for entry in found.entries]
        assert numbers == sorted(set(numbers))


def test_of_a_job_that_failed_the_history_and_the_summary_tell_the_same(
    cluster: Cluster, tmp_path: Path
) -> None:
    history, summary = tmp_path / "history.jsonl", tmp_path / "summary.json"
    a = cluster.agent(
        "a", nnodes="1", max_restarts=1, history=str(history), json_summary=str(summary)
    )
    for round_ in range(2):
        cluster.wait_workers(1, round=round_)
        cluster.order("raise RuntimeError('loss is NaN')", round=round_)
    assert a.wait_exit() == 1
    found, told = recorded(history), json.loads(summary.read_text())
    fields = ("round", "nodes", "workers", "why", "ended_by", "ended_why")
    assert [
        (one.round, one.nodes, one.workers, one.why, one.end, one.end_text) for one in found.rounds
    ] == [tuple(one[name] for name in fields) for one in told["rounds"]]
    assert told["rounds"][1]["ended_why"] == told["reason"]
    assert [one.cause and one.cause.exit_code for one in found.rounds] == [1, 1]
