"""The agent as torch's documentation makes it: a specification, a handler, a run."""

import os

import torch.distributed.elastic.rendezvous.registry as rdzv_registry
from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters


def trainer(word):
    return f"{word} {os.environ['ROLE_NAME']} {os.environ['RANK']}"


def main():
    parameters = RendezvousParameters(
        backend="c10d", endpoint="localhost:0", run_id="doc", min_nodes=1, max_nodes=1
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=2,
        entrypoint=trainer,
        args=("do",),
        rdzv_handler=rdzv_registry.get_rendezvous_handler(parameters),
        max_restarts=1,
        monitor_interval=0.1,
    )
    agent = LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(), start_method="spawn")
    result = agent.run()
    print("succeeded", result.state is WorkerState.SUCCEEDED, result.is_failed())
    print("returned", sorted(result.return_values.values()))


if __name__ == "__main__":
    main()
