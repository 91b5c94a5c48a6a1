"""`rallypoint serve --data-dir` that is stopped past its hold, or whose directory fails."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct
from tests.fault.hosts import HostCluster
from tests.fault.mounts import Disk, View
from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.restarted_serve import STEPS, STOP, steps_of

from rallypoint.core.liveness import DEAF_SHARE
from rallypoint.core.settings import HOLD_S

LEASE_S = 26.0
"""An agent hangs up after half of it, which is longer than the hold."""
assert LEASE_S * DEAF_SHARE > HOLD_S


def test_L2_a_coordinator_that_was_stopped_past_its_hold_goes_on_if_nobody_took_over(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="2", lease=LEASE_S) as cluster:
        job = Served(cluster, tmp_path / "jobs")
        serve, (a, b), workers = job.serve, job.agents, job.workers
        serve.pause()
        cluster.order("sys.exit(0)", rank=1)  # which counts, though nobody hears of it now
        wait_until(lambda: not workers[1].is_alive, "a worker to succeed")
        for agent in (a, b):
            agent.wait_event("session_suspended")
        serve.resume()
        for agent in (a, b):
            agent.wait_event("session_resumed")
        assert workers[0].is_alive
        cluster.end_well(a, b)
        assert cluster.workers() == workers
        assert a.verdict["restarts"] == 0


def test_F2_a_coordinator_that_was_stopped_for_a_lease_goes_on_with_a_new_round(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="2", lease=4, max_restarts=0) as cluster:
        job = Served(cluster, tmp_path / "jobs")
        serve, (a, b), before = job.serve, job.agents, job.workers
        serve.pause()
        for agent in (a, b):
            agent.wait_event("fenced")
        wait_until(lambda: not any(w.is_alive for w in before), "the workers to stop")
        serve.resume()
        after = cluster.wait_workers(2, round=1)
        cluster.end_well(a, b)
        assert cluster.workers() == [*before, *after]
        assert a.verdict["restarts"] == 0


def test_L1_a_coordinator_that_was_replaced_while_it_was_stopped_changes_nothing(
    tmp_path: Path,
) -> None:
    """The second one takes over its address. A new node comes to the first one, which is awake
    again, and can't know that it no longer leads while its directory hangs: with that node the job
    would be full, and without the others, of which it has not heard for long, that node alone."""
    jobs, lease_s = tmp_path / "jobs", 20.0
    with (
        HostCluster(
            tmp_path, *"stabc", nnodes="1:3", lease=lease_s, rdzv_endpoint="coordinator:29400"
        ) as cluster,
        Disk(tmp_path / "disk") as disk,
        disk.seen_at(jobs, cluster.network.inside("s")) as of_first,
        disk.seen_at(jobs, cluster.network.inside("t")) as of_second,
    ):
        network, directory = cluster.network, ("--data-dir", str(jobs))
        network.call("coordinator", network.address("s"))
        first = cluster.serve("s", *directory, prefix=of_first.prefix)
        second = cluster.serve("t", *directory, prefix=of_second.prefix)
        cluster.order(STEPS, round=0)
        a, b = (cluster.agent(name, hosts=False, nnodes="1:3") for name in "ab")
        workers = cluster.wait_workers(2, round=0)
        network.call("coordinator", network.address("t"))
        first.pause()
        for name in "ab":  # as by the machine that has the address now
            network.reset("s", name)
        for agent in (a, b):
            agent.wait_event("session_resumed")
        second.wait_event("taken_over", "round 0 with 2 of 2 nodes")
        of_first.hang()
        first.resume()
        c = cluster.agent("c", hosts=False, rdzv_endpoint=f"{network.address('s')}:29400")
        c.wait_event("session_suspended", "no answer from the coordinator")
        of_first.answer()
        first.wait_event("deposed")
        first.wait_event("waits_to_lead", network.address("t"))
        cluster.order(STOP, round=0)
        wait_until(lambda: steps_of(a) and steps_of(b), "the workers to stop")
        cluster.end_well(a, b)
        assert cluster.workers() == workers
        assert a.verdict["restarts"] == 0
        assert "round_joined" not in [event.name for event in c.events]
        c.signal(signal.SIGTERM)
        assert c.wait_exit() == 128 + signal.SIGTERM


class Fault(Struct):
    """What befalls a directory, and how it ends."""

    begin: Callable[[Disk, View], None]
    end: Callable[[Disk, View], None]
    told: str
    """What a person reads."""


FAULTS = {
    "full": Fault(
        lambda disk, _: disk.fill(),
        lambda disk, _: disk.free(),
        "its file system is full: free some space",
    ),
    "read-only": Fault(
        lambda _, view: view.make_read_only(),
        lambda _, view: view.make_writable(),
        "its file system is read-only: mount it writable",
    ),
    "away": Fault(
        lambda _, view: view.take_away(),
        lambda _, view: view.bring_back(),
        "it was removed, or is not mounted",
    ),
    "hanging": Fault(
        lambda _, view: view.hang(),
        lambda _, view: view.answer(),
        "the register does not answer",
    ),
}


class Served:
    """A job of two nodes, whose coordinator keeps it on a disk, which may be a view that fails."""

    def __init__(self, cluster: Cluster, jobs: Path, view: View | None = None) -> None:
        cluster.make_token()
        prefix = view.prefix if view else ()
        self.serve = cluster.serve("--data-dir", str(jobs), prefix=prefix)
        self.agents: list[AgentProcess] = [cluster.agent(name, hosts=False) for name in "ab"]
        self.workers = cluster.wait_workers(2, round=0)


@pytest.mark.parametrize("kind", FAULTS)
def test_L3_what_a_job_decides_waits_for_its_directory(tmp_path: Path, kind: str) -> None:
    """A worker fails meanwhile. Nobody acts on that before it is recorded, and nothing is lost."""
    jobs, fault = tmp_path / "jobs", FAULTS[kind]
    with (
        Disk(tmp_path / "disk") as disk,
        disk.seen_at(jobs) as view,
        Cluster(tmp_path, nnodes="2", lease=LEASE_S, max_restarts=1) as cluster,
    ):
        job = Served(cluster, jobs, view)
        fault.begin(disk, view)
        cluster.order("sys.exit(3)", round=0, rank=1)
        told = job.serve.wait_event("not_recorded")
        assert fault.told in told.message
        assert cluster.workers() == job.workers
        fault.end(disk, view)
        job.serve.wait_event("recorded_again")
        after = cluster.wait_workers(2, round=1)
        cluster.end_well(*job.agents)
        assert cluster.workers() == [*job.workers, *after]
        for agent in job.agents:
            assert agent.verdict["restarts"] == 1


def test_L2_a_job_goes_on_when_its_directory_is_back_after_all_workers_were_stopped(
    tmp_path: Path,
) -> None:
    jobs = tmp_path / "jobs"
    with (
        Disk(tmp_path / "disk") as disk,
        disk.seen_at(jobs) as view,
        Cluster(tmp_path, nnodes="2", lease=4, max_restarts=1) as cluster,
    ):
        job = Served(cluster, jobs, view)
        cluster.order("sys.exit(3)", round=0, rank=1)
        second = cluster.wait_workers(2, round=1)
        view.take_away()
        for agent in job.agents:
            agent.wait_event("fenced")
        wait_until(lambda: not any(w.is_alive for w in second), "the workers to stop")
        view.bring_back()
        third = cluster.wait_workers(2, round=2)
        cluster.end_well(*job.agents)
        assert cluster.workers() == [*job.workers, *second, *third]
        for agent in job.agents:
            assert agent.verdict["restarts"] == 1
