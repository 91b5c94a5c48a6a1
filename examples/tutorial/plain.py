"""A script for torchrun: it begins anew whenever it is started. See docs/tutorial.md."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 100


def main() -> None:
    """Train a small model on CPUs."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for step in range(1, STEPS + 1):
        inputs = torch.randn(32, 8)
        loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(
                f"step {step}/{STEPS} of {dist.get_world_size()} workers: loss {loss.item():.4f}",
                flush=True,
            )
        time.sleep(0.2)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
