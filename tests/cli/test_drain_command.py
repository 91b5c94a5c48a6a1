"""`rallypoint drain NODE`: a person has a node leave (A5)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import pytest
from tests.harness.cluster import AgentProcess, Cluster, at_a_terminal
from tests.harness.commands import drain, is_refused, line_of, start

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
UNASKED = "no checkpoint was saved: no worker checks for such requests"


@pytest.mark.parametrize("serves", [False, True], ids=["embedded", "serve"])
def test_A5_drain_has_a_node_leave_and_waits_for_it(cluster: Cluster, serves: bool) -> None:
    if serves:
        cluster.serve()
    a, b = cluster.running("a", "b", hosts=None if serves else True)
    done = drain(cluster, "b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "node b was asked to leave",
        f"node b has left; {UNASKED}",
    ]
    assert b.wait_exit() == 143
    assert b.verdict["reason"] == "this node left the job: it was drained (rallypoint drain)"
    a.wait_event("round_ended", "node b is leaving: it was drained", round=0)
    cluster.wait_workers(1, round=1)
    again = drain(cluster, "b")
    assert again.returncode == 2
    assert "there is no node 'b' in the job; there are a" in again.stderr
    cluster.end_well(a)
    assert a.verdict["restarts"] == 0


@pytest.mark.executed
def test_A5_drain_may_return_before_the_node_has_left(cluster: Cluster) -> None:
    cluster.options |= {"shutdown_timeout": 600}
    cluster.order(DEAF, node="b", round=0)
    a, b = cluster.running("a", "b")
    assert drain(cluster, "b", "--no-wait").stdout == "node b was asked to leave\n"
    cluster.wait_workers(1, round=1)
    assert b.process.poll() is None
    assert drain(cluster, "b", "--no-wait").stdout == "node b is leaving already\n"
    b.signal(15)
    b.wait_event("signal", "leaving already")
    b.signal_again(15)
    assert b.wait_exit() == 143
    cluster.end_well(a)


def test_A5_draining_the_host_ends_the_job_as_preempted(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", round=None)
    done = drain(cluster, "a")
    assert done.returncode == 0
    first, *_, last = done.stdout.splitlines()
    assert first == "node a was asked to leave; it hosts the job, which ends with it (2 nodes)"
    assert last.startswith("node a has left; no checkpoint was saved: "), last
    assert ", and the job has ended: node a, which hosts" in last
    assert [a.wait_exit(), b.wait_exit()] == [143, 143]
    assert a.verdict["outcome"] == b.verdict["outcome"] == "preempted"


def test_A5_at_a_terminal_drain_asks_before_it_ends_the_job(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", round=None)
    code, seen = at_a_terminal(cluster, line_of(cluster, "drain", "a"), b"\n")
    asked = "node a: it hosts the job, which ends with it (2 nodes); drain it? [y/N] "
    assert (code, seen.rstrip()) == (1, asked.rstrip())
    assert a.process.poll() is None
    code, seen = at_a_terminal(cluster, line_of(cluster, "drain", "a"), b"y\n")
    assert code == 0, seen
    assert asked in seen
    assert "and the job has ended: node a, which hosts the coordinator, is leaving" in seen
    assert [a.wait_exit(), b.wait_exit()] == [143, 143]


def test_A5_yes_answers_before_drain_asks(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", round=None)
    code, seen = at_a_terminal(cluster, line_of(cluster, "drain", "a", "--yes"), b"")
    assert code == 0, seen
    assert "[y/N]" not in seen
    assert [a.wait_exit(), b.wait_exit()] == [143, 143]


def test_A5_the_name_of_a_host_names_its_only_node(cluster: Cluster) -> None:
    a, b = cluster.agent("a", hosts=True), cluster.agent("b", hosts=False, node_id=None)
    cluster.wait_workers(2)
    host = socket.gethostname()
    done = drain(cluster, host)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"node {host}-0 was asked to leave\n")
    assert b.wait_exit() == 143
    cluster.end_well(a)


def test_A7_drain_names_what_is_wrong_in_one_line(cluster: Cluster) -> None:
    a, b = cluster.running("a", "b", round=None)
    garbled = drain(cluster, "z\n\x1b[31m")
    for failed, said in (
        (drain(cluster, "z"), "there is no node 'z' in the job; there are a, b"),
        (garbled, "rallypoint drain: "),
        (drain(cluster, "a", "--insecure"), "rallypoint drain: "),
    ):
        is_refused(failed, 2, said)
    assert garbled.stderr.isascii()
    assert "\x1b" not in garbled.stderr
    cluster.end_well(a, b)


def by_directory(cluster: Cluster) -> None:
    """Any of its nodes may lead."""
    jobs = cluster.folder / "jobs"
    jobs.mkdir(mode=0o700)
    where = str(jobs)
    cluster.options |= {"rdzv_backend": "file", "rdzv_endpoint": where, "local_addr": "127.0.0.1"}


def leader_of(agents: list[AgentProcess]) -> AgentProcess:
    """The one that has said so."""
    (found,) = (one for one in agents if any(event.name == "leads" for event in one.events))
    return found


def test_A5_L6_draining_the_node_that_leads_by_a_directory_leaves_the_job_to_the_others(
    cluster: Cluster,
) -> None:
    by_directory(cluster)
    # Who takes over between two rounds may not know whom they waited for.
    cluster.options["rdzv_conf"] = "last_call_timeout=20"
    agents = cluster.running("a", "b", hosts=None)
    leader = leader_of(agents)
    done = drain(cluster, leader.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"node {leader.name} was asked to leave",
        f"node {leader.name} has left; {UNASKED}",
    ]
    assert leader.wait_exit() == 143
    cluster.wait_workers(1, round=1)
    (other,) = (one for one in agents if one is not leader)
    done = drain(cluster, other.name)
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"node {other.name} has left; no checkpoint was saved: ")
    assert ", and the job has ended: every node is leaving" in last
    assert other.wait_exit() == 143


def test_A5_L5_a_drain_goes_on_when_another_node_takes_over_meanwhile(cluster: Cluster) -> None:
    """Whether the leader had told the node by then or not."""
    by_directory(cluster)
    cluster.options |= {"shutdown_timeout": 600, "nnodes": "1:3"}
    agents = cluster.running("a", "b", "c", hosts=None)
    leader = leader_of(agents)
    drained, kept = (one for one in agents if one is not leader)
    cluster.order(DEAF, node=drained.name)
    draining = start(cluster, "drain", drained.name, stdout=subprocess.PIPE)
    drained.wait_event("leaving")
    leader.kill()
    drained.wait_event("session_resumed")
    for worker in cluster.workers(0):
        if worker.node == drained.name:
            os.kill(worker.pid, signal.SIGKILL)
    out, err = draining.communicate(timeout=60)
    assert draining.returncode == 0, err
    assert out.splitlines()[0] == f"node {drained.name} was asked to leave"
    assert out.splitlines()[-1] == f"node {drained.name} has left"
    assert drained.wait_exit() == 143
    cluster.wait_workers(1)
    cluster.end_well(kept)


def test_A5_L6_who_drains_a_leading_node_that_is_killed_meanwhile_hears_so_soon(
    cluster: Cluster,
) -> None:
    """Before the time is over that nodes may take to come to the next leader."""
    by_directory(cluster)
    cluster.options |= {"nnodes": "1:2", "restart_grace": 600}
    agents = cluster.running("a", "b", hosts=None)
    leader = leader_of(agents)
    cluster.order(DEAF, node=leader.name)
    draining = start(cluster, "drain", leader.name, stdout=subprocess.PIPE)
    leader.wait_event("leaving")
    leader.kill()
    out, err = draining.communicate(timeout=60)
    assert draining.returncode == 0, err
    died = f"node {leader.name} was lost: its agent died, and its workers with it"
    assert out.splitlines()[-1].startswith(died), out
    (other,) = (one for one in agents if one is not leader)
    cluster.end_well(other)


def test_A7_a_directory_that_does_not_have_the_job_is_named(cluster: Cluster) -> None:
    by_directory(cluster)
    cluster.make_token()
    empty = drain(cluster, "a")
    (cluster.folder / "jobs").rmdir()
    none = drain(cluster, "a")
    unnamed = drain(cluster, "a", job="none")
    for failed, says in (
        (none, "jobs: there is no such directory on this machine"),
        (empty, "jobs has no record of job job: check --rdzv-endpoint and --rdzv-id"),
        (unnamed, "give --rdzv-id, the same for all nodes of this job"),
    ):
        is_refused(failed, 2, says)
