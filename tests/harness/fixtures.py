"""Fixtures that several files use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, wait_until
from tests.harness.running_job import Place, running_job


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        yield made


@pytest.fixture
def place() -> AbstractAsyncContextManager[Place]:
    return running_job()


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup whose frozen processes can't be killed: the nearest to a dead file server."""
    group = Path(f"/sys/fs/cgroup/freezer/rallypoint-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no cgroup v1 freezer that this user may use")
    yield group
    (group / "freezer.state").write_text("THAWED")
    for pid in (group / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the frozen processes to end")
    group.rmdir()
