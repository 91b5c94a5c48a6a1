"""The CPUs that each worker of a node may use, given the machine's topology (`--numa-binding`).

Every worker has a *home*: the NUMA node of its GPU, or, without GPUs, the one that its share of
the cores lies on. The modes are torch's:

    node           all CPUs of the home
    socket         all CPUs of the home's socket, which may hold several NUMA nodes
    exclusive      a share of the home's physical cores that nobody else at this home has
    core-complex   the CPUs of the home that share one last-level cache, another one for each
                   worker while there are enough of them

CPUs that this agent itself may not use are given to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from msgspec import Struct

from rallypoint.config import AffinityMode
from rallypoint.core.text import count


class Cpu(Struct, frozen=True):
    """One logical CPU that the agent may use.

    `node` is its NUMA node, `package` its socket. CPUs with an equal `core` or `cache` (the last
    level) share that; each is numbered by its first CPU.
    """

    number: int
    node: int
    package: int
    core: int
    cache: int


class BindingImpossible(Exception):
    """The error of a CPU binding that is impossible on this machine. Its text is a clause."""


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers in a list as the kernel writes it, such as `0-3,8,10-11`.

    Raises ValueError.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def spread(cpus: Sequence[Cpu], workers: int) -> list[int]:
    """Return the NUMA node of each worker on a node without GPUs.

    The cores in order of NUMA nodes are cut into equal shares, and a worker gets the NUMA node
    where the middle of its share lies.
    """
    nodes = sorted({(cpu.node, cpu.core) for cpu in cpus})
    return [nodes[(2 * i + 1) * len(nodes) // (2 * workers)][0] for i in range(workers)]


def bind(
    cpus: Sequence[Cpu], mode: AffinityMode, homes: Sequence[int], workers: int
) -> list[frozenset[int]]:
    """Return the CPUs that each worker may use, by local rank. Pure.

    `homes` has the NUMA node of every visible GPU, or, on a node without GPUs, of each worker. The
    first `workers` entries are the workers' own. Raises BindingImpossible.
    """
    here = {home: [cpu for cpu in cpus if cpu.node == home] for home in homes[:workers]}
    for home, of_home in here.items():
        if not of_home:
            raise BindingImpossible(f"this agent may use no CPU of NUMA node {home}")
    bound = []
    for local_rank in range(workers):
        home = homes[local_rank]
        parts = _parts(cpus, mode, home, here[home], homes.count(home))
        slot = homes[:local_rank].count(home)
        bound.append(frozenset(cpu.number for cpu in parts[slot % len(parts)]))
    return bound


def _parts(
    cpus: Sequence[Cpu], mode: AffinityMode, home: int, of_home: Sequence[Cpu], slots: int
) -> Sequence[Sequence[Cpu]]:
    """Return the parts into which a NUMA node's CPUs are divided; its workers get them in turn."""
    match mode:
        case AffinityMode.NODE:
            return [of_home]
        case AffinityMode.SOCKET:
            return [_of_sockets(cpus, of_home)]
        case AffinityMode.EXCLUSIVE:
            return _shares(home, of_home, slots)
        case AffinityMode.CORE_COMPLEX:
            return _complexes(of_home)
        case _:
            assert_never(mode)


def _of_sockets(cpus: Sequence[Cpu], of_home: Sequence[Cpu]) -> list[Cpu]:
    packages = {cpu.package for cpu in of_home}
    return [cpu for cpu in cpus if cpu.package in packages]


def _shares(home: int, of_home: Sequence[Cpu], slots: int) -> list[list[Cpu]]:
    """Divide the CPUs of a NUMA node into this many shares of whole neighbouring cores.

    The first shares have one core more where the cores don't divide evenly. Raises
    BindingImpossible if there are too few cores.
    """
    cores = sorted({(cpu.cache, cpu.core) for cpu in of_home})
    if len(cores) < slots:
        raise BindingImpossible(
            f"NUMA node {home} has {count(len(cores), 'physical core')}: too few for {slots}"
            " exclusive shares"
        )
    size, more = divmod(len(cores), slots)
    shares, start = [], 0
    for slot in range(slots):
        end = start + size + (slot < more)
        mine = set(cores[start:end])
        shares.append([cpu for cpu in of_home if (cpu.cache, cpu.core) in mine])
        start = end
    return shares


def _complexes(of_home: Sequence[Cpu]) -> list[list[Cpu]]:
    """Return the groups of CPUs of one NUMA node with a common cache, the largest first.

    Only CPUs that the agent may use count.
    """
    by_cache: dict[int, list[Cpu]] = {}
    for cpu in of_home:
        by_cache.setdefault(cpu.cache, []).append(cpu)
    return [by_cache[cache] for cache in sorted(by_cache, key=lambda c: (-len(by_cache[c]), c))]
