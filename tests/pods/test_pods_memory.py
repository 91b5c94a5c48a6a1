"""What the peers of a pod say that the kernel has killed for memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster
from tests.harness.memory_cgroup import inside, memory_cgroup
from tests.pods.pods import NAME, Pods

LIMIT = 192 << 20
FILL = """
open('/proc/self/oom_score_adj', 'w').write('-900')
import mmap
held = []
while True:
    held.append(mmap.mmap(-1, 1 << 20))
    held[-1].write(bytes(1 << 20))
    time.sleep(0.02 if len(held) < 120 else 0.2)
"""
"""At last slowly, as a leak does: a heartbeat is to tell of it before the kernel, which is to find
another process to kill."""
SAYS = "its container was probably killed for memory"


@pytest.fixture
def container() -> Iterator[Path]:
    """Of which the kernel kills all processes together, where it has cgroup v2."""
    with memory_cgroup(LIMIT) as group:
        if group is None:
            pytest.skip("no memory cgroup can be made here")
        if (together := group / "memory.oom.group").exists():
            together.write_text("1")
        yield group


def is_to_be_killed(pid: int) -> None:
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def test_A3_a_container_that_is_killed_for_memory_is_named_so_by_its_peers(
    tmp_path: Path, container: Path
) -> None:
    """By cgroup v1 its first process is killed, and with it, by the kernel, all others."""
    with Pods(tmp_path, 2) as pods:
        stays = pods.start(f"{NAME}-0")
        stays.wait_event("leads")
        killed = pods.start(f"{NAME}-1", prefix=inside(container), sees_memory=True)
        pods.wait_workers(2, round=0)
        is_to_be_killed(pods.init_of(killed))
        pods.order(FILL, round=0, node=f"{NAME}-1-0")
        assert killed.wait_exit() != 0
        lost = stays.wait_event("round_ended", f"node {NAME}-1-0 was lost")
        assert lost.message.endswith(SAYS)
        again = pods.start(f"{NAME}-1")
        pods.wait_workers(2, round=1)
        pods.end_well(stays, again)


def test_A3_an_agent_that_alone_is_killed_for_memory_is_named_so_by_its_guard(
    tmp_path: Path,
) -> None:
    """As with a first process of another program, and `singleProcessOOMKill`."""
    with memory_cgroup(LIMIT) as group, Cluster(tmp_path, nnodes="1:2") as cluster:
        if group is None:
            pytest.skip("no memory cgroup can be made here")
        stays = cluster.agent("a", hosts=True)
        killed = cluster.agent("b", hosts=False, prefix=inside(group))
        cluster.wait_workers(2)
        is_to_be_killed(killed.pid)
        cluster.order(FILL.replace("time.sleep", "float"), round=0, node="b")
        assert killed.wait_exit() == -9
        stays.wait_event("round_ended", f"its workers with it: {SAYS}")
        cluster.end_well(stays)


def test_A3_a_container_that_ends_with_memory_left_was_not_killed_for_it(
    tmp_path: Path, container: Path
) -> None:
    with Pods(tmp_path, 2) as pods:
        stays = pods.start(f"{NAME}-0")
        stays.wait_event("leads")
        gone = pods.start(f"{NAME}-1", prefix=inside(container), sees_memory=True)
        pods.wait_workers(2, round=0)
        gone.kill()
        lost = stays.wait_event("round_ended", f"node {NAME}-1-0 was lost")
        assert "memory" not in lost.message
        pods.end_well(stays, pods.start(f"{NAME}-1"))
