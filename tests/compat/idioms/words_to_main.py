"""A tool hands words of its own to torchrun's main, as the one of Lightning's Fabric does."""

import torch.distributed.run as torchrun

words = ["--nproc_per_node=2", "--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1"]
torchrun.main([*words, "train.py", "--devices", "2"])
