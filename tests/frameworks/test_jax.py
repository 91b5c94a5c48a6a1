"""Real JAX: `jax.distributed.initialize()` without arguments, through a kill and a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.cluster import Cluster
from tests.harness.frameworks import framework
from tests.harness.one_agent import agent, ended

pytestmark = pytest.mark.frameworks

TRAIN = """
import os, signal, sys
import jax
{imported}
import numpy
from jax.experimental.multihost_utils import process_allgather
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
rank, size, round_ = jax.process_index(), jax.process_count(), os.environ["RALLYPOINT_ROUND"]
total = process_allgather(numpy.array([rank + 1.0])).sum()
os.write(1, f"trained {{round_}} {{rank}} {{size}} {{total:g}}\\n".encode())
if (round_, rank) == ("0", int(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
process_allgather(numpy.array([0.0]))
"""
PLUG_IN = "import rallypoint.integrations.jax"
ON_SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "0"}
"""JAX looks for Slurm by the first of these."""


@pytest.fixture(scope="module")
def jax() -> dict[str, str]:
    """The variables of an agent whose workers have JAX."""
    return {"PYTHON_EXEC": str(framework("jax")), "JAX_PLATFORMS": "cpu"} | ON_SLURM


def trained(lines: list[str], round_: int) -> list[str]:
    """What the processes of a round have told, by number: it, how many there are, and the sum."""
    begin = f"trained {round_} "
    return sorted(line.removeprefix(begin) for line in lines if line.startswith(begin))


@pytest.mark.parametrize("killed", [0, 1], ids=["coordinator", "other"])
@pytest.mark.parametrize("styled", [True, False], ids=["env-style", "plug-in"])
def test_A14_jax_finds_its_world_on_one_node_through_a_kill(
    tmp_path: Path, jax: dict[str, str], styled: bool, killed: int
) -> None:
    program = TRAIN.format(imported="" if styled else PLUG_IN)
    options = ("--scheduler", "none", "--nproc-per-node", "2", "--max-restarts", "1")
    options += ("--restart-grace", "1", *(("--env-style", "jax") if styled else ()))
    job = ended(agent(tmp_path, *options, program=program, arguments=[str(killed)], env=jax), 0)
    for round_ in (0, 1):
        assert trained(job.out.splitlines(), round_) == ["0 2 3", "1 2 3"]


@pytest.mark.parametrize("styled", [True, False], ids=["env-style", "plug-in"])
def test_A14_jax_finds_its_world_on_two_nodes_through_a_kill(
    cluster: Cluster, jax: dict[str, str], styled: bool
) -> None:
    cluster.script.write_text(TRAIN.format(imported="" if styled else PLUG_IN))
    cluster.env = jax
    cluster.options |= {"nnodes": 2, "max_restarts": 1, "restart_grace": 1, "scheduler": "none"}
    style = "jax" if styled else "torch"
    script = [str(cluster.script), "1"]
    nodes = cluster.agents("a", "b", nproc=2, script=script, env_style=style)
    assert [node.wait_exit() for node in nodes] == [0, 0]
    lines = [line for node in nodes for line in node.stdout_lines]
    for round_ in (0, 1):
        assert trained(lines, round_) == ["0 4 10", "1 4 10", "2 4 10", "3 4 10"]
