"""Jobs of 64 nodes, each broken in another way, and what a person sees of each.

`python -m tests.harness.broken_jobs` prints all; with `--rewrite` it writes them to
`tests/watch/status/`, to be read in a diff.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from signal import SIGKILL, SIGTERM

from tests.harness.watched_cluster import WatchedCluster

from rallypoint.core.liveness import DIED_FOR_MEMORY
from rallypoint.core.model import SharedSettings
from rallypoint.core.watch.node_progress import NodeProgress
from rallypoint.core.worker_exits import WorkerExit

PAGES = Path(__file__).parents[1] / "watch" / "status"
NODES = 64
CULPRIT = "node-21"
NAN = WorkerExit(
    1,
    None,
    local_rank=3,
    pid=4711,
    message="RuntimeError: loss is NaN at step 20",
    detail='Traceback (most recent call last):\n  File "train.py", line 5, in <module>\n'
    '    raise RuntimeError(f"loss is NaN at step {step}")\nRuntimeError: loss is NaN at step 20',
)
FULL = WorkerExit(
    1,
    None,
    local_rank=0,
    pid=4712,
    message="OSError: [Errno 28] No space left on device: '/scratch/checkpoint.pt'",
    detail='Traceback (most recent call last):\n  File "train.py", line 90, in save\n'
    "OSError: [Errno 28] No space left on device: '/scratch/checkpoint.pt'",
)


def running(nodes_min: int = NODES) -> WatchedCluster:
    """A healthy job at step 20."""
    job = WatchedCluster(SharedSettings("train-7", nodes_min, NODES, max_restarts=9))
    job.nodes(NODES)
    job.run_workers()
    for step in range(0, 21, 5):
        job.step(step, 5)
    return job


def worker_exception() -> WatchedCluster:
    job = running()
    job.fail_with(CULPRIT, NAN)
    job.run_workers()
    job.step(5, 10)
    return job


def out_of_memory() -> WatchedCluster:
    job = running()
    job.lose(CULPRIT, DIED_FOR_MEMORY)
    return job


def node_lost() -> WatchedCluster:
    job = running()
    job.lose(CULPRIT, "its connection broke and did not come back")
    return job


def node_silent() -> WatchedCluster:
    job = running()
    job.fall_silent(CULPRIT)
    job.step(25, 9)
    return job


def one_rank_hangs() -> WatchedCluster:
    job = running()
    for _ in range(3):
        job.step(20, 10, behind=(CULPRIT, 17))
    return job


def missing_at_the_start() -> WatchedCluster:
    job = WatchedCluster(SharedSettings("train-7", NODES, NODES))
    job.nodes(NODES, without=(21,))
    job.wait(40)
    return job


def broken_route() -> WatchedCluster:
    job = WatchedCluster(SharedSettings("train-7", NODES, NODES))
    job.nodes(NODES, without=(21,))
    culprit = job.start(CULPRIT, 8)
    culprit.unreachable = {"node-0"}
    job.settle()
    return job


def disk_full() -> WatchedCluster:
    job = running()
    job.fail_with(CULPRIT, FULL)
    job.run_workers()
    job.step(5, 10)
    return job


def crash_loop() -> WatchedCluster:
    job = running()
    for _ in range(4):
        job.fail_with(CULPRIT, NAN)
        job.wait(8 if job.job.backoff_s else 0)
        job.run_workers()
        job.step(15, 5)
    job.fail_with(CULPRIT, NAN)
    return job


def drain_that_does_not_end() -> WatchedCluster:
    job = running()
    job.never_saves.add(CULPRIT)
    job.signal(job.agent("node-63"), SIGTERM)
    job.settle()
    job.step(21, 12)
    return job


def worker_killed() -> WatchedCluster:
    job = running()
    job.fail_with(CULPRIT, WorkerExit(None, SIGKILL, local_rank=3, pid=4711))
    job.run_workers()
    job.step(5, 10)
    return job


def slow_stop() -> WatchedCluster:
    job = running()
    job.never_stops.add(CULPRIT)
    job.fail_with("node-30", NAN)
    job.wait(5)
    return job


def log_disk_full() -> WatchedCluster:
    job = running()
    stamp = job.agent(CULPRIT).running
    assert stamp is not None
    full = "can't write the log files: /logs/train-7/stdout.log: No space left on device"
    progress = NodeProgress(stamp, 30.0, furthest=21, step=21, quiet_s=0.0, cant_log=full)
    job.history.progressed(job.job, CULPRIT, progress, job.timers.now_s)
    return job


BROKEN: dict[str, tuple[Callable[[], WatchedCluster], str]] = {
    "worker exception": (worker_exception, "loss is NaN"),
    "out of memory": (out_of_memory, "memory"),
    "node lost": (node_lost, "connection broke"),
    "node silent": (node_silent, "nothing heard"),
    "one rank hangs": (one_rank_hangs, "no progress"),
    "missing at the start": (missing_at_the_start, "missing"),
    "broken route": (broken_route, "round store"),
    "disk full": (disk_full, "No space left"),
    "crash loop": (crash_loop, "the same failure"),
    "worker killed": (worker_killed, "SIGKILL"),
    "slow stop": (slow_stop, "to stop the workers of the last round"),
    "log disk full": (log_disk_full, "No space left"),
    "drain that does not end": (drain_that_does_not_end, "checkpoint"),
}
"""What is broken, and a word of the reason that must be seen."""


@cache
def broken(name: str) -> WatchedCluster:
    """One job of each, for tests that only look at it."""
    return BROKEN[name][0]()


@cache
def healthy() -> WatchedCluster:
    """The same of one where nothing is broken."""
    return running()


def main(arguments: list[str]) -> int:
    """Print, or write, what a person sees of each."""
    for name, (make, _) in BROKEN.items():
        text = "\n".join(make().status()) + "\n"
        if "--rewrite" in arguments:
            PAGES.mkdir(exist_ok=True)
            (PAGES / f"{name.replace(' ', '-')}.txt").write_text(text)
        else:
            print(f"--- {name}\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


def following(lines: list[str]) -> list[str]:
    """What stands beside `next`, each on one line."""
    found: list[str] = []
    label = ""
    for line in lines[1:]:
        label = line[:14].strip() or label
        if line.startswith("  next "):
            found.append(line[14:])
        elif label == "next":
            found[-1] += " " + line[14:].strip()
    return found
