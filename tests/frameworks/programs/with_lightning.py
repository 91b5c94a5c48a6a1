"""Lightning's Trainer with its own strategy for DistributedDataParallel."""

import os
from pathlib import Path

import faults
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

STEPS = 20


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, step):
        faults.at(self.global_step)
        (inputs,) = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), inputs.sum(dim=1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


lightning.seed_everything(0)
data = torch.utils.data.TensorDataset(torch.randn(STEPS * 4, 4))
trainer = lightning.Trainer(
    max_steps=STEPS,
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    callbacks=[ModelCheckpoint("saved", every_n_train_steps=5, save_last=True)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model()
last = Path("saved/last.ckpt")
print(
    "first",
    torch.load(last, weights_only=False)["global_step"] if last.exists() else 0,
    flush=True,
)
trainer.fit(
    model,
    torch.utils.data.DataLoader(data, batch_size=4),
    ckpt_path=str(last) if last.exists() else None,
)
weights = sum(float(each.detach().double().sum()) for each in model.parameters())
if trainer.is_global_zero:
    print(f"final {trainer.global_step} {weights:.5f}")
