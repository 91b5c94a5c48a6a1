"""--hang-timeout: a worker that makes no progress is noticed, and the one that is behind blamed."""

from __future__ import annotations

import stat
from pathlib import Path
from shutil import rmtree

import pytest
from tests.harness.cluster import Cluster

AHEAD = "from rallypoint import worker; worker.progress(42)"
STUCK = """
from rallypoint import worker
def stuck_here():
    time.sleep(600)
worker.progress(17)
stuck_here()
"""


@pytest.fixture
def impatient(cluster: Cluster) -> Cluster:
    cluster.options |= {"hang_timeout": 1.5, "restart_grace": 0.5}
    return cluster


def test_A2_the_rank_that_is_behind_is_blamed_and_the_job_restarts(impatient: Cluster) -> None:
    """All fall silent, but only one of them hangs; its node may notice it last."""
    a, b = impatient.running("a", "b", max_restarts=1)
    impatient.order(AHEAD, round=0, rank=0)
    impatient.order(STUCK, round=0, rank=1)
    ended = a.wait_event("round_ended", "no progress for", round=0).message
    assert "rank 1 (node b, local rank 0) made no progress for" in ended
    assert "at step 17 while others are at 42" in ended
    impatient.wait_workers(2, round=1)
    paths = []
    for agent in (a, b):
        said = agent.wait_event("stacks", round=0).message
        paths.append(Path(said.removeprefix("the stacks of the workers of this node are in ")))
    texts = [path.read_text() for path in paths]
    assert "rank 0, at step 42" in texts[0]
    assert "rank 1, at step 17" in texts[1]
    assert "stuck_here" in texts[1]
    for path in paths:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        rmtree(path.parent)  # kept, as was told, whatever the end
    impatient.end_well(a, b)
    assert a.verdict["restarts"] == 1


def test_A3_a_hang_is_the_first_cause_on_every_node(impatient: Cluster) -> None:
    a, b = impatient.running("a", "b", log_dir=str(impatient.folder / "logs"), round=None)
    impatient.order(AHEAD, rank=0)
    impatient.order(STUCK, rank=1)
    assert [a.wait_exit(), b.wait_exit()] == [1, 1]
    for agent in (a, b):
        cause = agent.verdict["cause"]
        assert (cause["node"], cause["rank"]) == ("b", 1)
        assert "at step 17 while others are at 42" in cause["message"]
        assert cause["detail"][0] == "what it was doing:"
        assert any("stuck_here" in line for line in cause["detail"])
        assert Path(cause["log_file"]).is_relative_to(impatient.folder / "logs")


def test_A4_who_never_tells_or_has_ended_does_not_hang(impatient: Cluster) -> None:
    a, b = impatient.running("a", "b", nproc=2, round=None)
    impatient.order("from rallypoint import worker; worker.progress(1); sys.exit(0)", rank=0)
    impatient.order(
        "from rallypoint import worker\n"
        "for step in range(20): worker.progress(step); time.sleep(0.2)\n"
        "sys.exit(0)",
        rank=1,
    )
    a.wait_event("succeeded")
    impatient.end_well(a, b)
    assert a.verdict["restarts"] == 0
    assert "hang_suspected" not in {event.name for event in a.events}


def test_A4_hang_timeout_says_once_that_no_worker_tells_its_steps(impatient: Cluster) -> None:
    """Without steps a hang is never seen, so a person must not believe that it would be."""
    a, b = impatient.running("a", "b", log_dir=str(impatient.folder / "logs"), max_restarts=1)
    said = a.wait_event("notice", "--hang-timeout").message
    assert said == (
        "--hang-timeout 1.5 can't see a hang yet: no worker of this node has reported a step; call "
        "rallypoint.worker.progress(step), or give --progress-pattern"
    )
    impatient.order("sys.exit(1)", round=0, rank=0)
    impatient.wait_workers(2, round=1)
    impatient.order(STUCK, round=1, rank=1)
    assert [a.wait_exit(), b.wait_exit()] == [1, 1]
    told = [event for agent in (a, b) for event in agent.events if event.name == "notice"]
    assert len(told) == 1


def test_A15_a_start_without_any_step_is_a_hang_when_its_own_time_is_over(
    impatient: Cluster,
) -> None:
    impatient.options["hang_timeout"] = "60,start=1.5"
    a, b = impatient.running("a", "b", max_restarts=1, log_dir=str(impatient.folder / "logs"))
    ended = a.wait_event("round_ended", "no progress for", round=0).message
    assert "no step since its start; which rank hangs is unknown: see all stacks" in ended
    impatient.wait_workers(2, round=1)
    impatient.order(AHEAD, round=1, rank=0)
    impatient.end_well(a, b)
    assert a.verdict["restarts"] == 1


def test_A15_ranks_that_tell_no_steps_do_not_hang_in_their_start(impatient: Cluster) -> None:
    """Node b tells none, and node a goes on for three times as long as a start may take."""
    impatient.options["hang_timeout"] = "60,start=1"
    a, b = impatient.running("a", "b", round=None)
    impatient.order(
        "from rallypoint import worker\n"
        "for step in range(30): worker.progress(step); time.sleep(0.1)\n"
        "sys.exit(0)",
        rank=0,
    )
    a.wait_event("succeeded")
    impatient.end_well(a, b)
    assert "hang_suspected" not in {event.name for event in a.events}


def test_A15_nobody_hangs_while_a_rank_is_in_its_phase_which_others_wait_for(
    impatient: Cluster,
) -> None:
    """Rank 1 evaluates for longer than a step may take, and hangs after that."""
    impatient.options["hang_timeout"] = "1.5,evaluation=60"
    a, b = impatient.running("a", "b", max_restarts=1, log_dir=str(impatient.folder / "logs"))
    impatient.order(AHEAD, round=0, rank=0)
    impatient.order(
        "from rallypoint import worker\n"
        "def evaluate(): time.sleep(5)\n"
        "def stuck_later(): time.sleep(600)\n"
        "worker.progress(17)\n"
        "with worker.phase('evaluation'): evaluate()\n"
        "stuck_later()",
        round=0,
        rank=1,
    )
    ended = a.wait_event("round_ended", "no progress for", round=0).message
    assert "rank 1 (node b, local rank 0) made no progress for" in ended
    assert ended.endswith("at step 17 while others are at 42")
    said = b.wait_event("stacks", round=0).message
    assert "stuck_later" in Path(said.partition(" are in ")[2]).read_text()
    impatient.wait_workers(2, round=1)
    impatient.end_well(a, b)


def test_A15_a_phase_may_have_a_shorter_limit_than_a_step(impatient: Cluster) -> None:
    impatient.options["hang_timeout"] = "600,checkpoint=1.5"
    a, b = impatient.running("a", "b", max_restarts=1, log_dir=str(impatient.folder / "logs"))
    impatient.order(AHEAD, round=0, rank=0)
    impatient.order(
        "from rallypoint import worker\n"
        "worker.progress(42)\n"
        "with worker.phase('checkpoint'): time.sleep(600)",
        round=0,
        rank=1,
    )
    ended = a.wait_event("round_ended", "no progress for", round=0).message
    assert "rank 1 (node b, local rank 0) made no progress for" in ended
    assert "in its phase checkpoint, at step 42" in ended
    impatient.wait_workers(2, round=1)
    impatient.end_well(a, b)
