"""A mounted file system whose server never answers, as a home on a file server that is gone.

It is one of FUSE whose requests nobody reads: what touches it waits until it is killed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_DETACH = 2


@contextmanager
def dead_disk(folder: Path) -> Iterator[Path]:
    """Mount one on this directory, which is made. Skips the test where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir()
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no file system can be made here: {error}")
    try:
        given = f"fd={fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
        if libc.mount(b"dead", bytes(folder), b"fuse", 0, given.encode()):
            pytest.skip(f"nothing can be mounted here: {os.strerror(ctypes.get_errno())}")
        try:
            yield folder
        finally:
            libc.umount2(bytes(folder), _DETACH)
    finally:
        os.close(fd)
