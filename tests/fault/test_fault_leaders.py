"""Jobs of which any node may lead, by a directory that all share, when something fails that the
leader needs. `make fault RUNS=135` has 128 of the 135 pairs of a fault and a state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fault.leader_runs import Plan, run
from tests.fault.leaders import LeaderCluster

ABOVE_THE_HOLD = 2
"""With this seed a directory is away for longer than a leader's hold, but not than its consent."""


def test_L6_a_leader_that_is_killed_while_it_trains_costs_a_round_and_no_restart(
    tmp_path: Path,
) -> None:
    """Workers that lose their peer in the middle of a step fail, too, and are not counted."""
    run(tmp_path, Plan("kill", "run", is_ddp=True))


def test_L5_the_loss_of_a_leader_that_stands_by_restarts_no_worker(tmp_path: Path) -> None:
    run(tmp_path, Plan("stop", "spare"))


def test_L1_a_leader_that_is_cut_off_is_replaced_and_takes_part_again(tmp_path: Path) -> None:
    run(tmp_path, Plan("cut", "run"))


def test_L2_a_directory_that_is_away_for_longer_than_the_hold_disturbs_nobody(
    tmp_path: Path,
) -> None:
    run(tmp_path, Plan("hide_all", "run", seed=ABOVE_THE_HOLD))


def test_L1_a_leader_that_was_stopped_between_the_swap_and_telling_of_it_changes_nothing(
    tmp_path: Path,
) -> None:
    """A worker's failure is counted once, which it alone has recorded, and as a rule told nobody
    of; another node leads when it wakes."""
    led, *_ = run(tmp_path, Plan("stop_after_swap", "run")).split()
    assert int(led) >= 2


def test_L1_a_candidate_that_is_killed_while_it_leads_is_replaced_by_a_node(tmp_path: Path) -> None:
    assert "candidate led" in run(tmp_path, Plan("kill_candidate", "spare"))


def test_L2_a_directory_that_its_file_server_has_lost_track_of_disturbs_nobody(
    tmp_path: Path,
) -> None:
    run(tmp_path, Plan("stale", "run"))


def test_the_quick_benchmark_of_leaders_fills_its_table(tmp_path: Path) -> None:
    program = Path(__file__).resolve().parents[2] / "benchmarks" / "leaders.py"
    command = [sys.executable, str(program), "--quick"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert "its agent is killed" in done.stdout
    assert "met (1.5)" in done.stdout or "missed (1.5)" in done.stdout
    assert not list(tmp_path.iterdir())


def test_L1_two_jobs_in_one_directory_have_a_leader_each(tmp_path: Path) -> None:
    with LeaderCluster(tmp_path, *"abcd", nnodes="1:2", rdzv_conf="last_call_timeout=600") as both:
        first = [both.agent(name, rdzv_id="one") for name in "ab"]
        second = [both.agent(name, rdzv_id="two") for name in "cd"]
        both.wait_workers(4, round=0)
        killed = both.leading("one")
        both.node(killed).kill()
        (left,) = (agent for agent in first if agent.name != killed)
        left.wait_event("round_joined", round=1)
        both.end_well(left, *second)
        assert [worker.round for agent in second for worker in agent.workers()] == [0, 0]
        assert both.epoch("one") == 2
        assert both.epoch("two") == 1
