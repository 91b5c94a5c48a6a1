"""A script without a framework."""

import os
import sys

import faults

for step in range(20):
    faults.at(step)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "with", sys.prefix, flush=True)
