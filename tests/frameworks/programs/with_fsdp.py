"""FSDP2, with a checkpoint of torch.distributed.checkpoint that a world of any size loads."""

import os
from pathlib import Path

import faults
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS, BATCH = 20, 8

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(STEPS, BATCH, 4)
targets = inputs.sum(dim=2, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
newest = max((int(path.name) for path in Path("saved").glob("[0-9]*")), default=0)
if newest:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=f"saved/{newest}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
print("first", newest, "of", size, flush=True)
for step in range(newest, STEPS):
    faults.at(step)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[step][rank::size]), targets[step][rank::size])
    loss.backward()
    optimizer.step()
    if (step + 1) % 5 == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"saved/new-{step + 1}")
        if rank == 0:
            os.replace(f"saved/new-{step + 1}", f"saved/{step + 1}")
        dist.barrier()
total = sum(float(each.full_tensor().detach().double().sum()) for each in model.parameters())
if rank == 0:
    print(f"final {STEPS} {total:.5f}")
dist.destroy_process_group()
