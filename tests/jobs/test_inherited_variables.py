"""Workers do not take themselves for the task that their agent is to a scheduler, however they
start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.harness.function_job import function_job
from tests.harness.one_agent import agent, ended

TASK = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "PMI_RANK": "3", "OMPI_COMM_WORLD_RANK": "3"}
JOB = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8", "OMPI_MCA_btl": "tcp"}
NAMES = sorted({**TASK, **JOB})
TELLS = f"""
import json, os
found = {{name: os.environ[name] for name in {NAMES} if name in os.environ}}
tell("has", json.dumps(found, sort_keys=True))
"""
SAYS_WHEN_IMPORTED = """
import os
os.write(1, f"imported {'SLURM_PROCID' in os.environ}\\n".encode())
"""


def has(told: list[str]) -> dict[str, str]:
    """The variables that two workers have told, which are the same."""
    one, two = (json.loads(each) for each in told)
    assert one == two
    return dict(one)


@pytest.mark.parametrize("how", [(), ("--preload", "json"), ("--run-path",)])
def test_A13_no_worker_gets_what_describes_its_agents_task(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    options = ("--scheduler", "none", "--nproc-per-node", "2", *how)
    job = ended(agent(tmp_path, *options, program=TELLS, env=TASK | JOB), 0)
    assert has(job.told("has")) == JOB
    options = (*options, "--keep-env", "SLURM_PROCID", "--keep-env", "PMI_*")
    job = ended(agent(tmp_path, *options, program=TELLS, env=TASK | JOB), 0)
    assert has(job.told("has")) == JOB | {"SLURM_PROCID": "3", "PMI_RANK": "3"}


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_A13_no_function_gets_it(tmp_path: Path, method: str) -> None:
    functions = f"""
def variables():
    return {{name: os.environ[name] for name in {NAMES} if name in os.environ}}
"""
    launch = f"variables, method={method!r}, keep_env=('SLURM_NTASKS',)"
    with function_job(tmp_path, functions, launch, env=TASK | JOB) as job:
        assert job.wait() == 0
    kept = JOB | {"SLURM_NTASKS": "4"}
    assert eval(job.told("returned")[0]) == {0: kept, 1: kept}


def test_A13_nor_do_modules_that_are_imported_once_for_all(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS_WHEN_IMPORTED)
    env = TASK | {"PYTHONPATH": str(tmp_path)}
    options = ("--scheduler", "none", "--preload", "says")
    job = ended(agent(tmp_path, *options, program="import says", env=env), 0)
    assert job.told("imported") == ["False"]


def test_an_option_that_keeps_nothing_is_said(tmp_path: Path) -> None:
    job = ended(agent(tmp_path, "--keep-env", "SLURM_JOB_ID", program="", env=JOB), 0)
    assert any("--keep-env SLURM_JOB_ID has no effect" in line for line in job.said)
