"""A tool fills a namespace of torchrun's parser, keeps the names that it knows, and runs it, as
`accelerate launch` does."""

import argparse

import torch.distributed.run as distrib_run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

mine = argparse.Namespace(
    nproc_per_node="2", mixed_precision="no", training_script="train.py", max_restarts=0
)
parser = distrib_run.get_args_parser()
known = {action.dest for action in parser._actions}
arguments = parser.parse_args(["-"])
for name, value in vars(mine).items():
    if name in known:
        setattr(arguments, name, value)
arguments.training_script_args = ["fail"]
try:
    distrib_run.run(arguments)
except ChildFailedError as error:
    print("failed", error.get_first_failure()[1].exitcode)
