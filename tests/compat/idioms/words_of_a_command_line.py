"""A launcher of its own uses how torchrun reads single options."""

import os

from torch.distributed.run import (
    determine_local_world_size,
    get_rdzv_endpoint,
    parse_args,
    parse_min_max_nnodes,
)

print(parse_min_max_nnodes("1:4"), parse_min_max_nnodes("2"))
print(determine_local_world_size("3"), determine_local_world_size("cpu") == os.cpu_count())
arguments = parse_args(
    [
        "--nnodes=2",
        "--rdzv-backend=static",
        "--master-addr=node-a",
        "--master-port=29511",
        "train.py",
    ]
)
print(get_rdzv_endpoint(arguments), arguments.training_script, arguments.node_rank)
