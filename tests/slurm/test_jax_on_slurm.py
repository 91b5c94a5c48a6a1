"""Real JAX, whose `initialize()` has no arguments, in jobs that srun has started: one world, of the
right size, through a kill and with a spare node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.frameworks import framework
from tests.harness.jax_program import TRAIN, one_world, trained
from tests.slurm.cluster import Slurm


@pytest.fixture(scope="module")
def jax() -> dict[str, str]:
    return {"PYTHON_EXEC": str(framework("jax")), "JAX_PLATFORMS": "cpu"}


@pytest.fixture(autouse=True)
def train(slurm: Slurm) -> Path:
    script = slurm.work / "jax_train.py"
    script.write_text(TRAIN)
    return script


def run(slurm: Slurm, env: dict[str, str], nodes: int, *words: str) -> tuple[int, list[str]]:
    """The exit code of srun, and what the processes of the last round have told, by number."""
    keep = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0") if "agent" in words else ()
    srun = ("-N", str(nodes), *keep, "rallypoint", "run", "--env-style", "jax")
    done = slurm.srun(*srun, "--restart-grace", "1", *words, env=env)
    told = [line for line in done.stdout.splitlines() if line.startswith("trained ")]
    assert told, done.stderr
    return done.returncode, trained(told, max(int(line.split()[1]) for line in told))


@pytest.mark.parametrize(("nodes", "workers"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("killed", ["none", "0", "1"])
def test_A14_jax_trains_in_one_world_through_a_kill(
    slurm: Slurm, jax: dict[str, str], nodes: int, workers: int, killed: str
) -> None:
    options = ("--nproc-per-node", str(workers), "--max-restarts", "1")
    code, told = run(slurm, jax, nodes, *options, "jax_train.py", killed)
    assert (code, told) == (0, one_world(nodes * workers))


@pytest.mark.parametrize("killed", ["worker", "agent"])
def test_A14_jax_does_not_wait_for_a_spare_node(
    slurm: Slurm, jax: dict[str, str], killed: str
) -> None:
    """Which takes the place of a node whose agent is killed."""
    options = ("--spares", "1", "--max-restarts", "1", "jax_train.py", "1", killed)
    code, told = run(slurm, jax, 3, *options)
    assert told == one_world(2)
    assert code == (0 if killed == "worker" else 137)
