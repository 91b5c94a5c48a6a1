"""docs/frameworks.md: each command line runs, with a worker or a node killed on the way.

A script of tests/frameworks/programs stands for the train.py of a line. It trains for 20 steps,
saves a checkpoint at every fifth, and prints the step at which it begins and what it has learnt at
the end.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.docs.page import DOCS, commands
from tests.harness.cluster import wait_until
from tests.harness.frameworks import framework, path_with
from tests.harness.limits import patience
from tests.harness.one_agent import environment, marked

PROGRAMS = Path(__file__).with_name("programs")
LIMIT_S = 90.0
TRAINING = [
    ("PyTorch", "", "with_torch.py"),
    ("Lightning and Fabric", "lightning", "with_lightning.py"),
    ("Lightning and Fabric", "lightning", "with_fabric.py"),
    ("Accelerate", "accelerate", "with_accelerate.py"),
    ("HF Trainer", "transformers", "with_trainer.py"),
    ("DeepSpeed", "deepspeed", "with_deepspeed.py"),
    ("JAX", "jax", "with_jax.py"),
    ("TensorFlow", "tensorflow", "with_tensorflow.py"),
]
"""Sections whose job resumes after the loss of a worker: its environment, and what is train.py."""
OTHERS = (
    "FSDP2 and distributed checkpoints",
    "MPI programs",
    "Hydra",
    "Ray inside",
    "Notebooks",
    "uv",
)
"""Sections that have a test of their own."""


def lines() -> dict[str, str]:
    """The command line of each section."""
    sections = re.findall(
        r"^## (.+?)\n\n```\n(.*?)^```$", (DOCS / "frameworks.md").read_text("utf-8"), re.M | re.S
    )
    found = {name: commands(block) for name, block in sections}
    return {name: line for name, (line,) in found.items()}


LINES = lines()


class Ended(NamedTuple):
    """A job that has ended with exit code 0, by what it has written."""

    out: str
    err: str

    def told(self, key: str) -> list[str]:
        """What follows this word on the lines of stdout that begin with it."""
        return re.findall(rf"^{key} (.*)$", self.out, re.M)


class Job:
    """One command line, run by a shell in a folder of its own, with a framework in its PATH."""

    def __init__(self, folder: Path, python: Path, line: str, script: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        shutil.copy(PROGRAMS / script, folder / "train.py")
        shutil.copy(PROGRAMS / "faults.py", folder)
        self.mark = uuid.uuid4().hex
        name = f"of-{self.mark}"
        own = environment(folder, self.mark, PATH=path_with(python), OMP_NUM_THREADS="1")
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {line}"],
                cwd=folder,
                env=own | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")} | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def so_far(self) -> Ended:
        return Ended(self._out.read_text(), self._err.read_text())

    def wait(self) -> Ended:
        """The end, which must be a good one; then no process of the job may be left."""
        code = self.process.wait(patience(LIMIT_S))
        said = self.so_far
        assert code == 0, f"exit code {code}:\n{said.out[-2000:]}\n{said.err[-6000:]}"
        assert marked(self.mark) == []
        return said

    def clear(self) -> None:
        """Kill whatever a failed test has left."""
        self.process.kill()
        for pid in marked(self.mark):
            os.kill(pid, 9)
        self.process.wait()


@contextmanager
def job(
    folder: Path, name: str, script: str, environment_of: str = "", **env: str
) -> Iterator[Job]:
    """The command line of a section, while it runs."""
    python = framework(environment_of) if environment_of else Path(sys.executable)
    made = Job(folder, python, env.pop("line", LINES[name]), script, **env)
    try:
        yield made
    finally:
        made.clear()


def test_every_line_of_the_page_has_a_test() -> None:
    assert set(LINES) == {*(name for name, *_ in TRAINING), *OTHERS}


@pytest.mark.parametrize(("name", "of", "script"), TRAINING, ids=[row[2] for row in TRAINING])
def test_a_killed_worker_changes_no_result(name: str, of: str, script: str, tmp_path: Path) -> None:
    with (
        job(tmp_path / "undisturbed", name, script, of) as undisturbed,
        job(tmp_path / "killed", name, script, of, FAULT_AT="12") as killed,
    ):
        expected, found = undisturbed.wait(), killed.wait()
    assert_restarted(found)
    assert found.told("first") == ["0", "0", "10", "10"]
    (final,) = expected.told("final")
    assert final.split()[0] == "20"
    assert found.told("final") == [final]


def test_fsdp_goes_on_in_a_smaller_world_when_a_node_is_killed(tmp_path: Path) -> None:
    """The checkpoint of two workers is loaded by one, and the result is that of two."""
    name = "FSDP2 and distributed checkpoints"
    line = LINES[name].replace("/shared/jobs", str(tmp_path / "jobs"))
    shared = {"line": line, "FAULT": "wait", "HOME": str(tmp_path)}
    (tmp_path / "jobs").mkdir()
    alone = LINES["PyTorch"]
    folder = tmp_path / "killed"
    with (
        job(tmp_path / "undisturbed", name, "with_fsdp.py", line=alone) as undisturbed,
        job(folder, name, "with_fsdp.py", **shared, FAULT_AT="12", RALLYPOINT_NODE_ID="a") as a,
        job(folder, name, "with_fsdp.py", **shared, FAULT_AT="12", RALLYPOINT_NODE_ID="b") as b,
    ):
        (lost,) = wait_until(
            lambda: [each for each in (a, b) if each.so_far.told("waits")], "the step"
        )
        (other,) = {a, b} - {lost}
        lost.process.kill()
        found = other.wait()
        (final,) = undisturbed.wait().told("final")
    assert found.told("first") == ["0 of 2", "10 of 1"]
    assert found.told("final") == [final]
    assert " was lost: its agent died" in found.err


def test_a_program_reads_its_rank_where_mpirun_has_it(tmp_path: Path) -> None:
    with job(tmp_path, "MPI programs", "with_mpi_variables.py", FAULT_AT="12") as running:
        found = running.wait()
    assert_restarted(found)
    assert {"0 2 0 2", "1 2 1 2"} <= set(found.told("rank"))


def test_workers_and_restarts_of_hydra_share_a_folder(tmp_path: Path) -> None:
    with job(tmp_path, "Hydra", "with_hydra.py", "hydra", FAULT_AT="12") as running:
        found = running.wait()
    assert_restarted(found)
    (folder,) = {told.rpartition(" ")[2] for told in found.told("rank")}
    assert {f"0 lr 0.1 folder {folder}", f"1 lr 0.1 folder {folder}"} <= set(found.told("rank"))
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == [Path(folder).name]
    assert (tmp_path / folder / ".hydra" / "config.yaml").exists()


def test_a_ray_ends_with_its_killed_worker(tmp_path: Path) -> None:
    """`Job.wait` finds no process left, and Rays are processes with sessions of their own."""
    with (
        tempfile.TemporaryDirectory() as short,  # Sockets lie in it.
        job(
            tmp_path, "Ray inside", "with_ray.py", "ray", FAULT_AT="12", RAY_TMPDIR=short
        ) as running,
    ):
        found = running.wait()
    assert_restarted(found)
    assert found.told("final")[-2:] == [str(sum(step * step for step in range(20)))] * 2


def test_a_cell_of_a_notebook_starts_a_job(tmp_path: Path) -> None:
    """The line as a cell, and a function of the notebook by a fork."""
    function = (
        "from rallypoint.elastic.launcher import LaunchConfig, elastic_launch\n"
        "def train(): import os; return os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE']\n"
        "elastic_launch(LaunchConfig(1, 1, 2, start_method='fork'), train)()\n"
    )
    shutil.copy(PROGRAMS / "notebook.py", tmp_path)
    line = f"python notebook.py {shlex.quote(LINES['Notebooks'])} {shlex.quote(function)}"
    with job(tmp_path, "Notebooks", "alone.py", "notebook", line=line) as running:
        found = running.wait()
    assert sorted(re.findall(r"\d of 2 with", found.out)) == ["0 of 2 with", "1 of 2 with"]
    assert "{0: '0 of 2', 1: '1 of 2'}" in found.out


def test_workers_under_uv_have_the_python_of_the_project(tmp_path: Path) -> None:
    """Nothing is fetched: the environment of the project is there, as after `uv sync`."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    folder = framework("uv").parent.parent
    env = {"UV_PROJECT_ENVIRONMENT": str(folder), "UV_NO_SYNC": "1", "UV_OFFLINE": "1"}
    with job(tmp_path, "uv", "alone.py", "uv", **env, FAULT_AT="12") as running:
        found = running.wait()
    assert_restarted(found)
    assert {f"{rank} of 2 with {folder}" for rank in (0, 1)} <= set(found.told("rank"))


def assert_restarted(found: Ended) -> None:
    """The job has lost a worker, and no more than that one."""
    assert found.err.count("was killed by SIGKILL\n") == 1
    assert "restart 1 of 3" in found.err
