"""An agent of its own overrides the loop that watches the job, as that of DeepSpeed does."""

import os

import torch.distributed.elastic.rendezvous.registry as rdzv_registry
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters


class Agent(LocalElasticAgent):
    def _invoke_run(self, role="default"):
        print("runs", role, flush=True)
        return super()._invoke_run(role)


def trainer():
    return int(os.environ["RANK"])


def main():
    parameters = RendezvousParameters(
        backend="c10d", endpoint="localhost:0", run_id="ds", min_nodes=1, max_nodes=1
    )
    spec = WorkerSpec(
        role="default",
        local_world_size=2,
        entrypoint=trainer,
        rdzv_handler=rdzv_registry.get_rendezvous_handler(parameters),
        monitor_interval=0.1,
    )
    result = Agent(spec, logs_specs=DefaultLogsSpecs(), start_method="spawn").run()
    print("returned", sorted(result.return_values.values()))


if __name__ == "__main__":
    main()
