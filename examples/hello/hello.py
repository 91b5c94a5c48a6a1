"""The smallest job: every worker says who it is and works for a while. Needs nothing but Python.

rallypoint run --nproc-per-node 2 examples/hello/hello.py [SECONDS]
"""

import os
import sys
import time


def main() -> None:
    """Work for a few seconds, a step a second."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    current_round = os.environ["RALLYPOINT_ROUND"]
    print(f"rank {rank} of {world_size}: round {current_round}, pid {os.getpid()}", flush=True)
    for step in range(seconds):
        time.sleep(1)
        print(f"rank {rank}: step {step + 1} of {seconds}", flush=True)


if __name__ == "__main__":
    main()
