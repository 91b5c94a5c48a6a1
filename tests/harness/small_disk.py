"""File systems in memory, of which one is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A directory, which is made, of a file system with these options; skips without root."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """A directory of a file system that is soon full; without root, what is always full."""
    if os.geteuid() != 0:
        folder.mkdir()
        (folder / "checkpoint.pt").symlink_to("/dev/full")
        yield str(folder)
        return
    with mounted(folder, "size=64k"):
        yield str(folder)
