"""A worker that has a Ray of its own, for the tasks of its node."""

import faults
import ray

ray.init(num_cpus=2, include_dashboard=False)


@ray.remote
def square(number):
    return number * number


total = 0
for step in range(20):
    faults.at(step)
    total += ray.get(square.remote(step))
print("final", total, flush=True)
ray.shutdown()
