"""The variables of other launchers, for frameworks that know these and not torchrun's. Pure.

`jax`: JAX has a variable for the address of its coordinator, and learns the number of processes and
its own number only from a cluster that it detects. Of those that it knows, only Open MPI's launcher
describes a task by variables alone, which hold wherever the workers run and in whatever order; JAX
looks for it first, so that Slurm and Kubernetes are not asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from rallypoint.agent.environ import WorkerContext
from rallypoint.config import Endpoint
from rallypoint.core.settings import MAX_TOLD_WORKERS
from rallypoint.core.text import named
from rallypoint.errors import UsageError


def style_environ(context: WorkerContext, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker has besides torch's variables, by the styles of its job. `environ`: the rest
    of its environment.

    Raises UsageError where the workers are too many for a variable.
    """
    found: dict[str, str] = {}
    for style in context.config.rendezvous.env_styles:
        found |= _STYLES[style](context, environ)
    return found


def _mpi(context: WorkerContext, environ: Mapping[str, str]) -> dict[str, str]:
    """As Open MPI documents them."""
    local_rank, count = str(context.local_rank), str(context.config.workers.count)
    size = str(context.assignment.world_size)
    return {
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_RANK": str(context.rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": count,
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_NODE_RANK": local_rank,
        "OMPI_UNIVERSE_SIZE": size,
    }


def _jax(context: WorkerContext, environ: Mapping[str, str]) -> dict[str, str]:
    place = context.assignment
    address = str(Endpoint(place.master_addr, place.coordinator_port))
    found = _mpi(context, environ) | {
        # Its presence is what JAX looks for; the address in it is not used beside the next one.
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(place.world_size),
        "JAX_PROCESS_ID": str(context.rank),
    }
    if devices := _devices(context, environ):
        found["JAX_LOCAL_DEVICE_IDS"] = devices
    return found


def _devices(context: WorkerContext, environ: Mapping[str, str]) -> str:
    """The numbers of the devices that this process takes. One for each worker, as JAX does it under
    Open MPI; a worker that is alone on its node has them all."""
    workers = context.config.workers
    if workers.virtual_local_rank:
        return "0"
    if workers.count > 1:
        return str(context.local_rank)
    return environ.get("JAX_LOCAL_DEVICE_IDS") or ",".join(map(str, range(workers.devices)))


def _tensorflow(context: WorkerContext, environ: Mapping[str, str]) -> dict[str, str]:
    addresses = context.assignment.worker_addresses
    if not addresses:
        raise UsageError(
            f"{named.env_style} tensorflow: TF_CONFIG has room for {MAX_TOLD_WORKERS} workers, and "
            f"the job has {context.assignment.world_size}"
        )
    task = {"type": "worker", "index": context.rank}
    config = {"cluster": {"worker": addresses}, "task": task}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def _deepspeed(context: WorkerContext, environ: Mapping[str, str]) -> dict[str, str]:
    """What `deepspeed.launcher.launch` sets besides torch's."""
    return {
        "LOCAL_SIZE": str(context.config.workers.count),
        "CROSS_RANK": str(context.assignment.group_rank),
        "CROSS_SIZE": str(context.assignment.group_world_size),
    }


_Style = Callable[[WorkerContext, Mapping[str, str]], dict[str, str]]
_STYLES: dict[str, _Style] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
    "mpi": _mpi,
    "deepspeed": _deepspeed,
}
