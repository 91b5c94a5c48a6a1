"""Agents that die or stop, alone or with all that is theirs (F2, A6)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.fault.hosts import HostCluster
from tests.harness.proc import is_alive


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


def send(cluster: HostCluster, host: str, number: int) -> list[int]:
    """To all that run there, the agent first, so that none of them can tell of another's end."""
    pids = sorted(cluster.network.processes(host))
    for pid in pids:
        os.kill(pid, number)
    return [pid for pid in pids if is_alive(pid)]
