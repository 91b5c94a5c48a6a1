"""The variables of other launchers, for frameworks that do not know torchrun's. Pure.

`jax`: JAX has a variable for the address of its coordinator, and learns the number of processes and
its own number only from a cluster that it detects. Of those that it knows, only Open MPI's launcher
describes a task by variables alone, which hold wherever the workers run and in whatever order; JAX
looks for it first, so that Slurm and Kubernetes are not asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from rallypoint.config import Endpoint, WorkerConfig
from rallypoint.core.model import Assignment
from rallypoint.core.text import named
from rallypoint.errors import UsageError


class StyledWorker(Struct, frozen=True):
    """One worker's place, and the environment that it inherits."""

    local_rank: int
    place: Assignment
    config: WorkerConfig
    environ: Mapping[str, str]

    @property
    def rank(self) -> int:
        """The rank of this worker in the whole job."""
        return self.place.base_rank + self.local_rank


def style_environ(styles: Iterable[str], worker: StyledWorker) -> dict[str, str]:
    """Return the variables that this worker gets for these styles of `--env-style`.

    Raises UsageError if there are too many workers for a variable.
    """
    found: dict[str, str] = {}
    for style in styles:
        found |= _STYLES[style](worker)
    return found


def _mpi(worker: StyledWorker) -> dict[str, str]:
    """Return the variables by which Open MPI's launcher describes this worker."""
    size, local_rank = str(worker.place.world_size), str(worker.local_rank)
    return {
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_RANK": str(worker.rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(worker.config.count),
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_NODE_RANK": local_rank,
        "OMPI_UNIVERSE_SIZE": size,
    }


def _jax(worker: StyledWorker) -> dict[str, str]:
    address = str(Endpoint(worker.place.master_addr, worker.place.coordinator_port))
    found = _mpi(worker) | {
        # Its presence is what JAX looks for; the address in it is not used beside the next one.
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(worker.place.world_size),
        "JAX_PROCESS_ID": str(worker.rank),
    }
    if devices := _devices(worker):
        found["JAX_LOCAL_DEVICE_IDS"] = devices
    return found


def _devices(worker: StyledWorker) -> str:
    """Return the numbers of the devices that JAX uses in this worker; empty: not known.

    Each worker has one device, as in JAX under Open MPI: number 0 with `--virtual-local-rank`, else
    its local rank. A worker that is alone on its node has all, or those of JAX_LOCAL_DEVICE_IDS.
    """
    config = worker.config
    if config.virtual_local_rank:
        return "0"
    if config.count > 1:
        return str(worker.local_rank)
    chosen = worker.environ.get("JAX_LOCAL_DEVICE_IDS")
    return chosen or ",".join(map(str, range(config.devices)))


def _tensorflow(worker: StyledWorker) -> dict[str, str]:
    addresses = worker.place.worker_addresses
    if not addresses:
        raise UsageError(
            f"{named.env_style} tensorflow: TF_CONFIG has no room for the addresses of "
            f"{worker.place.world_size} workers"
        )
    task = {"type": "worker", "index": worker.rank}
    config = {"cluster": {"worker": addresses}, "task": task}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def _deepspeed(worker: StyledWorker) -> dict[str, str]:
    """Return the variables that `deepspeed.launcher.launch` sets besides torch's."""
    return {
        "LOCAL_SIZE": str(worker.config.count),
        "CROSS_RANK": str(worker.place.group_rank),
        "CROSS_SIZE": str(worker.place.group_world_size),
    }


_STYLES: dict[str, Callable[[StyledWorker], dict[str, str]]] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
    "mpi": _mpi,
    "deepspeed": _deepspeed,
}
