"""`rallypoint serve` on several machines, by records in an etcd: real coordinators, agents and
workers, a real etcd of three members."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.etcd.servers import Etcd, cluster_of
from tests.harness.cluster import AgentProcess, Cluster, Option, free_port, wait_until
from tests.harness.engines import etcd_engine
from tests.harness.narrowed import known

from rallypoint.register.etcd.parameters import read_etcd
from rallypoint.register.etcd.store import PAGE


def serve(cluster: Cluster, three: Etcd, *options: str) -> AgentProcess:
    where = ("--rdzv-backend", "etcd", "--rdzv-endpoint", three.endpoints)
    return cluster.serve(*where, *options, port=free_port())


def test_L1_of_three_candidates_that_lead_two_jobs_each_may_be_killed_and_no_worker_notices(
    tmp_path: Path, three: Etcd
) -> None:
    waits: dict[str, Option] = {"lease": 15, "rdzv_conf": "last_call_timeout=600"}
    with cluster_of(tmp_path, three, "one", "1:2", **waits) as cluster:
        jobs = {
            job: [cluster.agent(f"{job}-{name}", rdzv_id=job) for name in "ab"]
            for job in ("one", "two")
        }
        agents = [agent for nodes in jobs.values() for agent in nodes]
        wait_until(lambda: all(agent.workers(0) for agent in agents), "workers of both jobs")
        candidates = [serve(cluster, three, "--candidate") for _ in range(3)]
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
            leaders = {job: leader_of(job, [*nodes, *candidates]) for job, nodes in jobs.items()}
            victim = next(iter({*leaders.values()} & {*candidates}), candidates[0])
            victim.signal(end)
            victim.wait_exit()
            for job, nodes in jobs.items():
                leader_of(job, [*nodes, *candidates])
        assert all(worker.is_alive for worker in running)
        assert any(event.name == "taken_over" for each in candidates for event in each.events)
        cluster.end_well(*left)
        assert not any(agent.workers(2) for agent in left)
        assert {agent.verdict["restarts"] for agent in left} == {0}


def leader_of(job: str, processes: list[AgentProcess]) -> AgentProcess:
    """The one that runs, and has taken the job over last. A node may be faster than a candidate."""

    def leading() -> AgentProcess | None:
        taken_over = [
            (event.fields["time"], number)
            for number, process in enumerate(processes)
            for event in process.events
            if event.name == "taken_over" and event.fields.get("job", job) == job
        ]
        last = processes[max(taken_over)[1]] if taken_over else None
        return last if last is not None and last.process.poll() is None else None

    return known(wait_until(leading, f"a leader of {job}"))


def test_L1_jobs_are_found_in_etcd_page_by_page_and_those_that_change_again(three: Etcd) -> None:
    config = read_etcd(three.endpoints, {"etcd_prefix": "/pages"}, str)
    registers, count = etcd_engine(config), PAGE + 7
    for number in range(count):
        assert registers.open(f"job-{number:04}", b"token").set_state(b"content") is not None
    three.put("/pages/jobs/somebody", b"else's")
    assert len(registers.changed()) == count
    assert registers.changed() == []
    second, other = registers.open("job-0002", b"token"), registers.open("job-0003", b"token")
    found = known(second.get_state())
    assert found[0] == b"content"
    assert second.set_state(b"next", found[1]) is not None
    assert known(second.get_state())[0] == b"next"
    assert registers.changed() == ["job-0002"]
    assert other.get_state() is not None
