"""The CPUs that each worker of this node may use (`--numa-binding`), asked once before any starts.

The kernel shows the CPUs, their caches and NUMA nodes under /sys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from msgspec import Struct

from rallypoint.config import AffinityMode, NumaOptions
from rallypoint.core.cpu_binding import BindingImpossible, Cpu, bind, parse_cpu_list, spread
from rallypoint.core.text import count, named
from rallypoint.errors import UsageError
from rallypoint.process.devices import Gpu, nvml_gpus, visible_gpus


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs that this process may use: cpusets, containers and `taskset` limit them.

    Raises BindingImpossible where the system has no CPU binding (macOS).
    """
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:
        raise BindingImpossible("this system does not bind processes to CPUs") from None


class Hardware(Struct, frozen=True):
    """The functions that return the GPUs and the allowed CPUs, and the path of the folder /sys."""

    gpus: Callable[[], Sequence[Gpu] | None] = nvml_gpus
    allowed: Callable[[], frozenset[int]] = allowed_cpus
    sys: str = "/sys"


THIS_MACHINE = Hardware()


def worker_cpus(
    workers: int, numa: NumaOptions, visible: str | None, machine: Hardware = THIS_MACHINE
) -> tuple[list[frozenset[int]], str]:
    """Return the CPUs of each worker, by local rank, and a remark for the user, or an empty one.

    `visible` is the value of CUDA_VISIBLE_DEVICES. An empty list of CPUs: the workers run unbound.
    Blocks for milliseconds, with GPUs for as long as their driver takes. Raises UsageError if
    binding is impossible, unless `numa` allows running unbound.
    """
    mode = AffinityMode(numa.affinity_mode)  # torch's own will do
    asked = f"{named.numa_binding} {mode}"
    try:
        cpus = read_cpus(machine.allowed(), machine.sys)
        known = machine.gpus() or ()
        seen = visible_gpus(visible, [gpu.uuid for gpu in known])
        if seen:
            homes = _homes_of_gpus(known, seen, workers, cpus, machine.sys)
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
    """Return the NUMA node of each visible GPU, in the order of `seen`.

    Raises BindingImpossible if there are fewer GPUs than workers, or a GPU's node is not known and
    `cpus` are on several nodes.
    """
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
            node = node_of_pci_device(gpus[index].pci_address, sys)
        if node is None and len(nodes) == 1:
            [node] = nodes
        if node is None:
            name = "a MIG instance" if index is None else f"GPU {index}"
            raise BindingImpossible(f"the system does not report the NUMA node of {name}")
        homes.append(node)
    return homes


def read_cpus(allowed: Set[int], sys: str) -> list[Cpu]:
    """Return every CPU that is online and in `allowed`, in the order of their numbers.

    Reads about a dozen small files for each CPU.

    A kernel without NUMA has one node, 0. Raises BindingImpossible when /sys can't be read, or
    lists none of the allowed CPUs.
    """
    root = Path(sys, "devices/system")
    try:
        nodes = _nodes(root / "node")
        online = parse_cpu_list((root / "cpu/online").read_text())
        cpus = [
            _cpu(number, nodes.get(number, 0), root / f"cpu/cpu{number}")
            for number in sorted(online & allowed)
        ]
    except (OSError, ValueError) as error:
        raise BindingImpossible(f"{root} does not list the CPUs: {error}") from error
    if not cpus:
        raise BindingImpossible(f"{root} lists none of the CPUs that this agent may use")
    return cpus


def node_of_pci_device(address: str, sys: str) -> int | None:
    """Return the NUMA node that a device such as `0000:1b:00.0` is attached to.

    None: not known.
    """
    try:
        node = int(Path(sys, "bus/pci/devices", address, "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _nodes(folder: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU; empty where the kernel has no NUMA."""
    nodes: dict[int, int] = {}
    if folder.is_dir():
        for node in sorted(parse_cpu_list((folder / "online").read_text())):
            for cpu in parse_cpu_list((folder / f"node{node}/cpulist").read_text()):
                nodes[cpu] = node
    return nodes


def _cpu(number: int, node: int, folder: Path) -> Cpu:
    package = int((folder / "topology/physical_package_id").read_text())
    core = min(parse_cpu_list((folder / "topology/thread_siblings_list").read_text()))
    return Cpu(number, node, package, core, _last_level_cache(number, folder / "cache"))


def _last_level_cache(number: int, folder: Path) -> int:
    """Return the lowest number of a CPU that shares this CPU's last-level cache.

    Without cache data it is the CPU's own number.
    """
    last, first_cpu = 0, number
    for index in folder.glob("index*"):
        level = int((index / "level").read_text())
        if level > last and (index / "type").read_text().strip() != "Instruction":
            last = level
            first_cpu = min(parse_cpu_list((index / "shared_cpu_list").read_text()))
    return first_cpu
