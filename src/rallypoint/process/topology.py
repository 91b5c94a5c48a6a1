"""What this machine looks like: its CPUs, as the kernel shows them under /sys."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

from rallypoint.core.cpu_binding import BindingImpossible, Cpu, parse_cpu_list

SYS = "/sys"


def allowed_cpus() -> frozenset[int]:
    """The CPUs that this process may use: cpusets, containers and `taskset` limit them.

    Raises BindingImpossible where the system binds no process to CPUs (macOS).
    """
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:
        raise BindingImpossible("this system does not bind processes to CPUs") from None


def read_cpus(allowed: Set[int], sys: str = SYS) -> list[Cpu]:
    """Every CPU that is online and allowed, in order. Reads some five small files for each.

    A kernel without NUMA has one node, 0. Raises BindingImpossible when /sys does not tell.
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
        raise BindingImpossible(f"{root} does not tell what CPUs there are: {error}") from error
    if not cpus:
        raise BindingImpossible(f"{root} knows none of the CPUs that this agent may use")
    return cpus


def node_of_pci_device(address: str, sys: str = SYS) -> int | None:
    """The NUMA node that a device such as `0000:1b:00.0` is attached to; None: nobody knows."""
    try:
        node = int(Path(sys, "bus/pci/devices", address, "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _nodes(folder: Path) -> dict[int, int]:
    """CPU -> node."""
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
    """Where nothing is told of caches (some virtual machines), each CPU counts as its own."""
    last, first_cpu = 0, number
    for index in folder.glob("index*"):
        level = int((index / "level").read_text())
        if level > last and (index / "type").read_text().strip() != "Instruction":
            last = level
            first_cpu = min(parse_cpu_list((index / "shared_cpu_list").read_text()))
    return first_cpu
