"""`rallypoint run` with the environment of one task of a Slurm step."""

from __future__ import annotations

from pathlib import Path

from tests.integration.one_agent import agent

TASK = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
WORKER = "tell('ran')"


def test_a_plain_run_in_two_tasks_runs_no_job_and_says_how_to_run_one(tmp_path: Path) -> None:
    for task in ("0", "1"):
        with agent(tmp_path, program=WORKER, env=TASK | {"SLURM_PROCID": task}) as run:
            assert run.wait() == 2
        assert "srun has started this command 2 times" in run.err
        assert ("srun rallypoint run --nnodes" in run.err) == (task == "0")
        assert not run.told("ran")


def test_standalone_runs_a_job_of_its_own_in_each_task(tmp_path: Path) -> None:
    for task in ("0", "1"):
        env = TASK | {"SLURM_PROCID": task}
        with agent(tmp_path, "--standalone", program=WORKER, env=env) as run:
            assert run.wait() == 0, run.err
        assert len(run.told("ran")) == 1
