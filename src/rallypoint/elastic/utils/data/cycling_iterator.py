"""An iterator over the same data for several epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self, TypeVar

_T = TypeVar("_T")


class CyclingIterator(Iterator[_T]):
    """An iterator over the items of `generator_fn(epoch)` for several epochs.

    These are `start_epoch` to `n - 1`; `start_epoch` is always one of them.
    """

    def __init__(
        self, n: int, generator_fn: Callable[[int], Iterator[_T]], start_epoch: int = 0
    ) -> None:
        self._n, self._epoch, self._generator_fn = n, start_epoch, generator_fn
        self._iter = generator_fn(start_epoch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _T:
        while True:
            try:
                return next(self._iter)
            except StopIteration:
                if self._epoch >= self._n - 1:
                    raise
            self._epoch += 1
            self._iter = self._generator_fn(self._epoch)
