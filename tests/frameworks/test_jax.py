"""Real JAX: `jax.distributed.initialize()` without arguments, through a kill and a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.cluster import Cluster
from tests.harness.frameworks import framework
from tests.harness.jax_program import TRAIN, one_world, trained
from tests.harness.one_agent import agent, ended

pytestmark = pytest.mark.frameworks

PLUG_IN = "import rallypoint.integrations.jax\n" + TRAIN
ON_SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n1", "KUBERNETES_SERVICE_HOST": "h"}
"""By which JAX finds Slurm, and Kubernetes."""


@pytest.fixture(scope="module")
def jax() -> dict[str, str]:
    """The variables of an agent whose workers have JAX."""
    return {"PYTHON_EXEC": str(framework("jax")), "JAX_PLATFORMS": "cpu"} | ON_SLURM


@pytest.mark.parametrize("killed", [0, 1], ids=["coordinator", "other"])
@pytest.mark.parametrize("styled", [True, False], ids=["env-style", "plug-in"])
def test_A14_jax_finds_its_world_on_one_node_through_a_kill(
    tmp_path: Path, jax: dict[str, str], styled: bool, killed: int
) -> None:
    program = TRAIN if styled else PLUG_IN
    options = ("--scheduler", "none", "--nproc-per-node", "2", "--max-restarts", "1")
    options += ("--restart-grace", "1", *(("--env-style", "jax") if styled else ()))
    job = ended(agent(tmp_path, *options, program=program, arguments=[str(killed)], env=jax), 0)
    for round_ in (0, 1):
        assert trained(job.out.splitlines(), round_) == one_world(2)


@pytest.mark.parametrize("styled", [True, False], ids=["env-style", "plug-in"])
def test_A14_jax_finds_its_world_on_two_nodes_through_a_kill(
    cluster: Cluster, jax: dict[str, str], styled: bool
) -> None:
    cluster.script.write_text(TRAIN if styled else PLUG_IN)
    cluster.env = jax
    cluster.options |= {"nnodes": 2, "max_restarts": 1, "restart_grace": 1, "scheduler": "none"}
    style = "jax" if styled else "torch"
    script = [str(cluster.script), "1"]
    nodes = cluster.agents("a", "b", nproc=2, script=script, env_style=style)
    assert [node.wait_exit() for node in nodes] == [0, 0]
    lines = [line for node in nodes for line in node.stdout_lines]
    for round_ in (0, 1):
        assert trained(lines, round_) == one_world(4)
