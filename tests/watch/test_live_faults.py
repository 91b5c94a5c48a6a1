"""A person who is called at night finds the culprit in the first lines of `rallypoint status`, run
as a process, of a job of real agents that is broken in one way after another.

Each fault has a node of its own, so that the one before is not taken for it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, wait_until
from tests.harness.live_job import LiveJob
from tests.harness.memory_cgroup import inside, memory_cgroup
from tests.harness.small_disk import small_disk

MEMORY_BYTES = 200 << 20
NODES = 64
NAN = "raise RuntimeError(f'loss is NaN at step {step}')"


def worker_exception(job: LiveJob, index: int) -> None:
    job.fail(index, NAN)
    text = job.wait_culprit(index, "RuntimeError: loss is NaN at step")
    assert f"rank {index} (node node-{index}, local rank 0) exited with code 1" in text


def disk_full(job: LiveJob, index: int) -> None:
    with small_disk(job.folder / "disk") as disk:
        job.fail(index, f"open({disk!r} + '/checkpoint.pt', 'wb').write(bytes(1 << 20))")
        job.wait_culprit(index, "No space left on device")


def crash_loop(job: LiveJob, index: int) -> None:
    loops = job.folder / "loops"
    loops.touch()
    job.cluster.order(
        f"if os.path.exists({str(loops)!r}): raise RuntimeError('the data is bad')",
        node=f"node-{index}",
    )
    text = job.wait_culprit(index, "the same failure")
    loops.unlink()
    assert "RuntimeError: the data is bad" in text


def node_silent(job: LiveJob, index: int) -> None:
    job.wait_steps()
    job.agent(index).pause()
    job.wait_culprit(index, "nothing heard for")
    job.agent(index).resume()


def one_rank_hangs(job: LiveJob, index: int) -> None:
    """The others wait for it a few steps later."""
    round_ = job.wait_steps()
    last = int(job.view["step"]) + 6
    job.cluster.order(f"last = {last} if me[1] == 'node-{index}' else {last + 3}", round=round_)
    text = job.wait_culprit(index, "no progress for")
    assert f"rank {index} (node node-{index}): no progress for" in text
    job.cluster.order("last = 10_000", round=round_)


def node_lost(job: LiveJob, index: int) -> None:
    job.wait_steps()
    job.agent(index).kill()
    job.wait_culprit(index, "was lost: its agent died")
    job.start(index)


def out_of_memory(job: LiveJob, index: int) -> None:
    """Its agent runs in a container, as it were, from which its worker is killed."""
    with memory_cgroup(MEMORY_BYTES) as group:
        if group is None:
            print("out_of_memory is left out: no memory cgroup can be made here")
            return
        job.replace(index, inside(group))
        job.fail(index, f"taken = b'x' * {2 * MEMORY_BYTES}")
        job.wait_culprit(index, "memory")
        job.replace(index)


def drain_that_does_not_end(job: LiveJob, index: int) -> None:
    """Another node leaves; this one's worker listens, and saves nothing."""
    round_ = job.wait_steps()
    listens = job.folder / "listens"
    asks = f"worker.drain_requested(); open({str(listens)!r}, 'w').close()"
    job.cluster.order(asks, round=round_, node=f"node-{index}")
    wait_until(listens.exists, "a worker that listens")
    job.agent(index - 1).signal(signal.SIGTERM)
    text = job.wait_culprit(index, f"a checkpoint of node node-{index}")
    assert f"node node-{index - 1} is leaving: it got SIGTERM" in text


FAULTS: tuple[Callable[[LiveJob, int], None], ...] = (
    worker_exception,
    disk_full,
    crash_loop,
    node_silent,
    one_rank_hangs,
    node_lost,
    out_of_memory,
    drain_that_does_not_end,
)


def missing_at_the_start(job: LiveJob, index: int) -> None:
    for other in range(job.nodes):
        if other != index:
            job.start(other)
    here = f"1 more node: {job.nodes - 1} of {job.nodes} nodes are here"
    job.wait_culprit(index, f"{here}; by the names of the others, missing")
    job.start(index)


@pytest.mark.clusters
def test_V1_the_culprit_of_each_fault_is_in_the_first_lines_of_status(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        job = LiveJob(cluster, NODES)
        for number, fault in enumerate((missing_at_the_start, *FAULTS)):
            fault(job, 2 * number + 1)
            print(f"--- {fault.__name__}", flush=True)


def test_V1_the_culprit_of_a_small_job_is_in_the_first_lines_of_status(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        job = LiveJob(cluster, 4)
        for number, fault in enumerate((missing_at_the_start, worker_exception, node_lost)):
            fault(job, number + 1)
