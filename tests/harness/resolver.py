"""Torch asks the resolver for the name of everyone that it connects to, and waits for the answer.

Where nobody answers, or not to so many questions, each connection takes 5 s then.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

OPTIONS = "RES_OPTIONS"  # resolv.conf(5); read anew by each new thread


@contextmanager
def nobody_asked() -> Iterator[None]:
    """For this process and those that it starts: names come from /etc/hosts only."""
    before = os.environ.get(OPTIONS)
    _set("attempts:0")
    try:
        yield
    finally:
        _set(before)


def _set(options: str | None) -> None:
    if options is None:
        os.environ.pop(OPTIONS, None)
    else:
        os.environ[OPTIONS] = options
    # This thread may have read it before.
    read_anew = getattr(ctypes.CDLL(None), "__res_init", None)
    if read_anew is not None:
        read_anew()


@pytest.fixture(autouse=True, scope="module")
def no_names() -> Iterator[None]:
    """For a folder whose `conftest.py` imports it: torch's servers and clients ask nobody."""
    with nobody_asked():
        yield
