"""A scheduler's wrapper ends with the exit code of the first failure, and prints all."""

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

try:
    main(["--nproc-per-node=2", "train.py", "fail"])
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    print("rank", rank, failure.local_rank, "of", error.name, sorted(error.failures))
    print("told:", "exitcode  : 3" in error.format_msg())
    sys.exit(failure.exitcode)
