"""A12: jobs of real workers that run for longer than `--max-runtime`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness.cluster import wait_until
from tests.harness.commands import ask
from tests.harness.leading_agents import cluster_of, led_job, lose_leader
from tests.harness.one_agent import agent, ended

SAVES = """
import time
from rallypoint import worker
step = 0
while not worker.drain_requested():
    time.sleep(0.01)
    step += 1
    worker.progress(step)
worker.checkpoint_saved(step)
tell("saved", step)
while True:
    time.sleep(1)
"""
RUNS_ON = "import time; tell('began', 1); time.sleep(600)"
LIMIT_S = 3600


def test_A12_a_job_whose_time_is_over_saves_a_checkpoint_and_ends_with_124(tmp_path: Path) -> None:
    """The workers have so long to begin to listen, on a machine that is busy with tests."""
    options = ("--max-runtime=6", "--max-restarts=3", "--json-summary=summary.json")
    run = ended(agent(tmp_path, *options, program=SAVES), 124)
    assert len(run.told("saved")) == 1
    assert any("a last checkpoint is asked for" in line for line in run.said)
    assert any("ran out of time in round 0: it has run for 6 s" in line for line in run.said)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["outcome"], summary["exit_code"]) == ("out of time", 124)
    assert summary["restarts"] == []


def test_A12_the_exit_code_may_be_chosen_and_workers_that_do_not_listen_are_stopped(
    tmp_path: Path,
) -> None:
    options = ("--max-runtime=0.5", "--exit-code=out-of-time=9")
    run = ended(agent(tmp_path, *options, program=RUNS_ON), 9)
    assert len(run.told("began")) == 1


def test_A12_the_next_leader_keeps_counting_the_time_of_the_job(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "1:2", max_runtime=LIMIT_S) as cluster:

        def left_s() -> float:
            done = ask(cluster, "status", "--json")
            left = json.loads(done.stdout)["ends_in_s"] if done.returncode == 0 else None
            return LIMIT_S if left is None else float(left)

        leader, (other,) = led_job(cluster, "ab")
        wait_until(lambda: left_s() < LIMIT_S - 5, "some seconds to pass")
        lose_leader(cluster, [leader, other], cluster.workers())
        assert left_s() < LIMIT_S - 2, "at most the seconds since the last record are not counted"
        cluster.end_well(other)
