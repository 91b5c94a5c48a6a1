"""What workers have written of themselves, and which rules that breaks. The rules are pure."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from tests.harness.proc import is_alive

OVERLAP_S = 0.5
"""So long a worker may be seen after the first one of a later world began: clocks of files are
coarse. No node starts a worker before each worker of the round before is gone, or fenced."""


class WorldId(NamedTuple):
    """Worlds are ordered by it."""

    incarnation: int
    round: int

    def __str__(self) -> str:
        return f"round {self.round} of incarnation {self.incarnation}"


class WorkerRecord(Struct, frozen=True):
    """One worker. Times are seconds since 1970."""

    world: WorldId
    rank: int
    world_size: int
    node: str
    pid: int
    began_at: float
    seen_at: float
    """When it was last known to live."""
    met_at: float | None = None
    """When it had met all ranks."""


class Reader:
    """Reads the files of workers in a folder; those of workers that have ended only once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[str, WorkerRecord] = {}

    def read(self) -> list[WorkerRecord]:
        """All workers, by world and rank, but those that have not told where they are."""
        found = []
        for name in os.listdir(self._folder):
            worker = self._ended.get(name)
            if worker is None:
                has_ended = not is_alive(int(name.rpartition("-")[2]))
                worker = _read(self._folder / name)
                if worker is not None and has_ended:
                    self._ended[name] = worker
            if worker is not None:
                found.append(worker)
        return sorted(found, key=lambda worker: (worker.world, worker.rank))


def _read(path: Path) -> WorkerRecord | None:
    lines = path.read_text().split("\n")[:-1]
    told = {name: value for line in lines for name, value in json.loads(line).items()}
    if not told:
        return None
    return WorkerRecord(
        world=WorldId(told["incarnation"], told["round"]),
        rank=told["RANK"],
        world_size=told["WORLD_SIZE"],
        node=told["node"],
        pid=told["pid"],
        began_at=told["began_at"],
        seen_at=max(path.stat().st_mtime, told["began_at"]),
        met_at=told.get("met_at"),
    )


Worlds = dict[WorldId, list[WorkerRecord]]


def by_world(workers: Iterable[WorkerRecord]) -> Worlds:
    """The workers of each world, in the order of worlds."""
    found: Worlds = defaultdict(list)
    for worker in workers:
        found[worker.world].append(worker)
    return dict(sorted(found.items()))


def is_complete(workers: list[WorkerRecord]) -> bool:
    """Whether these are all workers of a world, and have met."""
    return bool(workers) and (
        sorted(worker.rank for worker in workers) == list(range(workers[0].world_size))
        and all(worker.met_at is not None for worker in workers)
    )


def broken_rules(workers: Iterable[WorkerRecord]) -> list[str]:
    """One line for each rule that the worlds of a job break."""
    worlds = by_world(workers)
    broken = [line for world in worlds.values() for line in _of_one(world)]
    for earlier, later in pairwise(worlds):
        # A takeover may give the job another number; its rounds are counted on.
        if later.incarnation > earlier.incarnation and later.round <= earlier.round:
            broken.append(f"the job was begun anew: {later} came after {earlier}")
    return broken + list(_not_in_order(worlds)) + list(_overlaps(worlds))


def _of_one(workers: list[WorkerRecord]) -> Iterable[str]:
    """What is wrong within a world."""
    name, sizes = workers[0].world, sorted({worker.world_size for worker in workers})
    if len(sizes) > 1:
        yield f"{name} has two worlds, of {' and '.join(map(str, sizes))} workers"
    for rank, count in Counter(worker.rank for worker in workers).items():
        if count > 1:
            nodes = sorted(worker.node for worker in workers if worker.rank == rank)
            yield f"{name} has rank {rank} {count} times, on {', '.join(nodes)}"
        if not 0 <= rank < sizes[-1]:
            yield f"{name} has rank {rank}, of {sizes[-1]} workers"
    if any(worker.met_at is not None for worker in workers):
        missing = set(range(sizes[-1])) - {worker.rank for worker in workers}
        if missing:
            yield f"{name} has met without ranks {sorted(missing)}"


def _not_in_order(worlds: Worlds) -> Iterable[str]:
    """Worlds that began after a later one."""
    begun = {name: min(w.began_at for w in world) for name, world in worlds.items()}
    for earlier, later in zip(begun, list(begun)[1:], strict=False):
        if begun[earlier] > begun[later]:
            yield f"{earlier} began after {later}"


def _overlaps(worlds: Worlds) -> Iterable[str]:
    """Workers that lived when a later world had begun."""
    begun = {name: min(w.began_at for w in world) for name, world in worlds.items()}
    for earlier, later in zip(worlds, list(worlds)[1:], strict=False):
        last = max(worlds[earlier], key=lambda worker: worker.seen_at)
        if (over_s := last.seen_at - begun[later]) > OVERLAP_S:
            yield (
                f"rank {last.rank} of {earlier} (node {last.node}) lived for {over_s:.1f} s"
                f" when {later} had begun"
            )
