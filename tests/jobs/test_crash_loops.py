"""A2: a script that fails again and again in the same way, and one that gets further each time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness.one_agent import agent, ended

TRAIN = """
import os, sys, time
from rallypoint.worker import progress
round_ = int(os.environ["RALLYPOINT_ROUND"])
tell("began", round_, time.monotonic())
"""


def test_A2_a_job_that_fails_at_the_same_step_ends_when_restarting_does_not_help(
    tmp_path: Path,
) -> None:
    program = TRAIN + (
        "for step in range(118 + round_ % 2, 121): progress(step)\n"
        "raise ValueError(f'batch {os.getpid()} is empty, at {time.time()}')"
    )
    options = ("--max-restarts=10", "--max-no-progress=3", "--exit-code=no-progress=9")
    run = ended(agent(tmp_path, *options, "--json-summary=summary.json", program=program), 9)
    began = {int(line.split()[0]): float(line.split()[1]) for line in run.told("began")}
    assert sorted(began) == [0, 1, 2]
    assert began[2] - began[1] >= 1.0, "the second equal failure is followed by a pause"
    restarts = [line.partition(": ")[2] for line in run.said if "restart " in line]
    repeated = "restart 2 of 10 in 1 s: the same failure 2 times at step 120"
    assert restarts[:2] == ["restart 1 of 10", repeated]
    verdict = next(line for line in run.said if " failed: " in line)
    words = "in round 2; the same failure 3 times at step 120, restarting does not help"
    assert verdict.endswith(f"{words} (--max-no-progress 3)")
    assert "restarts: 2 of 10 used" in run.err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["outcome"], summary["no_progress"], summary["exit_code"]) == ("failed", True, 9)


def test_A2_a_job_that_gets_further_each_time_is_neither_paused_nor_ended(tmp_path: Path) -> None:
    program = TRAIN + (
        "for step in range(10 * round_, 10 * round_ + 10): progress(step)\n"
        "if round_ < 4: raise ValueError(f'batch {os.getpid()} is empty')"
    )
    run = ended(agent(tmp_path, "--max-restarts=9", "--max-no-progress=2", program=program), 0)
    assert len(run.told("began")) == 5
    restarts = [line.partition(": ")[2] for line in run.said if "restart " in line]
    assert restarts[:4] == [f"restart {number} of 9" for number in (1, 2, 3, 4)]
