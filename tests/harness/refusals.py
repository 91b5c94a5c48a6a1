"""Errors that a person reads: one line each, with what was wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused_in_one_line(kind: type[Exception], *texts: str) -> Iterator[None]:
    """The block raises an error of this kind, whose one line has all these texts."""
    with pytest.raises(kind) as caught:
        yield
    line = str(caught.value)
    assert "\n" not in line
    for text in texts:
        assert text in line
