"""Machines that do not exist, as files below a folder, in the kernel's form of /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def make_machine(
    sys: Path,
    *,
    sockets: int = 1,
    nodes_per_socket: int = 1,
    cores_per_node: int = 4,
    threads: int = 1,
    cores_per_cache: int = 4,
    offline: frozenset[int] = frozenset(),
    gpus: Mapping[str, int] | None = None,
) -> str:
    """Returns `sys`. As usual the first threads of all cores are numbered before the second ones.

    `gpus`: PCI address -> NUMA node.
    """
    cores = sockets * nodes_per_socket * cores_per_node
    for node in range(sockets * nodes_per_socket):
        its = range(node * cores_per_node, (node + 1) * cores_per_node)
        _write(sys, f"devices/system/node/node{node}/cpulist", _threads(its, cores, threads))
    _write(sys, "devices/system/node/online", f"0-{sockets * nodes_per_socket - 1}")
    everything = set(range(cores * threads))
    _write(sys, "devices/system/cpu/online", ",".join(map(str, sorted(everything - offline))))
    for cpu in everything - offline:
        core = cpu % cores
        node = core // cores_per_node
        first = node * cores_per_node + core % cores_per_node // cores_per_cache * cores_per_cache
        last = min(first + cores_per_cache, (node + 1) * cores_per_node)
        home = f"devices/system/cpu/cpu{cpu}"
        _write(sys, f"{home}/topology/physical_package_id", str(node // nodes_per_socket))
        own = _threads(range(core, core + 1), cores, threads)
        _write(sys, f"{home}/topology/thread_siblings_list", own)
        caches = [("1", "Data", own), ("1", "Instruction", own), ("2", "Unified", own)]
        caches.append(("3", "Unified", _threads(range(first, last), cores, threads)))
        for index, (level, kind, shared) in enumerate(caches):
            _write(sys, f"{home}/cache/index{index}/level", level)
            _write(sys, f"{home}/cache/index{index}/type", kind)
            _write(sys, f"{home}/cache/index{index}/shared_cpu_list", shared)
    for address, node in (gpus or {}).items():
        _write(sys, f"bus/pci/devices/{address}/numa_node", str(node))
    return str(sys)


def _threads(cores: range, all_cores: int, threads: int) -> str:
    spans = [(cores.start + t * all_cores, cores.stop - 1 + t * all_cores) for t in range(threads)]
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)


def _write(sys: Path, name: str, text: str) -> None:
    path = sys / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
