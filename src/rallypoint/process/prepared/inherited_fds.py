"""Descriptors in the arguments of a function: a shared tensor, a pipe, a queue.

What is pickled is the place of a descriptor in a list; the worker gets the list itself.
"""

from __future__ import annotations

_of_this_worker: list[int] = []


class InheritedFd:
    """Stands for a descriptor in a pickle; as what `multiprocessing.reduction.DupFd` returns."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """The descriptor, which the caller then owns. In the worker."""
        return _of_this_worker[self._place]


def inherit(fds: list[int]) -> None:
    """In a worker, before its arguments are unpickled."""
    _of_this_worker[:] = fds
