"""Every test here needs a real Slurm, in network namespaces; it is skipped, with the reason, where
there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fault import network
from tests.slurm import cluster


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Slurm]:
    """One for all tests of a module; each has the work directory for itself."""
    if reason := cluster.why_impossible() or network.why_impossible():
        pytest.skip(reason)
    network.remove_abandoned()
    with cluster.Slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made
    assert network.left() == []
