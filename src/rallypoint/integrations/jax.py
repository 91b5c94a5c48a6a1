"""`jax.distributed.initialize()` without arguments, for scripts that import this.

    import jax
    import rallypoint.integrations.jax

    jax.distributed.initialize()

JAX asks each class of clusters that it knows whether its process is in one; this module adds one of
ours, before the others. The address of JAX's coordinator is a port that the worker of rank 0
chooses, and tells the others through the store of the round: each round has its own. So no option
is needed, and it works under torchrun, too. With `--env-style jax` a script needs not even this.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count

from jax._src.clusters import ClusterEnv

from rallypoint.agent.ports import ReservedPorts
from rallypoint.config import Endpoint
from rallypoint.worker import context, store

CONNECT_S = 300
"""The default time in seconds for which the ranks wait for rank 0; the same as JAX's."""
_turns = count()
_ports = ReservedPorts(1)


class RallypointCluster(ClusterEnv):
    """The workers of a round, as a class of clusters that JAX asks."""

    name = "rallypoint"

    @classmethod
    def is_env_present(cls) -> bool:
        """Return whether this process is a worker, also one of torchrun."""
        return context().launched

    @classmethod
    def get_coordinator_address(
        cls, timeout_secs: int | None = None, override_coordinator_port: str | None = None
    ) -> str:
        """Return the HOST:PORT of JAX's coordinator, the same on all ranks.

        Rank 0 chooses the port, unless it is given, and tells the others through the round's store.
        The n-th call of one rank is the n-th of the others. Blocks until rank 0 has called, for
        `timeout_secs` at most. Raises StoreTimeoutError or StoreConnectionError.
        """
        place, shared = context(), store()
        key = f"jax/coordinator/{next(_turns)}"
        if place.rank == 0:
            port = int(override_coordinator_port or _ports.renew()[0])
            shared.set(key, str(Endpoint(place.master_addr, port)).encode())
        shared.wait([key], timedelta(seconds=timeout_secs or CONNECT_S))
        return shared.get(key).decode()

    @classmethod
    def get_process_count(cls) -> int:
        """Return the number of workers in the round, which is WORLD_SIZE."""
        return context().world_size

    @classmethod
    def get_process_id(cls) -> int:
        """Return the global rank of this worker, which is RANK."""
        return context().rank

    @classmethod
    def get_local_process_id(cls) -> int | None:
        """Return the local rank, which is the number of this process's only device.

        None: it is the only worker of its node, and has all devices.
        """
        place = context()
        return place.local_rank if place.local_world_size > 1 else None


def _ask_it_first() -> None:
    """Have JAX ask this class before its own, of which Slurm's would match on any Slurm node.

    A JAX without a list of classes needs `cluster_detection_method="rallypoint"`.
    """
    known = getattr(ClusterEnv, "_cluster_types", None)
    if isinstance(known, list) and RallypointCluster in known:
        known.remove(RallypointCluster)
        known.insert(0, RallypointCluster)


_ask_it_first()
