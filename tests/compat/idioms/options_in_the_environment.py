"""An operator of Kubernetes gives the options by variables, and the script alone as words."""

import os

from torch.distributed.run import main

os.environ |= {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_MAX_RESTARTS": "1"}
main(["train.py"])
