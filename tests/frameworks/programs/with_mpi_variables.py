"""A program that reads its rank where Open MPI's launcher has it, and uses no MPI."""

import os

import faults

for step in range(20):
    faults.at(step)
names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
print("rank", *(os.environ[f"OMPI_COMM_WORLD_{name}"] for name in names), flush=True)
