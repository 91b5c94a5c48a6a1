"""Lightning's Fabric, in a loop of the script's own."""

import os

import faults
import torch
from lightning.fabric import Fabric

STEPS, BATCH = 20, 8

fabric = Fabric(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
)
fabric.launch()
fabric.seed_everything(0, verbose=False)
inputs = torch.randn(STEPS, BATCH, 4)
layer = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(layer, torch.optim.Adam(layer.parameters(), lr=0.1))
state = {"model": model, "optimizer": optimizer, "step": 0}
if os.path.exists("checkpoint"):
    fabric.load("checkpoint", state)
print("first", state["step"], flush=True)
for step in range(state["step"], STEPS):
    faults.at(step)
    batch = inputs[step][fabric.global_rank :: fabric.world_size]
    optimizer.zero_grad()
    fabric.backward(torch.nn.functional.mse_loss(model(batch), batch.sum(dim=1, keepdim=True)))
    optimizer.step()
    if (step + 1) % 5 == 0:
        fabric.save("checkpoint.new", state | {"step": step + 1})
        if fabric.is_global_zero:
            os.replace("checkpoint.new", "checkpoint")
        fabric.barrier()
weights = sum(float(each.detach().double().sum()) for each in model.parameters())
if fabric.is_global_zero:
    print(f"final {STEPS} {weights:.5f}")
torch.distributed.destroy_process_group()  # Else a thread of gloo may abort as Python ends.
