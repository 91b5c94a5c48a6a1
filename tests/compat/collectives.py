"""A worker of plain torch that uses what training scripts use, and writes what it computed.

    collectives.py FOLDER [--store PORT] [--die-once RANK]

The process group comes from the environment, or from a torch client of the store at PORT. What was
computed is in FOLDER/<rank>.json, checkpoints are in FOLDER/checkpoint; with --die-once this rank
kills itself in the middle, unless the file FOLDER/died says that it has done so.
"""

import argparse
import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore
from torch.distributed.checkpoint import load, save

LIMIT = timedelta(seconds=50)


def join(port: int | None) -> None:
    """Forms the group."""
    if port is None:
        dist.init_process_group("gloo", init_method="env://", timeout=LIMIT)
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore("127.0.0.1", port, size, False, timeout=LIMIT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)


def die_once(folder: Path) -> None:
    """As a machine would: no exception, no goodbye."""
    try:
        (folder / "died").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def checkpoint(folder: Path, rank: int, size: int) -> list[float]:
    """What is loaded after it was saved by all: a part of every rank, and one that they share."""

    def state(value: float) -> dict[str, torch.Tensor]:
        own = {f"part.{rank}": torch.full((3,), value * (rank + 1))}
        return own | {"shared": torch.full((2,), value)}

    save(state(7.0), checkpoint_id=folder / "checkpoint")
    loaded = state(0.0)
    load(loaded, checkpoint_id=folder / "checkpoint")
    return [*loaded[f"part.{rank}"].tolist(), *loaded["shared"].tolist()]


def main() -> None:
    """Everything once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", type=int)
    parser.add_argument("--die-once", type=int)
    given = parser.parse_args()
    join(given.store)
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    if rank == given.die_once:
        die_once(given.folder)
    ends = dist.new_group([0, size - 1])
    pair = torch.tensor([10.0 * (rank + 1)])
    if rank in (0, size - 1):
        dist.all_reduce(pair, group=ends)
    dist.barrier()
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "name": "x" * rank})
    told: list[object] = [{"from": rank, "blob": b"\0\xff" * 9}] if rank == size - 1 else [None]
    dist.broadcast_object_list(told, src=size - 1)
    restored = checkpoint(given.folder, rank, size)
    dist.monitored_barrier(timeout=LIMIT)
    computed = {
        "sum": total.item(),
        "ends": pair.item(),
        "gathered": gathered,
        "told": repr(told[0]),
        "restored": restored,
        "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    }
    (given.folder / f"{rank}.json").write_text(json.dumps(computed))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
