"""The variables of --env-style beside those that the real launchers set."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest
from tests.harness.frameworks import framework, path_with
from tests.harness.one_agent import agent, ended

pytestmark = pytest.mark.frameworks

PRINTS = """
import json, os
os.write(1, ("is " + json.dumps(dict(os.environ)) + "\\n").encode())
"""
OF_A_PROCESS_OF_MPIRUN = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE")


def by_rank(lines: list[str], rank: str) -> dict[str, dict[str, str]]:
    """The environment of each process."""
    found = [json.loads(line[3:]) for line in lines if line.startswith("is ")]
    return {each[rank]: each for each in found}


def ours(home: Path, style: str, begin: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """By rank, the variables that begin so."""
    job = ended(agent(home, "--nproc-per-node=2", "--env-style", style, program=PRINTS), 0)
    found = by_rank(job.out.splitlines(), "RANK")
    return {rank: of_these(each, begin) for rank, each in found.items()}


def of_these(environ: dict[str, str], begin: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(begin)}


def theirs(home: Path, name: str, *command: str) -> list[str]:
    """What a launcher of this environment has its processes print."""
    python = framework(name)
    (home / "prints.py").write_text(PRINTS)
    environ = {"PATH": path_with(python), "HOME": str(home), "TMPDIR": str(home)}
    done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_A14_deepspeeds_are_those_of_its_launcher(tmp_path: Path) -> None:
    hosts = json.dumps({"localhost": [0, 1]}).encode()
    world = f"--world_info={base64.urlsafe_b64encode(hosts).decode()}"
    launch = ("python", "-m", "deepspeed.launcher.launch", world, "--master_port=29500")
    names = ("LOCAL_SIZE", "CROSS_", "LOCAL_RANK", "WORLD_SIZE")
    found = by_rank(theirs(tmp_path, "deepspeed", *launch, "prints.py"), "RANK")
    assert {rank: of_these(each, names) for rank, each in found.items()} == ours(
        tmp_path, "deepspeed", names
    )


def test_A14_mpis_are_those_of_mpirun(tmp_path: Path) -> None:
    launch = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "python", "prints.py")
    found = by_rank(theirs(tmp_path, "openmpi", *launch), "OMPI_COMM_WORLD_RANK")
    assert {rank: of_these(each, OF_A_PROCESS_OF_MPIRUN) for rank, each in found.items()} == ours(
        tmp_path, "mpi", OF_A_PROCESS_OF_MPIRUN
    )
