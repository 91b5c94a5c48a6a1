"""Where nodes meet, and who hosts (F6): real agents, and ports that are not what they seem."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from tests.harness.cluster import AgentProcess, Cluster, free_port, wait_until


def hosts(agent: AgentProcess) -> bool:
    """Only the host tells who joined."""
    return any(event.name == "node_joined" for event in agent.events)


def test_F6_of_two_that_start_at_once_exactly_one_hosts(cluster: Cluster) -> None:
    """Ten times; each pair has a port of its own."""
    cluster.options |= {"nnodes": 2, "no_python": True}
    pairs = []
    for number in range(10):
        cluster.options["rdzv_endpoint"] = f"127.0.0.1:{free_port()}"
        pairs.append([cluster.agent(f"{name}{number}", script=["true"]) for name in "ab"])
    for pair in pairs:
        assert [agent.wait_exit() for agent in pair] == [0, 0]
        assert sum(hosts(agent) for agent in pair) == 1
        for agent in pair:
            agent.wait_event("round_joined", "of 2", round=0)


def test_F6_is_host_decides_and_the_others_wait_for_it(cluster: Cluster) -> None:
    cluster.options |= {"nnodes": 2}
    cluster.make_token()
    b = cluster.agent("b", hosts=False)
    b.wait_event("meeting", f"waiting for the coordinator at 127.0.0.1:{cluster.port}")
    a = cluster.agent("a", hosts=True)
    cluster.wait_workers(2)
    assert hosts(a)
    assert not hosts(b)
    cluster.end_well(a, b)


def test_F6_with_a_host_that_is_back_within_the_lease_the_job_begins_anew(cluster: Cluster) -> None:
    """Its coordinator is a new one, which knows of no round and of no restart."""
    cluster.options |= {"max_restarts": 1, "lease": 30}
    a, b = cluster.agents("a", "b")
    first = cluster.wait_workers(2, round=0)
    cluster.order(f"if os.getpid() == {first[1].pid}: sys.exit(7)")
    second = cluster.wait_workers(2, round=1)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in second} == {"1"}
    a.kill()
    again = cluster.agent("a", hosts=True)
    told = b.wait_event("session_anew", f"another coordinator answers at 127.0.0.1:{cluster.port}")
    assert told.message.endswith(
        "and it has no round: stopping the workers and joining again; the restart budget is reset "
        "(0 of 1 used)"
    )
    wait_until(lambda: len(cluster.workers(0)) == 4, "two more workers in round 0")
    anew = [worker for worker in cluster.workers(0) if worker not in first]
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in anew} == {"0"}
    assert [worker.node for worker in anew] == ["a", "b"]
    assert not any(worker.is_alive for worker in first + second)
    cluster.order(f"if os.getpid() == {anew[1].pid}: sys.exit(7)")
    third = wait_until(lambda: [w for w in cluster.workers(1) if w not in second][1:], "a restart")
    assert third[0].env["TORCHELASTIC_RESTART_COUNT"] == "1"
    cluster.end_well(again, b)


def test_F6_when_nobody_hosts_the_usual_causes_are_named(cluster: Cluster) -> None:
    cluster.make_token()
    a = cluster.agent("a", rdzv_conf="is_host=0,host_timeout=0.5")
    line = a.wait_only_line(75)
    assert line.startswith(f"rallypoint: no node hosts the coordinator at 127.0.0.1:{cluster.port}")
    for cause in ("was not started", "cluster IP", "another machine", "firewall"):
        assert cause in line
    assert a.workers() == []


def test_F6_who_must_host_says_why_it_can_not(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", cluster.port)):
        a = cluster.agent("a", hosts=True)
        line = a.wait_only_line(2)
    assert f"must host the coordinator at 127.0.0.1:{cluster.port}" in line
    assert "is in use already" in line


def test_F6_nodes_meet_over_ipv6(cluster: Cluster) -> None:
    cluster.options |= {"nnodes": 2, "rdzv_endpoint": f"[::1]:{cluster.port}"}
    a, b = cluster.agent("a"), cluster.agent("b")
    workers = cluster.wait_workers(2)
    assert {worker.env["MASTER_ADDR"] for worker in workers} == {"::1"}
    cluster.end_well(a, b)


def test_F6_a_name_that_does_not_resolve_yet_is_waited_for(cluster: Cluster) -> None:
    """Until the join timeout; then it is named."""
    a = cluster.agent(
        "a", rdzv_endpoint=f"not-yet.invalid:{cluster.port}", rdzv_conf="join_timeout=1"
    )
    a.wait_event("meeting", "'not-yet.invalid' does not resolve yet")
    line = a.wait_only_line(75)
    assert "'not-yet.invalid' does not resolve yet" in line
    assert "gave up after 1 s; check the host name" in line


@pytest.mark.parametrize(("number", "outcome"), [(2, "cancelled"), (15, "preempted")])
def test_A5_who_is_told_to_go_while_it_waits_for_a_name(
    cluster: Cluster, number: int, outcome: str
) -> None:
    """Nothing is waited for any more; and what a person cancels is not worth a requeue."""
    a = cluster.agent("a", rdzv_endpoint=f"not-yet.invalid:{cluster.port}")
    a.wait_event("meeting", "does not resolve yet")
    a.signal(number)
    assert a.wait_exit() == 128 + number
    assert a.verdict["outcome"] == outcome
    names = [event.name for event in a.events]
    assert names[names.index("signal") :] == ["signal", "verdict"]


def test_F8_an_agent_that_hosts_knows_no_token_but_its_jobs(cluster: Cluster) -> None:
    [a] = cluster.running("a", hosts=None, round=None)
    stranger = cluster.agent("stranger", rdzv_id="another")
    line = stranger.wait_only_line(2)
    assert "wrong token for job 'another', or another job uses this endpoint" in line
    assert line.endswith("another job needs another port")
    a.wait_event("connection_closed", "of job 'another', but this coordinator hosts another job")
    assert stranger.workers() == []
    cluster.end_well(a)


def test_F6_a_coordinator_drops_strangers_and_serves_on(cluster: Cluster) -> None:
    [a] = cluster.running("a", hosts=None, round=None)
    with socket.create_connection(("127.0.0.1", cluster.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while stranger.recv(4096):
            pass
    b = cluster.agent("b")
    cluster.wait_workers(2, round=1)
    a.wait_event("connection_closed")
    cluster.end_well(a, b)


def test_the_node_that_hosts_the_coordinator_says_where_and_what_its_end_means(
    cluster: Cluster,
) -> None:
    """Once, and with the options that change it."""
    a, b = cluster.agents("a", "b", nproc_per_node=2, nnodes=2)
    cluster.wait_workers(4)
    # The first line of the job, before any remark on its options.
    look = f"look at this job: rallypoint status 127.0.0.1:{cluster.port} --job job"
    assert [e.message for agent in (a, b) for e in agent.events if e.name == "look"] == [look]
    assert look in {a.events[0].message, b.events[0].message}
    told = [event.message for agent in (a, b) for event in agent.events if event.name == "hosts"]
    assert told == [
        (
            f"this node hosts the coordinator at 127.0.0.1:{cluster.port}, and the job ends with "
            "this node. With --rdzv-backend file --rdzv-endpoint DIR, a directory that all nodes "
            "share, the job outlives it"
        )
    ]
    cluster.end_well(a, b)


def test_a_job_of_one_node_and_one_that_any_node_may_lead_end_with_no_host(
    cluster: Cluster,
) -> None:
    """So nothing is said about one."""
    where: dict[str, Any] = {"rdzv_backend": "file", "rdzv_endpoint": str(cluster.folder / "jobs")}
    alone = cluster.agent("alone", nnodes=1)
    a, b = (cluster.agent(name, nnodes=2, local_addr="127.0.0.1", **where) for name in "ab")
    cluster.wait_workers(3)
    look = f"look at this job: rallypoint status {cluster.folder / 'jobs'} --job job"
    assert [e.message for one in (alone, a, b) for e in one.events if e.name == "look"] == [look]
    cluster.end_well(alone, a, b)
    assert [event for one in (alone, a, b) for event in one.events if event.name == "hosts"] == []
