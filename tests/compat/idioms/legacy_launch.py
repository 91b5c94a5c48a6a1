"""A program of old that uses torch.distributed.launch, with ranks in the environment."""

from torch.distributed.launch import main

main(["--use_env", "--nproc_per_node=2", "train.py", "--old"])
