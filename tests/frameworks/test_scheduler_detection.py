"""What Lightning and Accelerate take for their world in a step of Slurm that an MPI has started,
with the variables of its task and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.frameworks import framework
from tests.harness.one_agent import agent, ended

pytestmark = pytest.mark.frameworks

TASK = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "PMI_RANK": "0",
    "PMI_SIZE": "1",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NNODES": "1"}
LIGHTNING = """
import lightning, os, torch
from lightning.fabric.plugins.environments import SLURMEnvironment
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
trainer = lightning.Trainer(
    max_steps=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 8)))
kind = type(trainer.strategy.cluster_environment).__name__
told = f"{trainer.global_rank} {trainer.world_size} {kind} {SLURMEnvironment.detect()}"
os.write(1, f"is {told}\\n".encode())
os._exit(0)  # A thread of gloo's may abort an interpreter that ends.
"""
ACCELERATE = """
import os
from accelerate import PartialState
state = PartialState(cpu=True)
told = f"{state.process_index} {state.local_process_index} {state.num_processes}"
os.write(1, f"is {told}\\n".encode())
"""
KEPT = [(), ("--keep-env", "*")]


def told(home: Path, name: str, program: str, kept: tuple[str, ...]) -> list[str]:
    env = TASK | JOB | {"PYTHON_EXEC": str(framework(name)), "TMPDIR": str(home)}
    options = ("--scheduler", "none", "--nproc-per-node", "2", *kept)
    return sorted(ended(agent(home, *options, program=program, env=env), 0).told("is"))


@pytest.mark.parametrize("kept", KEPT, ids=["without", "with"])
def test_A13_lightning_does_not_see_slurms_task(tmp_path: Path, kept: tuple[str, ...]) -> None:
    """It takes torchrun's variables before Slurm's, and would ask Slurm's where it is asked to."""
    found = told(tmp_path, "lightning", LIGHTNING, kept)
    assert found == [f"{rank} 2 TorchElasticEnvironment {bool(kept)}" for rank in (0, 1)]


@pytest.mark.parametrize("kept", KEPT, ids=["without", "with"])
def test_A13_accelerate_finds_both_workers(tmp_path: Path, kept: tuple[str, ...]) -> None:
    assert told(tmp_path, "accelerate", ACCELERATE, kept) == ["0 0 2", "1 1 2"]
