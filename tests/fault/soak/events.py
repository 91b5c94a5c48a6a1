"""What happens to a job of a soak and concerns good nodes only: losses, drains, requests of a
person, and faults of the register.

Each event is a function of a job that has settled; a skipped one raises Skipped. It returns when
the job may settle again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.fault import leader_runs
from tests.fault.leader_runs import BY_BACKEND
from tests.fault.soak import ledger
from tests.fault.soak.job import LEASE_S, LEAST, MOST, Node, SoakJob
from tests.fault.soak.worlds import WorkerRecord
from tests.harness.cluster import Worker, wait_until
from tests.harness.proc import is_alive

Event = Callable[[SoakJob], None]


class Skipped(Exception):
    """Why an event does not take place."""


class Undisturbed:
    """For `with`: no worker of the job is started again meanwhile."""

    def __init__(self, job: SoakJob) -> None:
        self._job = job

    def __enter__(self) -> None:
        self._before = [worker.pid for worker in self._job.workers()]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._job.settle()
            now = [worker.pid for worker in self._job.workers()]
            if now != self._before:
                told = "workers were started again, and there was no need"
                self._job.note_broken(ledger.DISTURBED, told)


# Losses


def kill_agent(job: SoakJob) -> None:
    """Its guard cleans up."""
    _lose(job, job.some(job.leader()))


def kill_agent_and_guard(job: SoakJob) -> None:
    """A whole container is killed."""
    node = job.some(job.leader())
    workers = [worker.pid for worker in job.newest() if worker.node == node.id]
    job.kill(node, with_guards=True)
    for pid in [*workers, *(pid for pid in job.cluster.network.processes(node.host) if pid)]:
        if pid not in job.cluster.views[node.host].keepers and is_alive(pid):
            _kill(pid)
    job.settle()
    job.add()


def kill_leader(job: SoakJob) -> None:
    """Another node takes over."""
    _lose(job, job.leader())


def kill_two(job: SoakJob) -> None:
    """Two agents at once, of which one may lead."""
    while len(job.good) < LEAST + 2:
        job.add()
    job.settle()
    job.mark()
    first = job.some()
    _lose(job, first, job.some(first))


def _lose(job: SoakJob, *nodes: Node) -> None:
    job.kill(*nodes)
    job.settle()
    for _ in nodes:
        job.add()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def stop_for_less_than_the_lease(job: SoakJob) -> None:
    """Nobody notices."""
    node = job.some()
    with Undisturbed(job):
        node.agent.pause()
        time.sleep(LEASE_S / 4)
        node.agent.resume()


def stop_for_longer_than_the_lease(job: SoakJob) -> None:
    """The other nodes go on; when it wakes it takes part again."""
    node = job.some()
    _without(job, node, node.agent.pause, node.agent.resume)


def cut_for_longer_than_the_lease(job: SoakJob) -> None:
    """It reaches nobody, and its workers run on until the lease ends. Then the same."""
    node, network = job.some(), job.cluster.network
    _without(job, node, lambda: network.cut(node.host), lambda: network.heal(node.host))


def _without(
    job: SoakJob, node: Node, take: Callable[[], None], give_back: Callable[[], None]
) -> None:
    """Until the other nodes have a world of their own."""
    everybody = job.good
    job.good = {name: other for name, other in everybody.items() if other is not node}
    take()
    try:
        job.settle()
    finally:
        give_back()
        job.good = everybody
    node.times_lost += 1


# Requests


def drain_by_signal(job: SoakJob) -> None:
    node = job.some()
    node.agent.signal(signal.SIGTERM)
    job.part(node, 128 + signal.SIGTERM)
    job.settle()
    job.add()


def drain_by_command(job: SoakJob) -> None:
    node = job.some()
    job.command("drain", node.id)
    job.part(node, 128 + signal.SIGTERM)
    job.settle()
    job.add()


def restart_by_command(job: SoakJob) -> None:
    before = set(job.worlds())
    job.command("restart")
    job.settle()
    if (new := len(job.worlds().keys() - before)) != 1:
        job.note_broken(ledger.OUTCOME, f"`rallypoint restart` began {new} worlds, not 1")


def checkpoint_by_command(job: SoakJob) -> None:
    with Undisturbed(job):
        job.command("checkpoint")


def late_node(job: SoakJob) -> None:
    """A node comes, or goes if there are enough."""
    if len(job.good) < MOST:
        job.add()
    else:
        node = job.some()
        node.agent.signal(signal.SIGTERM)
        job.part(node, 128 + signal.SIGTERM)


# Workers


def kill_worker(job: SoakJob) -> None:
    """One restart is charged."""
    _kill(_to_fail(job).pid)
    _charge(job)


def fail_worker(job: SoakJob) -> None:
    """It exits with a code."""
    worker = _to_fail(job)
    (job.folder / f"fail-{worker.world.round}-{worker.rank}").touch()
    _charge(job)


def _to_fail(job: SoakJob) -> WorkerRecord:
    """A worker on a machine on which none has failed in this job."""
    workers = [worker for worker in job.newest() if not job.good[worker.node].has_failed]
    worker = job.chance.choice(workers)
    job.good[worker.node].has_failed = True
    return worker


def _charge(job: SoakJob) -> None:
    job.charged += 1
    before = job.newest()[0].world

    def has_begun() -> bool:
        job.check_alive()
        return job.newest()[0].world > before

    wait_until(has_begun, "the next world")


# The register, and who reaches it


class Faults(leader_runs.Job):
    """Faults of whole jobs, on a job of a soak."""

    def __init__(self, job: SoakJob) -> None:
        super().__init__(job.cluster, job.chance, is_ddp=False)
        self._job, self.leader = job, job.leader().agent

    def sleep(self, least_s: float, most_s: float) -> None:
        """Not so long that a soak has few events."""
        super().sleep(min(least_s, 2), min(most_s, 6))

    def alive(self) -> list[Worker]:
        return [Worker(worker.pid, {}) for worker in self._job.newest()]


def _unnoticed(name: str) -> Event:
    def event(job: SoakJob) -> None:
        with Undisturbed(job):
            BY_BACKEND[job.backend][name](Faults(job))

    return event


def _noticed(name: str) -> Event:
    """Nodes may be lost, and take part again; the time to settle is that after the fault."""

    def event(job: SoakJob) -> None:
        faults, before = Faults(job), len(job.workers())
        BY_BACKEND[job.backend][name](faults)
        job.mark()
        job.settle()
        lost = job.good.values() if name.endswith("_for_long") else [job.node_of(faults.leader)]
        for node in lost:
            node.times_lost += len(job.workers()) > before

    return event


ANY: dict[str, Event] = {
    event.__name__: event
    for event in (
        kill_agent,
        kill_agent_and_guard,
        kill_leader,
        kill_two,
        stop_for_less_than_the_lease,
        stop_for_longer_than_the_lease,
        cut_for_longer_than_the_lease,
        drain_by_signal,
        drain_by_command,
        restart_by_command,
        checkpoint_by_command,
        late_node,
    )
}
"""Those of every job."""
WORKERS: dict[str, Event] = {event.__name__: event for event in (kill_worker, fail_worker)}
"""Those that a job without restarts does not outlive."""
_LEADERS = ("stop", "cut", "cut_and_hide")
_REGISTERS = {
    "file": ("hide", "hang", "stale", "lock", "hide_all", "fill", "hide_all_for_long"),
    "etcd": (
        "hide",
        "kill_member",
        "kill_etcd_leader",
        "pause_etcd_leader",
        "no_quorum",
        "no_quorum_for_long",
    ),
    "kubernetes": (
        "hide",
        "away",
        "slow",
        "lose_answers",
        "refuse",
        "rotate",
        "forbid",
        "away_for_long",
    ),
}


def of_backend(backend: str) -> dict[str, Event]:
    """Faults of its register, and of the leader that looks at it."""
    found = {}
    for name in (*_LEADERS, *_REGISTERS[backend]):
        is_noticed = name in _LEADERS or name.endswith("_for_long")
        title = f"leader_{name}" if name in _LEADERS else f"register_{name}"
        found[title] = _noticed(name) if is_noticed else _unnoticed(name)
    return found
