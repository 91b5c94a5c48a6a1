"""Ranks: which nodes make up a world, their order, and the ranks of their workers (behaviour R4).

The first world is sorted by (topology, node id), numbers inside names compared as numbers, so
that `node2` comes before `node10` whatever the order of arrival. A later world keeps its
survivors in their order. A slot that became vacant goes to the node of the same id, then to one
of the same shape, then to the next in sort order; the rest append; holes close up. Rank 0 is a
survivor whenever there is one, because local checkpoints of rank 0 are on its disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import gcd

from msgspec import Struct

from rallypoint.core.model import Candidate, NodeRef, WorldEntry


class Participant(Struct, frozen=True):
    """A node that takes part in a round, or offers to."""

    ref: NodeRef
    candidate: Candidate

    @property
    def shape(self) -> tuple[int, str]:
        """The number of workers and the role: a node with the same is preferred as a successor."""
        return self.candidate.workers, self.candidate.role


class WorkerRanks(Struct, frozen=True):
    """The first global and role rank of one node's workers, and how many workers have its role."""

    base_rank: int
    base_role_rank: int
    role_world_size: int


def id_of_rank(node_rank: int) -> str:
    """Return the node id of a node whose command line gives only its rank."""
    return f"rank{node_rank}"


def natural_key(text: str) -> tuple[tuple[int, int, str, str], ...]:
    """Return a sort key that compares runs of ASCII digits as numbers, and the rest as text.

    A number is compared by its length, then digit by digit, because `int` refuses very long ones.
    """
    parts: list[tuple[int, int, str, str]] = []
    start = 0
    while start < len(text):
        digit = _is_digit(text[start])
        end = start
        while end < len(text) and _is_digit(text[end]) == digit:
            end += 1
        run = text[start:end]
        number = run.lstrip("0")
        parts.append((0, len(number), number, run) if digit else (1, 0, run, ""))
        start = end
    return tuple(parts)


def sort_key(node: Participant) -> tuple[object, ...]:
    """Return the sort key of nodes without earlier ranks: fixed rank, topology, node id."""
    candidate = node.candidate
    return (
        candidate.node_rank,
        natural_key(candidate.topology),
        natural_key(node.ref.node_id),
    )


def fitting(nodes: Mapping[int, int], most: int, multiple: int) -> int:
    """Return how many nodes, at most `most`, can form one world.

    `nodes` is the number of nodes for each number of workers. The most frequent number of workers
    comes first, so that a node with a broken device is the one on standby. Of that order it takes
    as many nodes as have a multiple of `multiple` workers together.
    """
    fits = taken = workers = 0
    for each, count in sorted(nodes.items(), key=lambda item: (-item[1], -item[0])):
        here = min(count, most - taken)
        period = multiple // gcd(each, multiple)  # More nodes than that leave the same remainder.
        for number in range(here, max(here - period, 0), -1):
            if not (workers + number * each) % multiple:
                fits = taken + number
                break
        taken, workers = taken + here, workers + here * each
    return fits


def choose(
    offered: Sequence[tuple[bool, Participant]], most: int, multiple: int
) -> list[Participant]:
    """Return the nodes of the next world, at most `most`, not in rank order. O(N log N).

    Each offered node has True if the next round waits for it, since it was in the job before. It
    goes before the others; if `multiple` is above 1, only before others of as many workers. The
    workers together are a multiple of `multiple`.
    """
    have = (
        Counter(node.candidate.workers for _, node in offered) if multiple > 1 else Counter[int]()
    )

    def key(offer: tuple[bool, Participant]) -> tuple[object, ...]:
        was_in, node = offer
        workers = node.candidate.workers
        return (-have[workers], -workers if have else 0, not was_in, sort_key(node))

    number = fitting(have, most, multiple) if have else most
    return [node for _, node in sorted(offered, key=key)[:number]]


def order(
    previous: Sequence[WorldEntry],
    nodes: Iterable[Participant],
    not_first: Sequence[str] = (),
) -> list[Participant]:
    """Return all of `nodes` in rank order, given the world before. O(N log N).

    If all of them have a fixed rank from the command line, only that counts. The nodes with the ids
    `not_first` are rank 0 only when there is no other.
    """
    nodes = list(nodes)
    if all(node.candidate.node_rank >= 0 for node in nodes):
        return sorted(nodes, key=sort_key)
    by_ref = {(node.ref.node_id, node.ref.incarnation): node for node in nodes}
    taken: list[Participant | None] = []
    survivors: set[NodeRef] = set()
    for entry in previous:
        node = by_ref.pop((entry.node_id, entry.incarnation), None)
        taken.append(node)
        if node is not None:
            survivors.add(node.ref)
    newcomers = {node.ref.node_id: node for node in sorted(by_ref.values(), key=sort_key)}
    _fill_same_id(previous, taken, newcomers)
    _fill_same_shape(previous, taken, newcomers)
    rest = iter(newcomers.values())
    result = [node or next(rest, None) for node in taken]
    world = [node for node in result if node is not None]
    world.extend(rest)
    first = min(
        range(len(world)),
        key=lambda i: (world[i].ref.node_id in not_first, world[i].ref not in survivors, i),
        default=0,
    )
    return [*world[first : first + 1], *world[:first], *world[first + 1 :]]


def worker_ranks(world: Sequence[Participant]) -> list[WorkerRanks]:
    """Return the ranks of each node's workers. O(N).

    The workers of one node get consecutive ranks, global and in their role, in node order.
    """
    role_sizes: dict[str, int] = {}
    for node in world:
        role = node.candidate.role
        role_sizes[role] = role_sizes.get(role, 0) + node.candidate.workers
    ranks: list[WorkerRanks] = []
    base, base_of_role = 0, dict.fromkeys(role_sizes, 0)
    for node in world:
        role, workers = node.candidate.role, node.candidate.workers
        ranks.append(WorkerRanks(base, base_of_role[role], role_sizes[role]))
        base += workers
        base_of_role[role] += workers
    return ranks


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9"


def _fill_same_id(
    previous: Sequence[WorldEntry],
    taken: list[Participant | None],
    newcomers: dict[str, Participant],
) -> None:
    for index, entry in enumerate(previous):
        if taken[index] is None:
            taken[index] = newcomers.pop(entry.node_id, None)


def _fill_same_shape(
    previous: Sequence[WorldEntry],
    taken: list[Participant | None],
    newcomers: dict[str, Participant],
) -> None:
    by_shape: dict[tuple[int, str], list[Participant]] = {}
    for node in reversed(newcomers.values()):
        by_shape.setdefault(node.shape, []).append(node)
    for index, entry in enumerate(previous):
        if taken[index] is None and (same := by_shape.get((entry.workers, entry.role))):
            node = same.pop()
            taken[index] = newcomers.pop(node.ref.node_id)
