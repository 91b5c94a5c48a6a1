"""A program that trains with JAX, whose `initialize()` has no arguments, and dies once."""

from __future__ import annotations

from collections.abc import Sequence

TRAIN = """
import os, signal, sys
import jax
import numpy
from jax.experimental.multihost_utils import process_allgather
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
rank, size, round_ = jax.process_index(), jax.process_count(), os.environ["RALLYPOINT_ROUND"]
total = process_allgather(numpy.array([rank + 1.0])).sum()
os.write(1, f"trained {round_} {rank} {size} {total:g}\\n".encode())
if (round_, str(rank)) == ("0", sys.argv[1]):
    os.kill(os.getpid() if sys.argv[2:] != ["agent"] else os.getppid(), signal.SIGKILL)
process_allgather(numpy.array([0.0]))
"""
"""Its arguments: which rank is killed in the first round, and `agent` if its agent is."""


def trained(lines: Sequence[str], round_: int) -> list[str]:
    """What the processes of a round have told, sorted: rank, world size, and the sum of all."""
    begin = f"trained {round_} "
    return sorted(line.removeprefix(begin) for line in lines if line.startswith(begin))


def one_world(size: int) -> list[str]:
    """The same of a world of this size."""
    return [f"{rank} {size} {size * (size + 1) // 2}" for rank in range(size)]
