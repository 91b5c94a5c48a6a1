"""A job by a shared directory: any of its nodes may lead it, and any may be lost."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from tests.harness.cluster import wait_until
from tests.harness.leading_agents import cluster_of, leader_of, leads, led_job, lose_leader

from rallypoint.core.outcomes import SIGNALLED


def test_L6_a_leading_node_that_is_killed_is_lost_like_any_other(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "2:3") as cluster:
        agents = [cluster.agent(name) for name in "abc"]
        lose_leader(cluster, agents, cluster.wait_workers(3, round=0))
        for agent in agents:
            assert "while it led the job" in agent.wait_event("round_ended").message
        assert {worker.node for worker in cluster.workers(1)} == {agent.name for agent in agents}
        cluster.end_well(*agents)
        assert agents[0].verdict["restarts"] == 0


def test_L6_a_leading_node_that_is_told_to_go_hands_over(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "2:3") as cluster:
        leader, others = led_job(cluster, "abc")
        leader.signal(signal.SIGTERM)
        assert leader.wait_exit() == SIGNALLED + signal.SIGTERM
        # The next round may have been formed by the one that goes, or by the one that takes over.
        wait_until(lambda: all(agent.workers(1) or agent.workers(2) for agent in others), "workers")
        for agent in others:
            agent.wait_event("round_ended", f"node {leader.name} is leaving: it got SIGTERM")
        led_by = leader_of(*others)
        led_by.wait_event("taken_over", "took over round ")
        cluster.end_well(*others)


def test_R4_a_duplicate_takes_no_place_while_the_leader_changes(tmp_path: Path) -> None:
    """Neither of a node that comes to the next leader, nor before it has come."""
    with cluster_of(tmp_path, "2:3") as cluster:
        leader, (held, free) = led_job(cluster, "abc")
        used = f"rallypoint: node id '{held.name}' is used by another running agent at 127.0.0.1:"
        before = cluster.agent(held.name)
        assert before.wait_exit() == 2
        assert before.lines[0].startswith(used)
        leader.kill()
        meanwhile = cluster.agent(held.name)
        assert meanwhile.wait_exit() == 2
        assert meanwhile.lines[0].startswith(used)
        for agent in (held, free):
            agent.wait_event("round_ended", f"node {leader.name} was lost")
        assert {worker.node for worker in cluster.wait_workers(2, round=1)} == {
            held.name,
            free.name,
        }
        cluster.end_well(held, free)


def test_L1_of_two_nodes_either_may_die(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "1:2") as cluster:
        leader, (other,) = led_job(cluster, "ab")
        leader.kill()
        cluster.wait_workers(1, round=1)
        third = cluster.agent("c")
        cluster.wait_workers(2, round=2)
        other.kill()
        cluster.wait_workers(1, round=3)
        assert leads(third)
        cluster.end_well(third)


def test_L7_a_job_whose_end_all_have_heard_is_begun_anew_under_its_name(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "2:2") as cluster:
        cluster.order("sys.exit(3)", round=0, node="a")
        first = [cluster.agent(name) for name in "ab"]
        assert [agent.wait_exit() for agent in first] == [1, 1]
        cluster.order("sys.exit(0)", node="c")
        cluster.order("sys.exit(0)", node="d")
        second = [cluster.agent(name) for name in "cd"]
        assert [agent.wait_exit() for agent in second] == [0, 0]
        lives = {int(worker.env["RALLYPOINT_INCARNATION"]) for worker in cluster.workers()}
        assert len(lives) <= 2
        third = [cluster.agent(name) for name in "cd"]
        assert [agent.wait_exit() for agent in third] == [0, 0]


def test_L7_a_node_that_led_and_was_stopped_until_the_job_had_ended_hears_how_it_ended(
    tmp_path: Path,
) -> None:
    """Nothing is said of an endpoint, which this job has not, nor that restarts count anew, nor of
    a register that would not answer."""
    with cluster_of(tmp_path, "1:2") as cluster:
        cluster.options |= {"lease": 3, "rdzv_conf": "last_call_timeout=20,hold=2"}
        agents = [cluster.agent(name, max_restarts=3) for name in "ab"]
        cluster.wait_workers(2, round=0)
        leader = leader_of(*agents)
        (other,) = (agent for agent in agents if agent is not leader)
        leader.pause()
        cluster.wait_workers(1, round=1)
        cluster.end_well(other)
        leader.resume()
        assert leader.wait_exit() == 0
        assert "taken over the job without this node" in leader.said
        assert "localhost" not in leader.said
        assert "budget" not in leader.said
        assert "nothing could be recorded" not in leader.said
        assert "the leader of the job answers" not in other.said


def test_L1_a_node_that_would_take_over_and_has_no_free_port_says_so_while_all_is_well(
    tmp_path: Path,
) -> None:
    with cluster_of(tmp_path, "2") as cluster, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        a = cluster.agent("a")
        leader_of(a)
        b = cluster.agent("b", port_range=f"{port}-{port}")
        cluster.wait_workers(2, round=0)
        said = b.wait_event("notice", "this node can't lead the job: no port of").message
        assert f"127.0.0.1:{port} is in use already" in said
        assert "give a larger --port-range" in said
        assert "Another one has to" in said
        cluster.end_well(a, b)
        assert "can't lead" not in a.said
        assert b.said.count("this node can't lead the job") == 1
