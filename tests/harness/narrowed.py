"""Values that must be there, or be of a kind: the test fails here if they are not.

verdict = known(cluster.job.verdict)
finish = only(Finish, node.step(WorkersGone(stamp())))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return the value, which is not None."""
    assert value is not None
    return value


def of_kind(kind: type[T], value: object) -> T:
    """Return the value, which is of this kind."""
    assert isinstance(value, kind), value
    return value


def only(kind: type[T], values: Iterable[object]) -> T:
    """Return the only one of these values, which is of this kind."""
    (value,) = values
    return of_kind(kind, value)
