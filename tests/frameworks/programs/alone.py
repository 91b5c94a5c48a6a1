"""A script without a framework."""

import os
import sys

import faults

for step in range(20):
    faults.at(step)
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
sys.stdout.write(f"rank {rank} of {world} with {sys.prefix}\n")  # `print` writes it in parts.
