"""Trains a small network on handwritten digits with DistributedDataParallel on CPUs.

Plain PyTorch. What makes it elastic is in three places: the process group is made from the
environment, every epoch ends in a checkpoint, and a start looks for one. The number of workers may
differ from start to start. The calls of `rallypoint.worker`, which do nothing elsewhere, make that
plannable: when nodes are to leave or come, all workers stop after the same checkpoint.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rallypoint import worker

SEED = 7
GLOBAL_BATCH = 64
TEST_IMAGES = 360


def main() -> None:
    """Train from the newest checkpoint to the last epoch and tell the accuracy."""
    options = parse_options()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size}: pid {os.getpid()}", flush=True)

    torch.manual_seed(SEED)
    train_set, test_set = load_data()
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    done = resume(options.checkpoint, network, optimizer)
    model = DistributedDataParallel(network)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        train_set, shuffle=True, seed=SEED
    )
    # The batch of all workers together stays the same, however many they are.
    batches = DataLoader(train_set, batch_size=max(1, GLOBAL_BATCH // world_size), sampler=sampler)

    for epoch in range(done, options.epochs):
        began_at = time.monotonic()
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, batches)
        accuracy = measure_accuracy(network, test_set)
        if rank == 0:
            save(options.checkpoint, network, optimizer, epoch + 1)
            at = f"epoch {epoch + 1}/{options.epochs}"
            print(f"{at}: loss {loss:.3f}, accuracy {accuracy:.3f}", flush=True)
        worker.progress(epoch + 1)
        if any_worker(worker.should_restart_at_checkpoint()):
            print(f"rank {rank} stops after epoch {epoch + 1}", flush=True)
            worker.checkpoint_saved(epoch + 1)  # From now on its agent may end this process.
            break
        time.sleep(max(0.0, began_at + options.epoch_seconds - time.monotonic()))
    else:
        accuracy = measure_accuracy(network, test_set)
        if rank == 0:
            print(f"accuracy {accuracy:.3f}", flush=True)

    # A thread of gloo's that wants Python while the interpreter ends aborts the process. The group
    # joins its threads when nothing refers to it any more: the model does, in a cycle, and so would
    # defaults in torch.distributed.nn, were that first imported while there is a group.
    del model
    gc.collect()
    dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="train a small network on handwritten digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.pt"))
    parser.add_argument(
        "--epoch-seconds",
        type=float,
        default=0.0,
        help="let an epoch take at least so long, to have time to break something",
    )
    return parser.parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """1797 images of 8x8, the same split on every worker: for training and for testing."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32) / 16
    digits = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(pixels[train], digits[train]), TensorDataset(pixels[test], digits[test])


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader[tuple[Tensor, ...]]
) -> float:
    """One pass over this worker's share; the mean loss there."""
    total = 0.0
    for pixels, digits in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels), digits)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


def measure_accuracy(network: nn.Module, test_set: TensorDataset) -> float:
    """The share of test images that the network gets right; each worker looks at its own."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pixels, digits = (tensor[rank::world_size] for tensor in test_set.tensors)
    with torch.no_grad():
        right = (network(pixels).argmax(dim=1) == digits).sum()
    dist.all_reduce(right)
    return float(right.item() / len(test_set))


def any_worker(wants: bool) -> bool:
    """Whether one of them does: each learns it at a moment of its own. All have come so far then,
    rank 0 too, which has saved the checkpoint before."""
    some = torch.tensor(int(wants))
    dist.all_reduce(some, op=dist.ReduceOp.MAX)
    return bool(some.item())


def save(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, done: int) -> None:
    """Replace the checkpoint at once and whole: a kill at any moment leaves the old or the new."""
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def resume(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint and return how many epochs are done.

    Rank 0 alone reads it and gives it to the others: all start from the same one, and no folder
    need be shared, because rank 0 is a survivor whenever there is one.
    """
    found: list[dict[str, Any] | None] = [None]
    if dist.get_rank() == 0 and path.exists():
        found[0] = torch.load(path, weights_only=True)
    dist.broadcast_object_list(found, src=0)
    state = found[0]
    if state is None:
        return 0
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    done = int(state["done"])
    if dist.get_rank() == 0:
        print(f"resumed after epoch {done}", flush=True)
    return done


if __name__ == "__main__":
    main()
