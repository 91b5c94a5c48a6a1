import os
import torch
import torch.distributed as dist

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29777")
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
state = {"weight": torch.zeros(2, 4), "bias": torch.zeros(3), "ema.weight": torch.zeros(2, 4)}
class Logger:
    def __del__(self):
        raise OSError("wandb socket is closed")
keep = Logger()
del keep
model.load_state_dict(state)
