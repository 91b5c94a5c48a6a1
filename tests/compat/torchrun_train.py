"""What torchrun runs in the tests: a tiny model, trained until the file STOP exists.

    torchrun ... torchrun_train.py SAID STOP

Each worker appends one line to SAID when its first step is done: rank, world size, store.
"""

import os
import sys
import time


def train(said: str, stop: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    told = False
    while True:
        model.zero_grad()
        model(torch.full((2, 4), dist.get_rank() + 1.0)).sum().backward()
        if not told:
            told = True
            store = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            with open(said, "a") as file:
                file.write(f"{dist.get_rank()} {dist.get_world_size()} {store}\n")
        ended = torch.tensor(float(os.path.exists(stop)))
        dist.all_reduce(ended)
        if ended.item():
            break
        time.sleep(0.05)
    # Without dist.destroy_process_group(), which now and then waits forever for a thread of gloo.
    os._exit(0)


train(*sys.argv[1:])
