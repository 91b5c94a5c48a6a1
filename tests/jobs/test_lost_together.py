"""Several nodes are lost at once, the leader among them. Their guards tell who leads next that they
are dead: nobody waits for their leases."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.harness.cluster import AgentProcess, Cluster, Option, wait_until
from tests.harness.leading_agents import cluster_of, leader_of, leads, led_job
from tests.harness.restarted_serve import RestartedServe


def took_over(agents: list[AgentProcess]) -> str:
    """What the one of these that has taken over said of it."""

    def find() -> list[str]:
        return [e.message for agent in agents for e in agent.events if e.name == "taken_over"]

    return wait_until(find, "one to take over")[-1]


def test_L4_two_agents_killed_at_once_the_leader_among_them_are_awaited_by_nobody(
    tmp_path: Path,
) -> None:
    with cluster_of(tmp_path, "2:4") as cluster:
        leader, (other, *others) = led_job(cluster, "abcd")
        before = cluster.workers(0)
        # The leader first: it is told of nothing. The other one does not get to lead the job.
        other.pause()
        leader.kill()
        other.kill()
        said = took_over(others)
        # Nobody was given up because a lease was over.
        assert f"the leading node died ({leader.name})" in said
        assert f"1 other node died ({other.name})" in said
        assert "did not come back" not in said
        after = cluster.wait_workers(2, round=1)
        assert {worker.node for worker in after} == {agent.name for agent in others}
        assert not any(worker.is_alive for worker in before)
        cluster.end_well(*others)
        assert others[0].verdict["restarts"] == 0


def test_L4_all_agents_killed_and_started_again_go_on_as_their_guards_have_told(
    tmp_path: Path,
) -> None:
    with cluster_of(tmp_path, "4:4") as cluster:
        first = [cluster.agent(name) for name in "abcd"]
        before = cluster.wait_workers(4, round=0)
        leader = leader_of(*first)
        leader.kill()
        for agent in first:
            if agent is not leader:
                agent.kill()
        second = [cluster.agent(name) for name in "abcd"]
        said = took_over(second)
        assert "did not come back" not in said
        assert "3 other nodes died" in said
        cluster.wait_workers(4, round=1)
        assert not any(worker.is_alive for worker in before)
        assert sum(map(leads, second)) == 1
        cluster.end_well(*second)
        assert second[0].verdict["restarts"] == 0


def test_L4_serve_and_an_agent_killed_at_once_the_next_serve_does_not_wait_for_the_agent(
    tmp_path: Path,
) -> None:
    options: dict[str, Option] = {"nnodes": "2:3", "lease": 60}
    with Cluster(tmp_path, **options, rdzv_conf="last_call_timeout=20") as cluster:
        cluster.make_token()
        serve = RestartedServe(cluster)
        a, b, c = (cluster.agent(name, hosts=False) for name in "abc")
        before = cluster.wait_workers(3, round=0)
        serve.server.kill()
        c.kill()
        serve.restart()
        serve.server.wait_event("taken_over", "1 node died (c)")
        cluster.wait_workers(2, round=1)
        assert not any(worker.is_alive for worker in before)
        cluster.end_well(a, b)


def test_L4_all_are_killed_with_their_guards_and_the_next_agents_prove_that_they_are_dead(
    tmp_path: Path,
) -> None:
    """As when a scheduler kills all processes of a job: nobody is left to tell."""
    with cluster_of(tmp_path, "3:3") as cluster:
        first = [cluster.agent(name) for name in "abc"]
        before = cluster.wait_workers(3, round=0)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in cluster.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        for agent in first:
            agent.kill()
        wait_until(lambda: not cluster.processes(), "all to be gone")
        second = [cluster.agent(name) for name in "abc"]
        said = took_over(second)
        assert "did not come back" not in said
        assert "died" in said
        cluster.wait_workers(3, round=1)
        assert not any(worker.is_alive for worker in before)
        cluster.end_well(*second)
        assert second[0].verdict["restarts"] == 0
