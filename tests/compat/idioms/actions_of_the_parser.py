"""A recipe runner copies torchrun's options into its own parser, as torchtune's `tune run` does."""

import argparse

from torch.distributed.run import get_args_parser, run

parser = argparse.ArgumentParser("tune", add_help=False)
for action in get_args_parser()._actions:
    if action.dest not in ("help", "training_script", "training_script_args"):
        parser._add_action(action)
parser.add_argument("recipe")
parser.add_argument("recipe_args", nargs=argparse.REMAINDER)
arguments = parser.parse_args(["--nproc-per-node", "2", "train.py", "--config", "full"])
arguments.training_script = arguments.recipe
arguments.training_script_args = arguments.recipe_args
if arguments.nproc_per_node:
    arguments.standalone = arguments.rdzv_endpoint == ""
run(arguments)
