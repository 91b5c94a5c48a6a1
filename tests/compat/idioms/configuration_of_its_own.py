"""A framework's configuration extends that of torch, and jobs get copies of it."""

import dataclasses
import os

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


@dataclasses.dataclass
class Config(LaunchConfig):
    network_check: bool = False
    accelerator: str = "cpu"


def train():
    return os.environ["TORCHELASTIC_MAX_RESTARTS"]


if __name__ == "__main__":
    config = Config(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="mine",
        accelerator="npu",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        monitor_interval=0.1,
    )
    copy = dataclasses.replace(config, max_restarts=7)
    print(copy.accelerator, copy.network_check, config.max_restarts)
    print("returned", sorted(elastic_launch(copy, train)().values()))
