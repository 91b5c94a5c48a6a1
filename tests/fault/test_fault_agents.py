"""Agents that die or stop, alone or with all that is theirs (F2, A6)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.fault.hosts import HostCluster
from tests.harness.cluster import AgentProcess, wait_until
from tests.harness.proc import is_alive

LONG_S = 50
"""A grace that no test waits for."""
SOON_S = 20.0


@pytest.mark.quick
def test_F2_the_workers_of_a_stopped_agent_are_dead_at_its_fence(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "s", "a", "b", nnodes="1:2", lease=2) as cluster:
        cluster.serve()
        a, b = cluster.agents("a", "b", hosts=None)
        stale = cluster.wait_workers(2, round=0)[1]
        b.pause()
        cluster.wait_workers(1, round=1)
        wait_until(lambda: not stale.is_alive, "the guard to kill the workers", SOON_S)
        b.resume()
        workers = cluster.wait_workers(2, round=2)
        assert [worker.node for worker in workers] == ["a", "b"]
        cluster.end_well(a, b)


def test_F2_the_workers_of_a_frozen_container_are_dead_when_it_takes_part_again(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "s", "a", "b", nnodes="1:2", lease=2) as cluster:
        cluster.serve()
        a, b = cluster.agents("a", "b", hosts=None)
        stale = cluster.wait_workers(2, round=0)[1]
        frozen = send(cluster, "b", signal.SIGSTOP)
        cluster.wait_workers(1, round=1)
        assert stale.is_alive
        send(cluster, "b", signal.SIGCONT)
        cluster.wait_workers(2, round=2)
        assert not stale.is_alive
        assert b.pid in frozen
        cluster.end_well(a, b)


@pytest.mark.quick
def test_F2_a_killed_agent_is_lost_at_once_when_its_guard_says_that_its_workers_are_dead(
    tmp_path: Path,
) -> None:
    graces = {"reconnect_grace": LONG_S, "reset_grace": LONG_S, "lease": LONG_S}
    with HostCluster(tmp_path, "a", "b", nnodes="1:2") as cluster:
        cluster.options |= graces
        a, b = cluster.agents("a", "b")
        stale = cluster.wait_workers(2, round=0)[1]
        b.kill()
        wait_until(lambda: a.workers(1), "the other node to go on", SOON_S)
        assert not stale.is_alive
        cluster.end_well(a)


def test_F2_a_container_that_is_killed_whole_is_lost_after_the_reconnect_grace(
    tmp_path: Path,
) -> None:
    with HostCluster(tmp_path, "a", "b", nnodes="1:2", lease=LONG_S) as cluster:
        a, _b = cluster.running("a", "b")
        send(cluster, "b", signal.SIGKILL)
        ended = wait_event_soon(a, "round_ended", "node b was lost")
        assert "its connection broke and did not come back" in ended
        cluster.wait_workers(1, round=1)
        cluster.end_well(a)


def send(cluster: HostCluster, host: str, number: int) -> list[int]:
    """To all that run there, the agent first, so that none of them can tell of another's end."""
    pids = sorted(cluster.network.processes(host))
    for pid in pids:
        os.kill(pid, number)
    return [pid for pid in pids if is_alive(pid)]


def wait_event_soon(agent: AgentProcess, name: str, text: str) -> str:
    """Its message."""

    def find() -> list[str]:
        return [e.message for e in agent.events if e.name == name and text in e.message]

    return wait_until(find, f"{name} {text!r} of {agent.name}", SOON_S)[0]
