"""`rallypoint status --slurm 10`: where the job of a Slurm step is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.harness.command_line import SameMachine

from rallypoint.cli.parser import parse
from rallypoint.cli.values import Given
from rallypoint.cli.watch.asking.find import read_job
from rallypoint.cli.watch.asking.slurm_job import locate, read_slurm_job
from rallypoint.cli.watch.status import STATUS
from rallypoint.config import Endpoint, RegisterConfig
from rallypoint.errors import RendezvousConnectionError, UsageError
from rallypoint.integrations.slurm_step import options_of, read_step
from rallypoint.register.version_file import register_name

RUNS = "JobId=10 JobState=RUNNING Restarts={} ReqNodeList=(null) NodeList=n[3-4] BatchHost=n3"


class SlurmMachine(SameMachine):
    """A login host, with what `scontrol` says, and a home that the nodes share."""

    def __init__(self, told: str | None, home: str = "") -> None:
        self.told, self.home = told, home

    def ask_command(self, command: str, timeout_s: float) -> str | None:
        assert command == "scontrol show job -o 10"
        return self.told

    def shared_home(self) -> str:
        return self.home


@pytest.mark.parametrize("step", ["0", "2"])
@pytest.mark.parametrize("restarts", ["0", "1"])
def test_it_is_where_a_task_of_the_step_says(step: str, restarts: str) -> None:
    variables = {
        "SLURM_JOB_ID": "10",
        "SLURM_STEP_ID": step,
        "SLURM_RESTART_COUNT": restarts,
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[3-4]",
        "SLURMD_NODENAME": "n3",
    }
    said = options_of(read_step(variables))
    job = read_slurm_job(Given(f"10.{step}", ""))
    run_id, endpoint, register = locate(job, SlurmMachine(RUNS.format(restarts)))
    assert (run_id, str(endpoint)) == (said["--rdzv-id"].text, said["--rdzv-endpoint"].text)
    assert register is None


def test_a_record_in_a_shared_home_comes_first(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "cluster" / register_name("slurm-10.0")).mkdir(parents=True)
    machine = SlurmMachine(None, str(tmp_path))
    found = locate(read_slurm_job(Given("10", "")), machine)
    assert found == ("slurm-10.0", None, RegisterConfig("file", f"{tmp_path}/cluster"))


def test_the_commands_that_come_next_find_the_job_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\necho '{RUNS.format(0)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    scanned = parse(STATUS, ["--slurm", "10", "--token-file", "t"], {})
    (job,) = read_job(STATUS, scanned, None)
    assert job.words == "n3:20010 --token-file=t --job slurm-10.0"


@pytest.mark.parametrize("told", [None, "", RUNS.format(0).replace("RUNNING", "PENDING")])
def test_a_job_that_does_not_run_is_told_so(told: str | None) -> None:
    with pytest.raises(RendezvousConnectionError, match="Slurm has no job 10 that runs"):
        locate(read_slurm_job(Given("10", "")), SlurmMachine(told))


@pytest.mark.parametrize("text", ["", "x", "10;reboot", "10.", "-1", "1" * 30])
def test_only_numbers_are_asked_for(text: str) -> None:
    with pytest.raises(UsageError, match="needs the number of a Slurm job"):
        read_slurm_job(Given(text, "--slurm"))


def test_its_port_is_that_of_the_step() -> None:
    job = read_slurm_job(Given("10", ""))
    assert locate(job, SlurmMachine(RUNS.format(0)))[1] == Endpoint("n3", 20_010)
