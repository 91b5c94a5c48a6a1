"""The script of plain.py with checkpoints, which it also saves on request. See docs/tutorial.md."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rallypoint import worker

STEPS = 100
CHECKPOINT = sys.argv[1] if len(sys.argv) > 1 else "tutorial.pt"


def main() -> None:
    """Train a small model on CPUs, from the newest checkpoint on."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = load(model, optimizer)

    for step in range(done + 1, STEPS + 1):
        inputs = torch.randn(32, 8)
        loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.progress(step, total=STEPS, loss=loss.item())
        if step % 10 == 0 and dist.get_rank() == 0:
            print(
                f"step {step}/{STEPS} of {dist.get_world_size()} workers: loss {loss.item():.4f}",
                flush=True,
            )
        leave = agreed(worker.should_restart_at_checkpoint())
        if leave or step % 10 == 0:
            save(model, optimizer, step)
            worker.checkpoint_saved(step)
        if leave:
            break
        time.sleep(0.2)

    dist.destroy_process_group()


def agreed(wanted: bool) -> bool:
    """Return the same answer on all ranks: true if one of them says so."""
    flag = torch.tensor(int(wanted))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the number of steps that are done: 0 without a checkpoint."""
    if not os.path.exists(CHECKPOINT):
        return 0
    state = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Replace the checkpoint whole: a worker may be killed at any moment."""
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, CHECKPOINT + ".new")
        os.replace(CHECKPOINT + ".new", CHECKPOINT)
    dist.barrier()


if __name__ == "__main__":
    main()
