"""`rallypoint serve --candidate`: it leads jobs of a shared directory before their nodes do."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.harness.cluster import AgentProcess, free_port, wait_until
from tests.harness.commands import drain
from tests.harness.leading_agents import candidate_of, cluster_of, leader_of, leads, led_job


@pytest.mark.executed
def test_L1_a_candidate_leads_when_a_leading_node_is_killed_and_a_node_after_it(
    tmp_path: Path,
) -> None:
    with cluster_of(tmp_path, "2:3") as cluster:
        leader, others = led_job(cluster, "abc")
        candidate = candidate_of(cluster)
        leader.kill()
        candidate.wait_event("taken_over", "job job: took over round 0 with 2 of 3 nodes")
        after = cluster.wait_workers(2, round=1)
        assert not any(leads(agent) for agent in others)
        candidate.kill()
        leader_of(*others).wait_event("taken_over", "took over round 1 with 2 of 2 nodes")
        assert all(worker.is_alive for worker in after)
        cluster.end_well(*others)
        assert max(worker.round for worker in cluster.workers()) == 1
        assert others[0].verdict["restarts"] == 0


def test_L1_candidates_take_turns_and_no_worker_notices(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "2:3") as cluster:
        leader, others = led_job(cluster, "abc")
        candidates = [candidate_of(cluster) for _ in range(2)]
        leader.signal(signal.SIGTERM)
        leader.wait_exit()
        after = cluster.wait_workers(2, round=1)

        def leading() -> list[AgentProcess]:
            return [each for each in candidates if "took over" in each.said]

        (first,) = wait_until(leading, "a candidate that leads")
        (second,) = (each for each in candidates if each is not first)
        port = first.argv[first.argv.index("--port") + 1]
        second.wait_event("waits_to_lead", f"ready to take over from 127.0.0.1:{port}")
        first.signal(signal.SIGTERM)
        second.wait_event("taken_over", "job job: took over round 1 with 2 of 2 nodes")
        assert not any(leads(agent) for agent in others)
        assert all(worker.is_alive for worker in after)
        cluster.end_well(*others)
        assert max(worker.round for worker in cluster.workers()) == 1


def test_L7_a_job_that_a_candidate_led_to_its_end_is_begun_anew_under_its_name(
    tmp_path: Path,
) -> None:
    with cluster_of(tmp_path, "2:3") as cluster:
        leader, others = led_job(cluster, "abc")
        candidate_of(cluster)
        leader.kill()
        cluster.wait_workers(2, round=1)
        for agent in others:
            cluster.order("sys.exit(0)", node=agent.name)
        assert [agent.wait_exit() for agent in others] == [0, 0]
        again = [cluster.agent(name) for name in "def"]
        wait_until(lambda: all(agent.workers(round=0) for agent in again), "workers of all")
        leader_of(*again)
        cluster.end_well(*again)


def test_A7_a_candidate_that_is_asked_for_a_node_says_who_leads_the_job(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "1:2") as cluster:
        port = free_port()
        a = cluster.agent("a")
        jobs = str(cluster.options["rdzv_endpoint"])
        cluster.serve("--data-dir", jobs, "--candidate", port=port)
        cluster.wait_workers(1)
        (led,) = (event for event in a.events if event.name == "leads")
        cluster.options |= {"rdzv_backend": "tcp", "rdzv_endpoint": f"127.0.0.1:{port}"}
        told, none = drain(cluster, "a"), drain(cluster, "a", job="other")
        assert told.returncode == none.returncode == 2
        assert told.stderr == (
            "rallypoint drain: this coordinator only stands ready to lead job 'job', which is "
            f"led at {led.message.rpartition(' ')[2]}: ask there\n"
        )
        assert "this coordinator knows no job 'other': check --rdzv-id" in none.stderr
        cluster.end_well(a)
