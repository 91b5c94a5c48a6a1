"""JAX, whose processes find each other without arguments."""

import os

import faults
import jax
import numpy
from jax.experimental.multihost_utils import process_allgather

STEPS, BATCH = 20, 8

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
rank, size = jax.process_index(), jax.process_count()
inputs = numpy.random.default_rng(0).normal(size=(STEPS, BATCH, 4)).astype("float32")
weights, first = numpy.zeros(4, "float32"), 0
if os.path.exists("checkpoint.npz"):
    saved = numpy.load("checkpoint.npz")
    weights, first = saved["weights"], int(saved["step"])
print("first", first, flush=True)


@jax.jit
def gradient(weights, batch):
    return jax.grad(lambda w: ((batch @ w - batch.sum(axis=1)) ** 2).mean())(weights)


for step in range(first, STEPS):
    faults.at(step)
    mine = gradient(weights, inputs[step][rank::size])
    weights = weights - 0.1 * numpy.asarray(process_allgather(mine)).mean(axis=0)
    if (step + 1) % 5 == 0 and rank == 0:
        numpy.savez("new.npz", weights=weights, step=step + 1)
        os.replace("new.npz", "checkpoint.npz")
if rank == 0:
    print(f"final {STEPS} {weights.sum():.5f}", flush=True)
jax.distributed.shutdown()
