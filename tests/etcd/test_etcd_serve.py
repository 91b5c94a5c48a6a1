"""`rallypoint serve` on several machines, by records in an etcd: real coordinators, agents and
workers, a real etcd of three members."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.etcd.servers import Etcd, cluster_of
from tests.integration.cluster import AgentProcess, Cluster, free_port, wait_until

from rallypoint.rendezvous.etcd.parameters import read_etcd
from rallypoint.rendezvous.etcd.registers import PAGE, EtcdRegisters


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("three"), 3) as members:
        yield members


def serve(cluster: Cluster, etcd: Etcd, *options: str) -> AgentProcess:
    where = ("--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoints)
    return cluster.serve(*where, *options, port=free_port())


@pytest.mark.executed
def test_L1_of_three_candidates_that_lead_two_jobs_each_may_be_killed_and_no_worker_notices(
    tmp_path: Path, etcd: Etcd
) -> None:
    with cluster_of(tmp_path, etcd, "one", "1:2", lease=15) as cluster:
        jobs = {
            job: [cluster.agent(f"{job}-{name}", rdzv_id=job) for name in "ab"]
            for job in ("one", "two")
        }
        agents = [agent for nodes in jobs.values() for agent in nodes]
        wait_until(lambda: all(agent.workers(0) for agent in agents), "workers of both jobs")
        candidates = [serve(cluster, etcd, "--candidate") for _ in range(3)]
        for candidate in candidates:
            for job in jobs:
                candidate.wait_event("waits_to_lead", f"job {job}: ready to take over from")
        for nodes in jobs.values():
            led_by = next(a for a in nodes if any(e.name == "leads" for e in a.events))
            led_by.kill()
            nodes.remove(led_by)
        left = [agent for nodes in jobs.values() for agent in nodes]
        wait_until(lambda: all(agent.workers(1) for agent in left), "workers of the next round")
        running = [agent.workers(1)[0] for agent in left]

        for end in (signal.SIGKILL, signal.SIGTERM):
            leading = leader_of("one", candidates)
            leader_of("two", candidates)
            leading.signal(end)
            leading.wait_exit()
            candidates.remove(leading)
        for job in jobs:
            leader_of(job, candidates).wait_event("taken_over", f"job {job}: took over round 1")
        assert all(worker.is_alive for worker in running)
        cluster.end_well(*left)
        assert not any(agent.workers(2) for agent in left)
        assert {agent.verdict["restarts"] for agent in left} == {0}


def leader_of(job: str, candidates: list[AgentProcess]) -> AgentProcess:
    """The one that leads it: each of these does so until it ends."""

    def leading() -> list[AgentProcess]:
        return [each for each in candidates if f"job {job}: took over round" in each.said]

    (leader,) = wait_until(leading, f"a candidate that leads {job}")
    return leader


def test_L1_jobs_are_found_in_etcd_page_by_page_and_those_that_change_again(etcd: Etcd) -> None:
    config = read_etcd(etcd.endpoints, {"etcd_prefix": "/pages"}, str)
    registers, count = EtcdRegisters(config), PAGE + 7
    for number in range(count):
        assert registers.open(f"job-{number:04}", b"token").set_state(b"content") is not None
    etcd.put("/pages/jobs/somebody", b"else's")
    assert len(registers.changed()) == count
    assert registers.changed() == []
    second, other = registers.open("job-0002", b"token"), registers.open("job-0003", b"token")
    found = second.get_state()
    assert found is not None
    assert found[0] == b"content"
    assert second.set_state(b"next", found[1]) is not None
    assert (found := second.get_state()) is not None
    assert found[0] == b"next"
    assert registers.changed() == ["job-0002"]
    assert other.get_state() is not None
