"""`rallypoint run` with the environment of one task of a Slurm step."""

from __future__ import annotations

from pathlib import Path

from tests.harness.one_agent import agent, ended

TASK = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n1",
    "SLURMD_NODENAME": "n1",
}
WORKER = "tell('ran')"


def test_a_plain_run_in_two_tasks_of_a_node_runs_no_job_and_says_how_to_run_one(
    tmp_path: Path,
) -> None:
    for task in ("0", "1"):
        run = ended(agent(tmp_path, program=WORKER, env=TASK | {"SLURM_PROCID": task}), 2)
        assert "srun has started 2 tasks on 1 node" in run.err
        assert ("srun --ntasks-per-node 1 rallypoint run" in run.err) == (task == "0")
        assert len(run.err.splitlines()) == 1
        assert not run.told("ran")


def test_standalone_runs_a_job_of_its_own_in_each_task(tmp_path: Path) -> None:
    for task in ("0", "1"):
        env = TASK | {"SLURM_PROCID": task}
        run = ended(agent(tmp_path, "--standalone", program=WORKER, env=env), 0)
        assert len(run.told("ran")) == 1
