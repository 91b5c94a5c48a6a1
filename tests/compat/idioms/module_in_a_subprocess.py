"""A command line tool starts the module with its own Python, and ends with its exit code."""

import subprocess
import sys

words = ["--nproc_per_node", "2", "--nnodes", "1", "train.py", "--stage", "sft"]
done = subprocess.run([sys.executable, "-m", "torch.distributed.run", *words], check=False)
print("exit code", done.returncode)
