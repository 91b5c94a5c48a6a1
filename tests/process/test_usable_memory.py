"""How much memory a node may use: that of its machine, or less in a container."""

from __future__ import annotations

import os
from pathlib import Path

from rallypoint.process.limits import MemoryWatch, usable_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_container_may_use_its_limit(tmp_path: Path) -> None:
    for limit, expected in (("4096", 4096), (str(2 * MACHINE), MACHINE), ("max", MACHINE)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert usable_memory(MemoryWatch([str(tmp_path)])) == expected


def test_without_a_container_it_is_that_of_the_machine(tmp_path: Path) -> None:
    assert usable_memory(MemoryWatch([str(tmp_path)])) == MACHINE
