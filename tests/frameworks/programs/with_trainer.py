"""The Trainer of transformers, which resumes from its own checkpoints."""

import os

import faults
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS = 20


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels):
        outputs = self.layer(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


class Faults(TrainerCallback):
    def on_step_begin(self, arguments, state, control, **more):
        faults.at(state.global_step)


torch.manual_seed(0)
inputs = torch.randn(STEPS * 8, 4)
data = [{"inputs": each, "labels": each.sum(dim=0, keepdim=True)} for each in inputs]
arguments = TrainingArguments(
    output_dir="saved",
    max_steps=STEPS,
    per_device_train_batch_size=4,
    learning_rate=0.1,
    save_steps=5,
    logging_steps=5,
    use_cpu=True,
    report_to=[],
)
model = Model()
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Faults()])
last = get_last_checkpoint("saved") if os.path.exists("saved") else None
print("first", last.rpartition("-")[2] if last else 0, flush=True)
trainer.train(resume_from_checkpoint=last)
weights = sum(float(each.detach().double().sum()) for each in model.parameters())
if trainer.is_world_process_zero():
    print(f"final {trainer.state.global_step} {weights:.5f}")
trainer.accelerator.end_training()
