"""A package registers a rendezvous of its own by name, and jobs choose it."""

import os

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


class Handler(RendezvousHandler):
    def __init__(self, parameters):
        self.run_id = parameters.run_id
        self.color = parameters.get("color")
        self.closed = False
        self.store = TCPStore("localhost", 0, is_master=True)

    def get_backend(self):
        return "lighthouse"

    def next_rendezvous(self):
        print("color", self.color, flush=True)
        return RendezvousInfo(
            self.store, 0, 1, RendezvousStoreInfo.build(0, self.store, local_addr="localhost")
        )

    def is_closed(self):
        return self.closed

    def set_closed(self):
        self.closed = True

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return self.run_id

    def shutdown(self):
        self.closed = True
        return True


def train():
    return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"


if __name__ == "__main__":
    rendezvous_handler_registry.register("lighthouse", Handler)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="mine",
        rdzv_backend="lighthouse",
        rdzv_endpoint="unused",
        rdzv_configs={"color": "red"},
    )
    print("returned", sorted(elastic_launch(config, train)().values()))
