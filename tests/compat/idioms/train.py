"""The script that the launchers beside it start."""

import os
import sys

line = " ".join(["worker", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:]])
sys.stdout.write(f"{line}\n")
if "fail" in sys.argv and os.environ["RANK"] == "1":
    sys.exit(3)
