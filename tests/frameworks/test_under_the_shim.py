"""The launchers of frameworks under `rallypoint shim`: a worker is killed, the workers are started
again, and the final loss is that of a job that nobody has disturbed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.harness.frameworks import framework, path_with
from tests.harness.one_agent import OneAgent, ended, free_port, started

pytestmark = [pytest.mark.frameworks, pytest.mark.executed]

TRAIN = """
import os, signal, sys
import torch
{setup}
checkpoint, kill = sys.argv[1], sys.argv[2] == "kill"
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{wrap}
first = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    first = saved["step"]
    model.module.load_state_dict(saved["model"])
there = os.environ.get("RALLYPOINT_ROUND")
shim = "RALLYPOINT_SHIM" in os.environ or "cli/shim" in os.environ["PATH"]
said = f"told {{rank}} of {{world}} in round {{there}} from {{first}}, shim: {{shim}}\\n"
os.write(1, said.encode())
for step in range(first, 8):
    torch.manual_seed(step * world + rank)
    loss = (model(torch.randn(8, 4)) - 1).pow(2).mean()
    {backward}
    optimizer.step()
    optimizer.zero_grad()
    torch.distributed.barrier()
    if rank == 0:
        torch.save({{"step": step + 1, "model": model.module.state_dict()}}, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
    torch.distributed.barrier()
    if kill and first == 0 and step == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
loss = loss.detach()
torch.distributed.all_reduce(loss)
if rank == 0:
    os.write(1, f"loss {{float(loss)!r}}\\n".encode())
torch.distributed.destroy_process_group()
os._exit(0)  # A thread of gloo's may abort an interpreter that ends.
"""
PARTS = {
    "accelerate": {
        "setup": "from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)\n"
        "rank, world = accelerator.process_index, accelerator.num_processes",
        "wrap": "model, optimizer = accelerator.prepare(model, optimizer)",
        "backward": "accelerator.backward(loss)",
    },
    "lightning": {
        "setup": "from lightning.fabric import Fabric\nfabric = Fabric()\n"
        "rank, world = fabric.global_rank, fabric.world_size",
        "wrap": "model, optimizer = fabric.setup(model, optimizer)",
        "backward": "fabric.backward(loss)",
    },
    "torch": {
        "setup": "torch.distributed.init_process_group('gloo')\n"
        "rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()",
        "wrap": "model = torch.nn.parallel.DistributedDataParallel(model)",
        "backward": "loss.backward()",
    },
}
PARTS["torchx"] = PARTS["torch"]
LINES = {
    "torch": ["torchrun", "--nproc-per-node=2", "train.py"],
    "accelerate": [
        *("accelerate", "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
        "--main_process_port={port}",
        *("--mixed_precision=no", "--dynamo_backend=no", "--max_restarts=2", "train.py"),
    ],
    "lightning": [
        *(
            "fabric",
            "run",
            "--accelerator=cpu",
            "--devices=2",
            "--strategy=ddp",
            "--main-port={port}",
            "train.py",
        ),
    ],
    "torchx": ["torchx", "run", "--scheduler=local_cwd", "dist.ddp", "-j=1x2", "--script=train.py"],
}
"""As the pages of these frameworks have them; accelerate takes a CPU for a GPU that is missing."""


def shim(home: Path, python: Path, line: Sequence[str], **env: str) -> OneAgent:
    """The end of a command under the shim, in the environment of a framework."""
    words = [str(python), "-P", "-m", "rallypoint", "shim", *line]
    # What these packages leave in a temporary directory is theirs.
    theirs = {"TORCHINDUCTOR_CACHE_DIR": str(home / "theirs")}
    return ended(started(home, words, PATH=path_with(python), **theirs, **env), 0)


def trained(home: Path, name: str, last: str) -> tuple[list[str], str]:
    """What the workers have told at each start, and the final loss."""
    python = Path(sys.executable) if name == "torch" else framework(name)
    home.mkdir()
    (home / "train.py").write_text(TRAIN.format(**PARTS[name]))
    arguments = ["--"] if name == "torchx" else []
    words = [word.format(port=free_port()) for word in LINES[name]]
    line = [*words, *arguments, str(home / "checkpoint"), last]
    run = shim(home, python, line, PET_MAX_RESTARTS="2", TORCHX_LOG_DIR=str(home / "logs"))
    lines = f"{run.out}{run.err}".splitlines()  # TorchX writes what it is told to stderr.
    told = [line.partition("told ")[2] for line in lines if "told " in line]
    (loss,) = [line.partition("loss ")[2] for line in lines if "loss " in line]
    return sorted(told, key=lambda text: text.partition(" in ")[::-1]), loss


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """What is told, and the loss, where nobody kills a worker: by plain torch."""
    return trained(tmp_path_factory.mktemp("calm") / "job", "torch", "stay")


@pytest.mark.parametrize("name", LINES)
def test_a_killed_worker_is_started_again_and_the_loss_is_the_same(
    name: str, calm: tuple[list[str], str], tmp_path: Path
) -> None:
    told, loss = trained(tmp_path / "job", name, "kill")
    first = [f"{rank} of 2 in round 0 from 0, shim: False" for rank in (0, 1)]
    again = [f"{rank} of 2 in round 1 from 4, shim: False" for rank in (0, 1)]
    assert told == [*first, *again]
    assert calm == (first, loss)


def test_deepspeed_starts_its_workers_itself_and_is_left_alone(tmp_path: Path) -> None:
    python = framework("deepspeed")
    (tmp_path / "train.py").write_text(
        "import os\nos.write(1, f\"told {os.environ['RANK']} \""
        "f\"{os.environ.get('RALLYPOINT_ROUND')}\\n\".encode())\n"
    )
    run = shim(tmp_path, python, ["deepspeed", "--num_gpus=2", "train.py"])
    assert sorted(run.told("told")) == ["0 None", "1 None"]
