"""A launcher for notebooks starts a function by a fork, as that of Accelerate does."""

import os

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main():
    offset = 10

    def train(scale):
        return offset + scale * int(os.environ["RANK"])

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="none",
        max_restarts=0,
        rdzv_endpoint="",
        rdzv_backend="c10d",
        monitor_interval=0.1,
        start_method="fork",
        log_line_prefix_template=None,
    )
    results = elastic_launch(config=config, entrypoint=train)(5)
    print("results", sorted(results.values()))


main()
