"""DeepSpeed with ZeRO-1, whose checkpoint has a part of each worker."""

import os

import deepspeed
import faults
import torch

STEPS, BATCH = 20, 8
CONFIG = {
    "train_batch_size": BATCH,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}

deepspeed.init_distributed("gloo")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
inputs = torch.randn(STEPS, BATCH, 4)
layer = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(
    model=layer, optimizer=torch.optim.Adam(layer.parameters(), lr=0.1), config=CONFIG
)
path, _ = engine.load_checkpoint("saved")
first = engine.global_steps if path else 0
print("first", first, flush=True)
for step in range(first, STEPS):
    faults.at(step)
    batch = inputs[step][rank::size]
    engine.backward(torch.nn.functional.mse_loss(engine(batch), batch.sum(dim=1, keepdim=True)))
    engine.step()
    if (step + 1) % 5 == 0:
        engine.save_checkpoint("saved")
weights = sum(float(each.detach().double().sum()) for each in engine.module.parameters())
if rank == 0:
    print(f"final {engine.global_steps} {weights:.5f}")
torch.distributed.destroy_process_group()
