"""Where the workers of this node may run (`--numa-binding`): asked once, before any starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rallypoint.config import AffinityMode, NumaOptions
from rallypoint.core.cpu_binding import BindingImpossible, Cpu, bind, spread
from rallypoint.core.wording import count
from rallypoint.errors import UsageError
from rallypoint.process import topology
from rallypoint.process.gpus import Gpu, nvml_gpus, visible_gpus


def worker_cpus(
    workers: int,
    numa: NumaOptions,
    visible: str | None,
    *,
    gpus: Callable[[], Sequence[Gpu] | None] = nvml_gpus,
    allowed: Callable[[], frozenset[int]] = topology.allowed_cpus,
    sys: str = topology.SYS,
) -> tuple[list[frozenset[int]], str]:
    """The CPUs of each worker, by local rank, and a remark for the person, or an empty one.

    `visible` is CUDA_VISIBLE_DEVICES. No CPUs at all: the workers run unbound. Blocks for
    milliseconds, with GPUs for as long as their driver takes.

    Raises UsageError when it can't be done, unless `numa` says to go on without.
    """
    mode = AffinityMode(numa.affinity_mode)  # torch's own will do
    asked = f"--numa-binding {mode}"
    try:
        cpus = topology.read_cpus(allowed(), sys)
        known = gpus() or ()
        seen = visible_gpus(visible, [gpu.uuid for gpu in known])
        if seen:
            homes = _homes_of_gpus(known, seen, workers, cpus, sys)
        else:
            homes = spread(cpus, workers)
        bound = bind(cpus, mode, homes, workers)
    except BindingImpossible as why:
        if numa.should_fall_back_if_binding_fails:
            return [], f"{asked}: {why}: the workers run unbound"
        raise UsageError(f"{asked}: {why}; leave it out") from why
    if seen:
        return bound, ""
    nodes = count(len(set(homes)), "NUMA node")
    return bound, f"{asked}: no NVIDIA GPU is visible: the workers are spread over {nodes}"


def _homes_of_gpus(
    gpus: Sequence[Gpu], seen: Sequence[int | None], workers: int, cpus: Sequence[Cpu], sys: str
) -> list[int]:
    """The NUMA node of every GPU that is visible."""
    if len(seen) < workers:
        raise BindingImpossible(
            f"{count(workers, 'worker')}, but {count(len(seen), 'GPU')} visible (with"
            " CUDA_VISIBLE_DEVICES= workers are spread over the CPUs instead)"
        )
    nodes = {cpu.node for cpu in cpus}
    homes = []
    for index in seen:
        node = None
        if index is not None:
            node = topology.node_of_pci_device(gpus[index].pci_address, sys)
        if node is None and len(nodes) == 1:
            [node] = nodes
        if node is None:
            name = "a MIG instance" if index is None else f"GPU {index}"
            raise BindingImpossible(f"the system does not tell the NUMA node of {name}")
        homes.append(node)
    return homes
