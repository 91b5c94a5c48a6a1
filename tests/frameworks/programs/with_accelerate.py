"""Accelerate, with its own checkpoints."""

import os
from pathlib import Path

import faults
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

STEPS = 20

accelerator = Accelerator(cpu=True)
set_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 4))
model = torch.nn.Linear(4, 1)
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.Adam(model.parameters(), lr=0.1),
    torch.utils.data.DataLoader(data, batch_size=4),
)
first = max((int(path.name) for path in Path("saved").glob("[0-9]*")), default=0)
if first:
    accelerator.load_state(f"saved/{first}")
print("first", first, flush=True)
for step, (inputs,) in enumerate(accelerator.skip_first_batches(loader, first), first):
    faults.at(step)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    accelerator.backward(loss)
    optimizer.step()
    if (step + 1) % 5 == 0:
        accelerator.save_state("saved/new")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            os.replace("saved/new", f"saved/{step + 1}")
        accelerator.wait_for_everyone()
weights = sum(float(each.detach().double().sum()) for each in model.parameters())
if accelerator.is_main_process:
    print(f"final {step + 1} {weights:.5f}")
accelerator.end_training()
