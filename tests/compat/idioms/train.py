"""The script that the launchers beside it start."""

import os
import sys
import time

rank = os.environ["RANK"]
sys.stdout.write(" ".join(["worker", rank, "of", os.environ["WORLD_SIZE"], *sys.argv[1:]]) + "\n")
sys.stdout.flush()
if "fail" in sys.argv:
    open(f"told-{rank}", "w").close()
    while not os.path.exists("told-0"):  # The failure of one stops the other.
        time.sleep(0.01)
    sys.exit(3 * int(rank))
