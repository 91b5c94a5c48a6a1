"""The samples of a rank in the rest of a data set.

Torch's class of this name is a subclass of its `DistributedSampler`. This one is not, since
importing it must not load torch; a `DataLoader` takes any iterable for its sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TypeVar

from rallypoint.errors import ParameterError

T = TypeVar("T")


class ElasticDistributedSampler:
    """A sampler that yields the indices of this rank's samples of a data set from `start_index` on.

    The order is shuffled, by the epoch, as torch's class of this name does it. Give it to a
    `DataLoader` as its `sampler`; call `set_epoch` for each epoch.

    `num_replicas` and `rank` are those of the process group, unless they are given. All ranks get
    equally many samples; if need be, the first ones are repeated for that. Raises ParameterError
    (a ValueError) for a rank or a start that is out of range.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        start_index: int = 0,
    ) -> None:
        if num_replicas is None or rank is None:
            import torch.distributed

            group = torch.distributed
            num_replicas = group.get_world_size() if num_replicas is None else num_replicas
            rank = group.get_rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ParameterError(f"rank={rank}: needs 0 to {num_replicas - 1}")
        if not 0 <= start_index < len(dataset):
            raise ParameterError(f"start_index={start_index}: needs 0 to {len(dataset) - 1}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.start_index, self.epoch, self.seed = start_index, 0, 0
        self.shuffle, self.drop_last = True, False
        self.num_samples = -(-(len(dataset) - start_index) // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, by which the samples are shuffled."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        import torch

        shuffled = torch.Generator()
        shuffled.manual_seed(self.seed + self.epoch)
        left = len(self.dataset) - self.start_index
        order = torch.randperm(left, generator=shuffled).tolist()
        ours = range(self.rank, self.total_size, self.num_replicas)
        return (self.start_index + int(order[at % left]) for at in ours)
