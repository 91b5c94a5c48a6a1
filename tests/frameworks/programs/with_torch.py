"""PyTorch's DistributedDataParallel, with a checkpoint at every fifth step."""

import os

import faults
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 20, 8

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(STEPS, BATCH, 4)
targets = inputs.sum(dim=2, keepdim=True)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
first = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
print("first", first, flush=True)
for step in range(first, STEPS):
    faults.at(step)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[step][rank::size]), targets[step][rank::size])
    loss.backward()
    optimizer.step()
    if (step + 1) % 5 == 0 and rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")
weights = sum(float(each.detach().double().sum()) for each in model.parameters())
if rank == 0:
    print(f"final {STEPS} {weights:.5f}")
dist.destroy_process_group()
