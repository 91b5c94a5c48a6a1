"""An agent takes its ranks from a master of a framework, as that of DLRover does."""

import os

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo


class MasterHandler(RendezvousHandler):
    def __init__(self):
        self.store = TCPStore("localhost", 0, is_master=True)

    def get_backend(self):
        return "master"

    @property
    def use_agent_store(self):
        return True

    def next_rendezvous(self):
        address = RendezvousStoreInfo("localhost", self.store.port)
        return RendezvousInfo(self.store, 0, 1, address)

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return "mine"

    def shutdown(self):
        return True


class Agent(LocalElasticAgent):
    def _rendezvous(self, worker_group):
        print("asks the master", flush=True)
        super()._rendezvous(worker_group)


def trainer():
    return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"


def main():
    spec = WorkerSpec(
        role="trainer",
        local_world_size=2,
        entrypoint=trainer,
        rdzv_handler=MasterHandler(),
        monitor_interval=0.1,
    )
    agent = Agent(spec, logs_specs=DefaultLogsSpecs(), start_method="spawn")
    print("returned", sorted(agent.run().return_values.values()))
    spec.rdzv_handler.shutdown()


if __name__ == "__main__":
    main()
