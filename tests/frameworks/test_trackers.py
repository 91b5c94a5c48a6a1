"""`--export-run-id`: all rounds of a job are one run of W&B or MLflow, by the real packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.harness.frameworks import framework
from tests.harness.programs import run_program

from rallypoint.agent.environ import tracked_run_id

pytestmark = pytest.mark.frameworks

RUN = ("-m", "rallypoint", "run", "--nproc-per-node", "2", "--max-restarts", "1", "--quiet")
MLFLOW = """
import mlflow, os, signal
from rallypoint.integrations.mlflow import start_run
round_ = int(os.environ["RALLYPOINT_ROUND"])
assert "MLFLOW_RUN_ID" not in os.environ, "an unknown one is an error"
if os.environ["RANK"] == "0":
    with start_run(tags={"mine": "kept"}) as run:
        mlflow.log_metric("round", round_, step=round_)
        print("run", run.info.run_id, flush=True)
        if not round_:
            os.kill(os.getpid(), signal.SIGKILL)
"""
SEEN = """
import mlflow
runs = mlflow.search_runs(output_format="list")
print(len(runs), runs[0].info.status, runs[0].info.run_name, runs[0].data.tags["mine"])
client = mlflow.MlflowClient()
print([point.value for point in client.get_metric_history(runs[0].info.run_id, "round")])
"""
WANDB = """
import os, signal, wandb
if os.environ["RANK"] == "0":
    run = wandb.init(project="p")
    print("run", run.id, run.settings.resume, flush=True)
    if os.environ["RALLYPOINT_ROUND"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    run.finish()
"""


def job(python: Path, folder: Path, program: str, *options: str, **environ: str) -> list[str]:
    """What rank 0 says in both rounds of a job whose first one ends by SIGKILL."""
    script = folder / "train.py"
    script.write_text(program)
    done = run_program(
        [str(python), *RUN, *options, str(script)], cwd=folder, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("run ")]


def test_A16_a_job_is_one_run_of_mlflow_through_a_kill_and_another_job_is_another(
    tmp_path: Path,
) -> None:
    python = framework("mlflow")
    environ = {"MLFLOW_TRACKING_URI": f"file://{tmp_path}/runs", "MLFLOW_ALLOW_FILE_STORE": "true"}
    options = ("--export-run-id", "mlflow", "--rdzv-id")
    first, second = job(python, tmp_path, MLFLOW, *options, "llama/7b", **environ)
    assert first == second
    env = {**os.environ, **environ}
    seen = run_program([str(python), "-c", SEEN], cwd=tmp_path, env=env).stdout.splitlines()
    assert seen == [f"1 FINISHED {tracked_run_id('llama/7b')} kept", "[0.0, 1.0]"]
    assert first not in job(python, tmp_path, MLFLOW, *options, "llama/13b", **environ)


def test_A16_a_job_is_one_run_of_wandb_that_its_second_round_resumes(tmp_path: Path) -> None:
    python = framework("wandb")
    said = job(
        python,
        tmp_path,
        WANDB,
        *("--export-run-id", "wandb,mlflow", "--rdzv-id", "llama:7b#2"),
        WANDB_MODE="offline",
        WANDB_SILENT="true",
    )
    assert len(said) == 2
    assert said[0] == said[1]
    assert said[0].startswith("run llama-7b-2-")
    assert said[0].endswith(" allow")
