"""A platform says where each worker's output goes: a subclass of the specifications of logs."""

import glob
import os
import tempfile

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


class Specs(DefaultLogsSpecs):
    def reify(self, envs):
        print("asked for", sorted(envs), flush=True)
        return super().reify(envs)


with tempfile.TemporaryDirectory() as folder:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="mine",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        logs_specs=Specs(log_dir=folder, redirects=Std.from_str("0:1,1:3")),
    )
    elastic_launch(config, "sh")("-c", "echo out $RANK")
    for path in sorted(glob.glob(f"{folder}/mine_*/attempt_0/*/stdout.log")):
        with open(path) as file:
            print(os.path.relpath(path, folder).split("/")[2:], file.read().strip())
