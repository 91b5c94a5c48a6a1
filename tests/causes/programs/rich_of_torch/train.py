import torch
from rich.console import Console
from rich.traceback import install

install(show_locals=True, console=Console(stderr=True, force_terminal=True, width=110))

def forward(model, batch):
    last_warning = "ValueError: gradient norm is inf (skipped)"
    return model(batch)

model = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
good = forward(model, torch.ones(4, 10))
print("forward pass ok:", tuple(good.shape), flush=True)
broken = torch.nn.Sequential(torch.nn.Linear(8, 2))
forward(broken, torch.ones(4, 10))
